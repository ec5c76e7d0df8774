"""Tests of different spellings of a text or a path: case, links, and the two ways in Unicode to encode accents."""

import unicodedata
from pathlib import Path

import pytest

from adt_core.app.prompts import parse_lines, select
from adt_core.files import path_key
from adt_core.run.images import check_outputs
from tests.raising import raises_key

NAMES = "é", unicodedata.normalize("NFD", "é"), "É", unicodedata.normalize("NFD", "É")
"""Spellings of one name: with one or two characters, in lower and upper case."""


@pytest.mark.parametrize("word", NAMES)
@pytest.mark.parametrize("typed", NAMES)
def test_a_filter_finds_every_spelling(word, typed):
    """A typed text has usually one character for a letter with an accent, and a list from macOS often has two."""
    prompts = parse_lines(f"a caf{word} at night\na house")
    assert select(prompts, filter=f"Caf{typed}") == prompts[:1]


def test_the_key_of_a_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    spellings = ["real/A.png", "real/./a.PNG", "link/a.png", "x/../real/A.PNG", tmp_path / "REAL" / "a.png"]
    assert len({path_key(path) for path in spellings}) == 1
    assert len({path_key(f"real/{name}.png") for name in NAMES}) == 1
    assert path_key("real/a.png") != path_key("real/b.png")


@pytest.mark.parametrize("option", ["from_png", "tokens"])
@pytest.mark.parametrize("names", [("A.png", "a.PNG"), ("é.png", "é.png"), ("é.png", "É.png")])
def test_no_output_replaces_a_file_with_another_spelling(tmp_path, option, names):
    """On disks that ignore case or normal form, both names are the same file. Neither needs to exist."""
    one, other = (tmp_path / unicodedata.normalize("NFD" if name == names[1] else "NFC", name) for name in names)
    inputs, outputs = ([(option, one)], []) if option == "from_png" else ([], [(option, one)])
    with raises_key("file.overwrites", input="output", other=option):
        check_outputs([*outputs, ("output", other)], inputs)
    check_outputs([*outputs, ("output", Path(tmp_path, "another.png"))], inputs)
