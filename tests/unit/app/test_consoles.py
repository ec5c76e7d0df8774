"""Tests of consoles whose encoding lacks some characters. The command line must print escapes for such characters."""

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from adt_core import cli
from adt_core.terminal import escape_unencodable
from tests.command import words

ROOT = Path(__file__).resolve().parents[3]
EMOJI = "\N{ARTIST PALETTE}"
ESCAPED = r"\U0001f3a8"
ENCODINGS = pytest.mark.parametrize("encoding", ["cp1252", "gbk", "ascii"])


@pytest.fixture
def console(monkeypatch):
    """Return a function (command line, encoding) -> exit code, standard output and standard error."""

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
    """Return arguments of `generate`, with an emoji in the prompt and in the file name."""
    files = {"model": tiny / "target", "drafter": tiny / "drafter", "output": tmp_path / f"{EMOJI}.png"}
    return words("generate", prompt=f"a {EMOJI} house", device="cpu", **files)


@ENCODINGS
def test_emoji_in_messages(console, line, tmp_path, encoding):
    code, out, err = console(encoding, *line)
    assert code == 0, err
    assert f"{ESCAPED}.png: 16 tokens in" in out
    assert "16/16" in err or "%" in err, "stderr lacks the progress bar"
    assert (tmp_path / f"{EMOJI}.png").is_file()


@ENCODINGS
def test_emoji_in_inspect_and_errors(console, tiny, tmp_path, encoding):
    (tmp_path / EMOJI).symlink_to(tiny / "target")
    code, out, err = console(encoding, "inspect", tmp_path / EMOJI)
    assert code == 0 and ESCAPED in out and "role          target" in out, err
    code, out, err = console(encoding, "inspect", tmp_path / f"no {EMOJI}")
    assert code == 1 and f"no {ESCAPED}" in err and "unexpected" not in err and err.count("\n") == 1


def test_other_streams_are_not_changed(monkeypatch):
    """Under pythonw, standard streams are None. In notebooks, they are of other types."""
    closed = io.TextIOWrapper(io.BytesIO())
    closed.close()
    for stream in (None, io.StringIO(), closed):
        monkeypatch.setattr(sys, "stdout", stream)
        escape_unencodable()
        assert sys.stdout is stream


@pytest.mark.long
@ENCODINGS
def test_emoji_in_a_separate_process(line, encoding):
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    done = subprocess.run([sys.executable, "-m", "adt_core", *line], cwd=ROOT, env=environment, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert ESCAPED in done.stdout.decode(encoding)
