"""Consoles that lack characters: the command line spells them out instead of failing."""

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from adt_core import cli
from adt_core.terminal import show_everything
from tests.command import words

ROOT = Path(__file__).resolve().parents[2]
EMOJI = "\N{ARTIST PALETTE}"
SPELLED = r"\U0001f3a8"
ENCODINGS = pytest.mark.parametrize("encoding", ["cp1252", "gbk", "ascii"])


@pytest.fixture
def console(monkeypatch):
    """Run a command line on a console of an encoding; returns the exit code and both outputs."""

    def run(encoding, *arguments):
        streams = [io.TextIOWrapper(io.BytesIO(), encoding=encoding, write_through=True) for _ in range(2)]
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", streams[0])
            patch.setattr(sys, "stderr", streams[1])
            code = cli.main(list(map(str, arguments)))
        return code, *(stream.buffer.getvalue().decode(encoding) for stream in streams)

    return run


@pytest.fixture
def line(tiny, tmp_path):
    """Arguments of ``generate`` whose messages have an emoji: it is in the name of the image and in the prompt."""
    files = {"model": tiny / "target", "drafter": tiny / "drafter", "output": tmp_path / f"{EMOJI}.png"}
    return words("generate", prompt=f"a {EMOJI} house", device="cpu", **files)


@ENCODINGS
def test_an_emoji_costs_no_message_and_no_exit_code(console, line, tmp_path, encoding):
    code, out, err = console(encoding, *line)
    assert code == 0, err
    assert f"{SPELLED}.png: 16 tokens in" in out
    assert "16/16" in err or "%" in err, "the progress bar"
    assert (tmp_path / f"{EMOJI}.png").is_file()


@ENCODINGS
def test_inspect_and_errors_are_shown(console, tiny, tmp_path, encoding):
    (tmp_path / EMOJI).symlink_to(tiny / "target")
    code, out, err = console(encoding, "inspect", tmp_path / EMOJI)
    assert code == 0 and SPELLED in out and "role          target" in out, err
    code, out, err = console(encoding, "inspect", tmp_path / f"no {EMOJI}")
    assert code == 1 and f"no {SPELLED}" in err and "unexpected" not in err and err.count("\n") == 1


def test_streams_that_can_not_be_reconfigured_stay(monkeypatch):
    """Standard streams are None under pythonw, and objects of other kinds in notebooks."""
    closed = io.TextIOWrapper(io.BytesIO())
    closed.close()
    for stream in (None, io.StringIO(), closed):
        monkeypatch.setattr(sys, "stdout", stream)
        show_everything()
        assert sys.stdout is stream


@pytest.mark.long
@ENCODINGS
def test_a_process_whose_console_lacks_an_emoji(line, encoding):
    told = {**os.environ, "PYTHONIOENCODING": encoding}
    done = subprocess.run([sys.executable, "-m", "adt_core", *line], cwd=ROOT, env=told, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert SPELLED in done.stdout.decode(encoding)
