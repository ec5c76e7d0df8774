"""Tests of the command line in a separate process: Ctrl-C, unwritable streams, and imports."""

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from tests.command import words

ROOT = Path(__file__).resolve().parents[3]


def command(*arguments, **settings):
    """Start the command line in a separate process."""
    return subprocess.Popen(
        [sys.executable, "-m", "adt_core", *map(str, arguments)],
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **settings,
    )


@pytest.mark.long
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no full device")
@pytest.mark.parametrize("stderr", ["2>&- >&- <&-", "2>/dev/full"])
def test_unwritable_standard_error(tiny, tmp_path, stderr):
    """The image must be written. Messages of libraries to standard error must not end up in other open files."""
    files = {"model": tiny / "target", "drafter": tiny / "drafter"}
    files |= {"output": tmp_path / "a.png", "report": tmp_path / "r.json"}
    given = " ".join(f"--{name} {shlex.quote(str(path))}" for name, path in files.items()) + " --device cpu --seed 1"
    line = f"exec {shlex.quote(sys.executable)} -c '{TALKATIVE}' generate --prompt house {given}"
    subprocess.run(["bash", "-c", f"({line}) {stderr}; exit ${{PIPESTATUS[0]}}"], cwd=ROOT, check=True)
    with Image.open(tmp_path / "a.png") as image:
        image.load()
    assert json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))["images"] == 1


TALKATIVE = """
import os, runpy, sys
fsync = os.fsync
def loud(number):
    os.write(2, b"a library in C has something to say")
    fsync(number)
def quiet(number):
    try:
        loud(number)
    except OSError:
        fsync(number)
os.fsync = quiet
runpy.run_module("adt_core", run_name="__main__")
"""
"""Script that runs the command. Before each fsync of a file, it writes to standard error, as a library could do."""


INTERRUPTED = """
import runpy, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
class Finder:
    def find_spec(name, *_):
        if name == module:
            signal.raise_signal(signal.SIGINT)
module = sys.argv.pop(1)
sys.meta_path.insert(0, Finder)
runpy.run_module("adt_core", run_name="__main__")
"""
"""Script that runs the command. Ctrl-C is sent during the import of the module in the first argument."""


@pytest.mark.parametrize("module", ["adt_core.cli", "numpy", "torch"])
def test_interrupt_during_imports(tmp_path, module):
    given = ["generate", "--prompt", "a house", "--output", str(tmp_path / "a.png")]
    done = subprocess.run([sys.executable, "-c", INTERRUPTED, module, *given], cwd=ROOT, text=True, capture_output=True)
    assert done.returncode == 130 and "Interrupted" in done.stderr and done.stderr.count("\n") == 1, done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.long
@pytest.mark.skipif(os.name == "nt", reason="sends SIGINT")
def test_interrupt(tiny, tmp_path):
    (tmp_path / "list.txt").write_text("a red house\n" * 500, encoding="utf-8")
    # A shell starts background jobs with SIGINT ignored, and child processes inherit this.
    line = words("generate", model=tiny / "target", drafter=tiny / "drafter", prompts=tmp_path / "list.txt")
    files = ["--output", tmp_path / "out", "--tokens", tmp_path / "t.json", "--device", "cpu"]
    process = command(*line, *files, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler))
    while not list(tmp_path.glob("out/*.png")):
        assert process.poll() is None, process.communicate()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130 and "Interrupted" in err and "Traceback" not in err
    left = sorted(path.name for path in (tmp_path / "out").iterdir())
    lines = (tmp_path / "t.json").read_text(encoding="utf-8").splitlines()
    assert len(lines) >= len(left) and all(map(json.loads, lines)), "every image that is present has its line"
    assert left == [f"{i:06}.png" for i in range(1, len(left) + 1)] and len(left) < 500
    for name in left:
        with Image.open(tmp_path / "out" / name) as image:
            image.load()


@pytest.mark.parametrize("arguments", [["--help"], ["generate", "--help"], ["benchmark"]], ids=" ".join)
def test_help_does_not_import_torch(arguments):
    """Importing torch needs several seconds; the help must appear in a quarter of a second."""
    arguments = [sys.executable, "-X", "importtime", "-m", "adt_core", *arguments]
    lines = subprocess.run(arguments, cwd=ROOT, text=True, capture_output=True).stderr.splitlines()
    imported = {line.rpartition("|")[2].strip() for line in lines}
    assert "adt_core.policies" in imported and "torch" not in imported
