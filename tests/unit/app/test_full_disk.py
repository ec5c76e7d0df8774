"""Tests of a disk that becomes full during a command. When it has free space again, the same command must resume."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
from adt_tree_pack.nodes import contact_sheet
from PIL import Image

from adt_core import cli
from tests.crash.cases import check_complete
from tests.crash.faults import fault_patch, full_disk
from tests.raising import raises_key

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[3]
INSPECT = [sys.executable, "-m", "adt_core", "inspect", "bundled"]
TWO_IMAGES = "--prompts p.txt --drafter jacobi"
COMMANDS = {
    "generate": f"{TWO_IMAGES} --output o --tokens o/tokens.jsonl --trace o/trace.jsonl --report o/report.json",
    "benchmark": f"{TWO_IMAGES} --methods jacobi,jacobi+lantern --lantern-delta 0.5 --output o",
    "train-drafter": "--prompts p.txt --steps 2 --every 1 --training-batch-size 1 --validation-prompts 1 --output o",
}
WRITES = {"generate": 4 * 2 + 1, "benchmark": 1 + 2 * 2 + 3, "train-drafter": 2 + 2 + 2 * 4}
"""Command -> minimum number of its writes. The test makes each of these writes fail."""


@pytest.fixture
def run(tiny, tmp_path, monkeypatch, capsys) -> Callable:
    """Return a function that runs a command with the tiny target. It returns the exit code and the error output."""
    monkeypatch.chdir(tmp_path)
    Path("p.txt").write_text("a cat\na dog\n", encoding="utf-8")

    def run(name: str, output: str) -> tuple[int, str]:
        options = [
            output + word[1:] if word.startswith("o/") or word == "o" else word for word in COMMANDS[name].split()
        ]
        code = cli.main([name, "--model", str(tiny / "target"), *options])
        return code, capsys.readouterr().err.strip().splitlines()[-1:]

    return run


def finished_lines(path: Path) -> list[bytes]:
    """Return the complete lines of a file, except lines of images whose PNG was not written."""
    *lines, _ = path.read_bytes().split(b"\n")
    numbers = [json.loads(line).get("image") for line in lines]
    return [
        line for line, number in zip(lines, numbers) if number is None or (path.parent / f"{number:06}.png").exists()
    ]


@pytest.mark.parametrize("name", COMMANDS)
def test_each_write_of_a_command(run, name, monkeypatch):
    for number in count(1):
        output = f"o{number}"
        with monkeypatch.context() as patch:
            patch.setattr(*fault_patch("write", number, full_disk))
            code, error = run(name, output)
        if code == 0:
            break
        assert code == 1 and error[0].startswith(f"error: '{output}/"), "the error must name the file"
        assert "the disk is full" in error[0] and "finished results were kept" in error[0] and error[0].count(". ") == 0
        check_complete(Path(output))
        finished = {path: finished_lines(path) for path in Path(output).rglob("*.jsonl")}
        assert run(name, output)[0] == 0
        assert all(set(lines) <= set(path.read_bytes().splitlines()) for path, lines in finished.items())
        check_complete(Path(output))
        assert not list(Path(output).rglob("*.part"))
    assert number > WRITES[name]


@pytest.mark.parametrize("number", [1, 2, 3])
def test_the_report_of_a_batch(tmp_path, monkeypatch, number):
    names = "id file seconds tokens tau mean_depth substitution_rate".split()
    content = [dict.fromkeys(names, 1)], {}, Image.new("RGB", (8, 8)), tmp_path, "report"
    monkeypatch.setattr(*fault_patch("write", number, full_disk))
    with raises_key("file.disk_full", path="report."):
        contact_sheet.write_report(*content)
    check_complete(tmp_path)
    assert len(list(tmp_path.iterdir())) == number - 1
    assert len(contact_sheet.write_report(*content)) == 3


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a device that is always full")
def test_output_to_a_full_disk():
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = subprocess.run(INSPECT, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1
    assert "its output can't be written (No space left on device)" in done.stderr


@pytest.mark.skipif(os.name == "nt", reason="Windows has no pipes of this kind")
def test_a_closed_pipe_is_not_an_error():
    running = subprocess.Popen(INSPECT, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    running.stdout.close()
    assert running.stderr.read() == "" and running.wait() == 0
