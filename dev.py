#!/usr/bin/env python3
"""The two commands of the README, with all their own set-up; needs Python 3.10 or newer and nothing else.

    python3 dev.py demo               generate a picture with the bundled model and measure the speed-up
    python3 dev.py test               check the format, the style and the types, and run the tests
    python3 dev.py test --all         the same with all tests: also those that take long and prove little more
    python3 dev.py test [options]     only run pytest, with these options

The first run makes a virtual environment in ``.venv``; later runs start at once.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
READY = VENV / "ready"  # lists what has been installed
PYTHON = VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")

TORCH = "torch==2.13.0"  # ComfyUI brings its own; here it is pinned, so that a run can be repeated
TESTS = [
    "ruff==0.17.*",
    "mypy==2.4.*",
    "pytest",
    "pytest-xdist",
    "pytest-timeout",
    "pytest-rerunfailures",
    "hypothesis",
    "scipy",
    "playwright",
    "ftfy",
    "beautifulsoup4",
    "ray",
    "diffusers>=0.37",
]  # the extra "test" of pyproject.toml

ALL = "--all"
NORMAL = "not long"  # marks of the tests that run while somebody waits
AGAIN = ["--reruns", "1"]  # for timed tests: a shared machine may stall for a second, but not each time

CAPTION = "A red house on the left of a grassy field under a clear blue sky and a yellow hot air balloon on the right."
SEED = "3"  # a picture that shows all of it; not every seed does
PICTURE = Path("output") / "demo.png"


def main(arguments: list[str]) -> int:
    """Run the command named on the command line and return its exit code."""
    if sys.version_info < (3, 10):  # noqa: UP036
        return _fail(f"Python 3.10 or newer is needed, and this is {sys.version.split()[0]}.")
    command, rest = (arguments or [""])[0], arguments[1:]
    try:
        if command == "demo" and not rest:
            return demo()
        if command == "test":
            return test(rest)
    except SetUpError as error:
        return _fail(str(error))
    except KeyboardInterrupt:
        return _fail("Interrupted.", 130)
    print(__doc__.strip())
    return 0 if command in ("-h", "--help") else 2


def demo() -> int:
    """Generate one picture with the bundled model, with and without speculation, and print the speed-up."""
    environment(requirements())
    _say(f'Generating "{CAPTION}", once with drafts and once plainly.')
    return _run(
        "-m", "adt_core", "generate", "--compare", "--prompt", CAPTION, "--seed", SEED, "--output", str(PICTURE)
    )


def test(options: list[str]) -> int:
    """Run every check and the tests, whatever fails on the way; with ``--all``, those that are marked ``long``, too.

    With other ``options``, only run pytest with them.
    """
    environment([*requirements(), *TESTS])
    if options not in ([], [ALL]):
        return _run("-m", "pytest", *options)
    workers = str(max(2, min(3, os.cpu_count() or 2)))
    kind = "" if options else f" and {NORMAL}"
    side_by_side: dict[str, Callable[[], int]] = {
        "format (repaired by 'ruff format')": lambda: _run("-m", "ruff", "format", "--check"),
        "style (ruff)": lambda: _run("-m", "ruff", "check"),
        "types (mypy)": types,
        "tests": lambda: compiled() or _pytest(f"not alone{kind}", "-n", workers, OMP_NUM_THREADS="1"),
    }
    with ThreadPoolExecutor() as pool:
        failed = sum(pool.map(_step, side_by_side, side_by_side.values()), start=[])
    timed = [str(path) for path in (ROOT / "tests").rglob("test_*.py") if "mark.alone" in path.read_text("utf-8")]
    failed += _step("tests that are timed, one at a time", lambda: _pytest(f"alone{kind}", *AGAIN, *sorted(timed)))
    return _fail(f"Failed: {'; '.join(failed)}.") if failed else 0


def _step(name: str, step: Callable[[], int]) -> list[str]:
    """Run a step and say what came of it; its name if it failed."""
    started, failed = time.monotonic(), step() != 0
    _say(f"{'FAILED' if failed else 'passed'}: {name}, {time.monotonic() - started:.0f} s")
    return [name] if failed else []


def _pytest(marks: str, *options: str, **variables: str) -> int:
    """Run the tests whose marks fit the expression, and say which were the slowest."""
    return _run("-m", "pytest", "-m", marks, "--durations=50", *options, cwd=ROOT, **variables)


def compiled() -> int:
    """Have Python compile the largest packages; otherwise every process of the tests would do so at the same time."""
    return _run("-c", "import torch, transformers")


def types() -> int:
    """Check the types in a copy of the sources, because mypy needs a folder whose name can be that of a package."""
    with tempfile.TemporaryDirectory() as folder:
        pack = Path(folder) / "adt_tree"
        for name in ("adt_core", "adt_lab", "nodes"):
            shutil.copytree(ROOT / name, pack / name, ignore=shutil.ignore_patterns("bundled", "__pycache__"))
        for name in ("__init__.py", "dev.py", "pyproject.toml"):
            shutil.copy2(ROOT / name, pack)
        return _run("-m", "mypy", "--cache-dir", str(ROOT / ".mypy_cache"), cwd=pack)


class SetUpError(Exception):
    """The environment could not be made; the message says what to do."""


def requirements() -> list[str]:
    """The packages of requirements.txt."""
    text = (ROOT / "requirements.txt").read_text(encoding="utf-8")
    lines = (line.split("#")[0].strip() for line in text.splitlines())
    return [line for line in lines if line]


def environment(packages: list[str]) -> None:
    """Make ``.venv`` and install ``packages`` into it, unless all of them are there."""
    wanted = [f"python=={platform.python_version()}", TORCH, *packages]
    if PYTHON.exists() and READY.exists() and set(wanted) <= set(READY.read_text(encoding="utf-8").splitlines()):
        return
    started = time.monotonic()
    if not PYTHON.exists():
        _say("Setting up, once: a virtual environment in .venv")
        _make_venv()
    _pip([TORCH, *packages])
    READY.write_text("\n".join(wanted), encoding="utf-8")
    _say(f"The environment is ready after {time.monotonic() - started:.0f} s.")


def _make_venv() -> None:
    """Make the virtual environment with a pip in it, also where Debian has taken ``ensurepip`` out of Python."""
    shutil.rmtree(VENV, ignore_errors=True)
    bundled_pip = importlib.util.find_spec("ensurepip") is not None
    try:
        _quietly("-m", "venv", *([] if bundled_pip else ["--without-pip"]), str(VENV))
        if not bundled_pip:
            _quietly("-m", "pip", "--python", str(PYTHON), "install", "pip")
    except SetUpError as error:
        shutil.rmtree(VENV, ignore_errors=True)
        hint = "Python's venv module does not work here; on Debian or Ubuntu, 'apt install python3-venv' brings it."
        raise SetUpError(f"{hint} {error}") from None


def _pip(packages: list[str]) -> None:
    """Install packages. Python compiles each file when it is first imported, and most never are."""
    _say(f"Installing PyTorch, which is large, and what else is needed: {', '.join(packages)} ...")
    _quietly("-m", "pip", "install", "--disable-pip-version-check", "--no-compile", *packages, python=str(PYTHON))


def _quietly(*arguments: str, python: str = sys.executable) -> None:
    """Run Python: on a terminal its output passes by in one line, and the end of it is shown if it fails."""
    command = [python, *arguments]
    said: deque[str] = deque(maxlen=12)
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as process:
        for line in process.stdout or ():
            said.append(line.rstrip())
            _passing(said[-1])
    _passing("")
    if process.returncode:
        raise SetUpError("\n".join([f"'python {' '.join(arguments)}' failed:", *said]))


def _passing(line: str) -> None:
    if sys.stdout.isatty():
        width = shutil.get_terminal_size().columns - 1
        print(f"\r{line[:width]:{width}}\r", end="", flush=True)


def _run(*arguments: str, cwd: Path = ROOT, **variables: str) -> int:
    """Run the environment's Python in ``cwd``, with this terminal and further environment variables.

    It keeps what it compiles, whatever the user has set: importing torch takes half a minute otherwise.
    """
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "", **variables}
    process = subprocess.Popen([str(PYTHON), *arguments], cwd=cwd, env=environment)
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:  # the child gets it too, and says what it has to say
            continue


def _say(line: str) -> None:
    print(line, flush=True)


def _fail(line: str, code: int = 1) -> int:
    print(line, file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
