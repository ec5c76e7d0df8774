#!/usr/bin/env python3
"""Run the demo or the tests in a virtual environment. Only Python 3.10 or newer is needed.

    python3 dev.py demo               generate an image with the bundled model and measure the speed-up
    python3 dev.py test               check format, style and types, and run the tests of the default tier
    python3 dev.py test --all         for a release: the same checks with all tests; takes over an hour
    python3 dev.py test tests/unit    run only pytest, with these arguments

The first run creates the environment in ``.venv``. Later runs reuse this environment.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
READY = VENV / "ready"  # text file that lists the installed packages, one per line
PYTHON = VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")

TORCH = "torch==2.13.0"  # pinned for reproducible results; in ComfyUI, the pack uses ComfyUI's PyTorch
REQUIREMENTS = ROOT / "requirements.txt"
TEST_REQUIREMENTS = ROOT / "tests" / "requirements.txt"

ALL = "--all"
JS_TOOLS = ROOT / "tests" / "js"
NODE_MODULES = JS_TOOLS / "node_modules"
LOCK = JS_TOOLS / "package-lock.json"  # versions of the tools that check the JavaScript
NO_NPM = "check not run: format, style and types of the JavaScript, which need npm"

BUDGET = {"first run": 480, "default": 300, ALL: 5100}
"""Maximum duration of ``dev.py test`` on two cores in seconds, including the set-up."""
SIDE_BY_SIDE = ["-n", str(max(2, min(3, os.cpu_count() or 2)))]
ONE_BY_ONE = ["-m", "alone", "--reruns", "1"]  # timed tests; a failed test runs again, as the machine may be busy


def main(arguments: list[str]) -> int:
    """Run the command named on the command line and return its exit code."""
    if sys.version_info < (3, 10):  # noqa: UP036
        return _fail(f"Python 3.10 or newer is needed; this is {sys.version.split()[0]}.")
    command = arguments[0] if arguments else ""
    rest = arguments[1:]
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
    """Generate an image with the bundled model, with drafts and without, and explain the speed-up."""
    environment(REQUIREMENTS)
    return _run("-m", "adt_core", "demo")


def test(options: list[str]) -> int:
    """Run all checks and tests, even if some fail, and print the numbers of tests that ran and did not run.

    Args:
        options: [], ["--all"], or arguments of pytest. With arguments of pytest, only pytest runs.
    """
    started = time.monotonic()
    installed = environment(REQUIREMENTS, TEST_REQUIREMENTS)
    if installed:
        _run("-c", "import torch, transformers")  # compiles both packages once, before the test processes start
    counts: Counter[str] = Counter()
    if options not in ([], [ALL]):
        code = _pytest(counts, *options)
        _say(summary(counts))
        return code
    steps: dict[str, Callable[[], int]] = {
        "format (repaired by 'ruff format')": lambda: _run("-m", "ruff", "format", "--check"),
        "style (ruff)": lambda: _run("-m", "ruff", "check"),
        "tests": lambda: _pytest(counts, *options, *(["-m", "not alone"] if options else []), *SIDE_BY_SIDE),
        **({"timed tests": lambda: _pytest(counts, ALL, *ONE_BY_ONE)} if options else {}),
        "types (mypy)": types,
    }
    if shutil.which("npm"):
        steps["JavaScript (Biome, tsc; format repaired by 'npm --prefix tests/js run repair')"] = javascript
    else:
        counts[NO_NPM] += 1
    failed = [name for name, step in steps.items() if not _passes(name, step)]
    kind = "first run" if installed else "default"
    _say(total(time.monotonic() - started, ALL if options else kind))
    if failed:
        _fail(f"Failed: {'; '.join(failed)}.")
    _say(summary(counts))
    return 1 if failed else 0


def _passes(name: str, step: Callable[[], int]) -> bool:
    """Run a step, print the result and the duration, and return whether the step passed."""
    started = time.monotonic()
    passed = step() == 0
    _say(f"{'passed' if passed else 'FAILED'}: {name}, {time.monotonic() - started:.0f} s")
    return passed


def total(seconds: float, run: str) -> str:
    """Return the line that compares the duration of a run with its budget.

    Args:
        run: Kind of run, a key of ``BUDGET``.
    """
    line = f"{seconds:.0f} s in total; the budget of {run} on two cores is {BUDGET[run]} s"
    return f"WARNING: {line}" if seconds > BUDGET[run] else line


def summary(counts: Counter[str]) -> str:
    """Return the last line of a run: how many tests passed, failed, were slow, and did not run for each reason.

    Args:
        counts: Number of tests by outcome. An outcome is "passed", "failed", or a text such as the reason why tests did
            not run.
    """
    parts = [f"{counts['passed']:,} passed"] + [f"{counts['failed']:,} FAILED"] * bool(counts["failed"])
    others = [f"{number:,} {outcome}" for outcome, number in counts.items() if outcome not in ("passed", "failed")]
    return "; ".join(parts + others)


def _pytest(counts: Counter[str], *options: str) -> int:
    """Run pytest, add the numbers of tests to ``counts``, and return the exit code."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "counts.json"
        # One thread per process, because the processes share the cores.
        code = _run("-m", "pytest", "--counts", str(file), *options, OMP_NUM_THREADS="1")
        counts.update(json.loads(file.read_text(encoding="utf-8")) if file.exists() else {})
    return code


