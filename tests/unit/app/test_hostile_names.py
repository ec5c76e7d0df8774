"""Tests that control characters in names and texts from others reach no terminal, log or message."""

import io
import json
import shutil
import sys

import numpy as np
import pytest
from safetensors.numpy import save_file

from adt_core import AdtError, cli
from adt_core.errors import escape_controls, one_line, shown
from adt_core.terminal import tolerant_stderr

TITLE = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202egpj"
"""Sets the title of the window, clears the screen, and reverses the text after it."""


def safe(text):
    return all(letter.isprintable() or letter in "\n\t\r" for letter in text)


def test_one_line_and_shown_escape_controls():
    for text in (one_line(TITLE), shown(TITLE), shown([TITLE]), shown({TITLE: TITLE}), str(AdtError(f"a '{TITLE}'"))):
        assert safe(text) and "owned" in text
    assert json.loads(f'"{escape_controls(TITLE)}"') == TITLE
    assert escape_controls("a\tb\r\n\N{WOMAN}\u200d\N{ROCKET}") == "a\tb\r\n\N{WOMAN}\u200d\N{ROCKET}"


@pytest.mark.parametrize("depth", [930, 950, 989, 5000])
def test_shown_handles_any_nesting_and_size(depth):
    value = 1
    for _ in range(depth):
        value = [value]
    assert 0 < len(shown(value)) <= 40
    assert len(shown("x" * 10**7)) == 40 and len(shown(list(range(10**6)))) == 40
    assert shown(10**5000) == "too long to show"


@pytest.mark.parametrize("name", ["prompts", "model", "output", "png"])
def test_names_in_errors_of_the_command_line(tmp_path, capsys, name):
    odd = tmp_path / TITLE.replace("/", "")
    odd.mkdir()
    (odd / "p.txt").write_bytes(b"\xff\xfe")
    line = {
        "prompts": ["generate", "--prompts", str(odd / "p.txt"), "--output", str(tmp_path / "o")],
        "model": ["generate", "--prompt", "a", "--model", str(odd), "--output", str(tmp_path / "o.png")],
        "output": ["generate", "--prompt", "a", "--output", str(odd)],
        "png": ["generate", "--from-png", str(odd / "p.txt"), "--output", str(tmp_path / "o.png")],
    }[name]
    assert cli.main([*line, "--device", "cpu"]) != 0
    out = capsys.readouterr()
    assert safe(out.out + out.err) and "owned" in out.err


def test_names_of_tensors_in_inspect(tmp_path, tiny, capsys):
    shutil.copytree(tiny / "target", tmp_path / "m")
    save_file({TITLE: np.zeros(1, np.float32)}, tmp_path / "m" / "model-extra.safetensors")
    cli.main(["inspect", str(tmp_path / "m")])
    cli.main(["inspect", "--json", str(tmp_path / "m")])
    out = capsys.readouterr()
    assert safe(out.out + out.err)


def test_progress_bars_still_move(monkeypatch):
    raw = io.StringIO()
    monkeypatch.setattr("sys.stderr", raw)
    with tolerant_stderr():
        for text in ("\r  5%|", "\n", "\x1b[A", f"\r{TITLE}\r", "\x1b[A\x1b[2J"):
            sys.stderr.write(text)
    assert raw.getvalue().startswith("\r  5%|\n\x1b[A\r\\u001b]0;owned") and "\x1b[2J" not in raw.getvalue()
