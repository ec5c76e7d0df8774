"""Labels in any language: letters that some font has are drawn, and others are said to be missing."""

import numpy as np
import pytest
from adt_tree_pack.nodes import contact_sheet, lettering
from PIL import Image, ImageDraw, ImageFont

SIZES = iter(size + 0.5 for size in range(12, 100))
"""Each is asked for once, since the fonts that were found for a size are remembered. No sheet asks for such a size."""


def with_fonts(monkeypatch, size, *fonts):
    """The letters of a machine that has these fonts, and Pillow's own, of English letters."""
    there = iter(fonts)
    usual = ImageFont.truetype

    def find(name, size, **how):
        if not isinstance(name, str):  # Pillow's own, which it reads from memory
            return usual(name, size, **how)
        if (font := next(there, None)) is None:
            raise OSError("no such font")
        return font

    with monkeypatch.context() as patch:
        patch.setattr(ImageFont, "truetype", find)
        return lettering.Lettering(size)


@pytest.fixture
def plain(monkeypatch):
    return with_fonts(monkeypatch, next(SIZES))


def drawn(letters: lettering.Lettering, text: str) -> np.ndarray:
    picture = Image.new("L", (200, 30))
    letters.draw(ImageDraw.Draw(picture), 0, 4, text, 255)
    return np.asarray(picture)


def test_an_emoji_without_a_font_is_named(plain):
    assert plain.readable("a \N{GRINNING FACE} here") == "a [grinning face] here"
    assert plain.readable("\N{WOMAN}\N{EMOJI MODIFIER FITZPATRICK TYPE-3}\N{ZERO WIDTH JOINER}") == (
        "[woman][emoji modifier fitzpatrick type-3]"
    )


@pytest.mark.parametrize("text", ["\u732b", "\u3042", "\uae40"], ids=["Chinese", "Japanese", "Korean"])
def test_a_letter_without_a_font_is_a_box_and_the_sheet_says_so(plain, text):
    assert plain.readable(f"1: {text} x") == f"1: {lettering.MISSING} x"
    picture = Image.new("RGB", (64, 64))
    unassigned = "\u0378"  # no font of this machine has it either
    with_note, without = (contact_sheet.contact_sheet([picture], [label], width=400) for label in (unassigned, "a"))
    assert with_note.height > without.height


def test_what_a_system_s_fonts_have_is_drawn():
    letters = lettering.Lettering(next(SIZES))
    text = letters.readable("caf\u00e9 ")
    assert text.startswith("caf") and drawn(letters, text).any() and letters.length(text) > 2 * letters.length("c")


def test_a_letter_is_taken_from_the_first_font_that_has_it(monkeypatch):
    size = next(SIZES)
    small = ImageFont.load_default(size)
    large = ImageFont.load_default(3 * size)
    known = small.getmask
    small.getmask = lambda text, *how: known(text.replace("B", "\U0010fffe"), *how)  # drawn as a missing letter is
    letters = with_fonts(monkeypatch, size, small, large)
    assert letters.readable("aB") == "aB"
    assert letters.length("aB") == small.getlength("a") + large.getlength("B")


def test_joiners_leave_no_trace(plain):
    assert plain.readable("a\ufe0f\u200d\u0301b") == "ab"


@pytest.mark.parametrize("ending, lines", [("", 2), ("...", 1)])
@pytest.mark.parametrize("width", [1, 20, 57, 100, 1000])
def test_as_much_fits_as_letter_by_letter(plain, width, ending, lines):
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
    monkeypatch.setattr(plain, "length", len)  # every letter is one wide
    assert plain.wrap(text, 6, 2) == expected
