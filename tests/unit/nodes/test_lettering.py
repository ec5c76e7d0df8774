"""Tests of labels in any language. A character without a font must be replaced by a box or by its name."""

import numpy as np
import pytest
from adt_tree_pack.nodes import contact_sheet, lettering
from PIL import Image, ImageDraw, ImageFont

SIZES = iter(size + 0.5 for size in range(12, 100))
"""Font sizes. Fonts are cached by size, so each size is used only once. Contact sheets use only integer sizes."""


def with_fonts(monkeypatch, size, *fonts):
    """Return the lettering on a machine with these fonts and Pillow's own, which has only English letters."""
    remaining = iter(fonts)
    truetype = ImageFont.truetype

    def find(name, size, **how):
        if not isinstance(name, str):  # Pillow's built-in font is in memory, so it has no file name
            return truetype(name, size, **how)
        if (font := next(remaining, None)) is None:
            raise OSError("no such font")
        return font

    with monkeypatch.context() as patch:
        patch.setattr(ImageFont, "truetype", find)
        return lettering.Lettering(size)


@pytest.fixture
def plain(monkeypatch):
    return with_fonts(monkeypatch, next(SIZES))


def drawn(letters: lettering.Lettering, text: str) -> np.ndarray:
    image = Image.new("L", (200, 30))
    letters.draw(ImageDraw.Draw(image), 0, 4, text, 255)
    return np.asarray(image)


def test_an_emoji_without_a_font_is_named(plain):
    assert plain.readable("a \N{GRINNING FACE} here") == "a [grinning face] here"
    assert plain.readable("\N{WOMAN}\N{EMOJI MODIFIER FITZPATRICK TYPE-3}\N{ZERO WIDTH JOINER}") == (
        "[woman][emoji modifier fitzpatrick type-3]"
    )


@pytest.mark.parametrize("text", ["\u732b", "\u3042", "\uae40"], ids=["Chinese", "Japanese", "Korean"])
def test_a_character_without_a_font_is_a_box_and_the_sheet_has_a_remark(plain, text):
    assert plain.readable(f"1: {text} x") == f"1: {lettering.MISSING} x"
    image = Image.new("RGB", (64, 64))
    unassigned = "\u0378"  # not in any font
    with_note, without = (contact_sheet.contact_sheet([image], [label], width=400) for label in (unassigned, "a"))
    assert with_note.height > without.height


def test_characters_of_system_fonts_are_drawn():
    letters = lettering.Lettering(next(SIZES))
    text = letters.readable("caf\u00e9 ")
    assert text.startswith("caf") and drawn(letters, text).any() and letters.length(text) > 2 * letters.length("c")


def test_a_character_is_drawn_with_the_first_font_that_contains_it(monkeypatch):
    size = next(SIZES)
    small = ImageFont.load_default(size)
    large = ImageFont.load_default(3 * size)
    getmask = small.getmask
    # draws "B" like a missing character
    small.getmask = lambda text, *how: getmask(text.replace("B", "\U0010fffe"), *how)
    letters = with_fonts(monkeypatch, size, small, large)
    assert letters.readable("aB") == "aB"
    assert letters.length("aB") == small.getlength("a") + large.getlength("B")


def test_joiners_are_removed(plain):
    assert plain.readable("a\ufe0f\u200d\u0301b") == "ab"


@pytest.mark.parametrize("ending, lines", [("", 2), ("...", 1)])
@pytest.mark.parametrize("width", [1, 20, 57, 100, 1000])
def test_a_line_has_as_many_characters_as_fit(plain, width, ending, lines):
    text = "awideWINDOWwithillegiblelittleliliesonitssill"
    count = len(text)
    while count > 1 and plain.length(text[:count] + ending * (count < len(text))) > width:
        count -= 1
    assert plain.wrap(text, width, lines)[0] == text[:count] + ending * (count < len(text))


@pytest.mark.parametrize(
    "text, expected",
    [
        ("a red car", ["a red", "car"]),
        ("a", ["a"]),
        ("", []),
        ("abcdefghijkl", ["abcdef", "ghijkl"]),
        ("one two three four", ["one", "two..."]),
    ],
)
def test_lines_are_broken_between_words(plain, monkeypatch, text, expected):
    monkeypatch.setattr(plain, "length", len)  # every character has a width of 1
    assert plain.wrap(text, 6, 2) == expected