def types() -> int:
    """Check the types with mypy in a copy of the sources.

    mypy needs a folder whose name is a valid package name. "ADT-Tree" is not valid, because it contains a hyphen.
    """
    with tempfile.TemporaryDirectory() as folder:
        pack = Path(folder) / "adt_tree"
        for name in ("adt_core", "nodes"):
            shutil.copytree(ROOT / name, pack / name, ignore=shutil.ignore_patterns("bundled", "__pycache__"))
        for name in ("__init__.py", "dev.py", "pyproject.toml"):
            shutil.copy2(ROOT / name, pack)
        return _run("-m", "mypy", "--cache-dir", str(ROOT / ".mypy_cache"), cwd=pack)


def javascript() -> int:
    """Check format, style and types of the JavaScript. Install the tools in ``node_modules`` if they are missing."""
    npm = shutil.which("npm") or "npm"  # Windows needs the full path, because npm is not an .exe there
    installed = NODE_MODULES / "ready"
    lock = LOCK.read_text(encoding="utf-8")
    if not installed.exists() or installed.read_text(encoding="utf-8") != lock:
        if code := subprocess.run([npm, "ci", "--no-audit", "--no-fund", "--ignore-scripts"], cwd=JS_TOOLS).returncode:
            return code
        NODE_MODULES.mkdir(exist_ok=True)
        installed.write_text(lock, encoding="utf-8")
    return subprocess.run([npm, "run", "--silent", "check"], cwd=JS_TOOLS).returncode


class SetUpError(Exception):
    """Failure of a command of the set-up. The message contains the command."""


def environment(*requirements: Path) -> bool:
    """Create ``.venv`` and install PyTorch and the required packages, unless all of them are already installed.

    Returns:
        Whether the function has installed anything.
    """
    listed = {line for file in requirements for line in file.read_text(encoding="utf-8").splitlines()}
    python = f"python=={platform.python_version()}"
    wanted = listed | {python, TORCH}
    complete = PYTHON.exists() and READY.exists()
    installed = set(READY.read_text(encoding="utf-8").splitlines()) if complete else set()
    if wanted <= installed:
        return False
    _say("Setting up the environment in .venv; PyTorch is a large download.")
    if python not in installed:
        _install(sys.executable, "-m", "venv", "--clear", str(VENV))
    options = [option for file in requirements for option in ("-r", str(file))]
    # Installing without compilation is faster. Most files are never imported, and Python compiles a file on import.
    _install(str(PYTHON), "-m", "pip", "install", "--disable-pip-version-check", "--no-compile", TORCH, *options)
    READY.write_text("\n".join(sorted(wanted)), encoding="utf-8")
    return True


def _install(*command: str) -> None:
    """Run a command of the set-up. The command prints its errors itself.

    Raises:
        SetUpError: If the command fails.
    """
    if subprocess.run(command).returncode:
        raise SetUpError(f"The set-up failed: {' '.join(command)}")


def _run(*arguments: str, cwd: Path = ROOT, **variables: str) -> int:
    """Run the Python of ``.venv`` and return the exit code.

    This function overrides PYTHONDONTWRITEBYTECODE, because importing torch without bytecode takes half a minute.
    """
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "", **variables}
    process = subprocess.Popen([str(PYTHON), *arguments], cwd=cwd, env=environment)
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:  # the child process also receives the signal, and reports the interruption
            continue


def _say(line: str) -> None:
    print(line, flush=True)


def _fail(line: str, code: int = 1) -> int:
    print(line, file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
