"""Tests of figures (measured numbers). The documents must contain the stored figures with their date and machine."""

import re

import pytest

from benchmarks.figures.__main__ import MARKED, PARTS, fill, load_figures, pages, render, rounded
from benchmarks.figures.methods import FIXED, MAIN, PAIRS, SPEED

FIGURES = load_figures()


def test_documents_show_the_stored_figures():
    texts = render(FIGURES)
    stale = [page.name for page in pages() if fill(page.read_text("utf-8"), texts) != page.read_text("utf-8")]
    assert not stale, "run python -m benchmarks.figures --write"


def test_every_part_is_stored_with_its_origin_and_every_table_is_shown():
    assert list(FIGURES) == list(PARTS)
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages())
    assert {match[1] for match in MARKED.finditer(text)} == set(render(FIGURES))
    assert text.count("<!-- figures: ") == text.count("<!-- /figures -->") == len(MARKED.findall(text))
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d", part["day"]) and part["count"] > 0 for part in FIGURES.values())


def test_fill_replaces_the_text_between_markers():
    page = "A <!-- figures: a -->1<!-- /figures --> b\n<!-- figures: t -->\n| old |\n\n*when*\n<!-- /figures -->\nend\n"
    once = fill(page, {"a": "2", "t": "| x |\n\n*now*"})
    assert once == page.replace(">1<", ">2<").replace("old", "x").replace("when", "now")
    assert fill(once.replace("\n| x |\n\n*now*\n", ""), {"a": "1", "t": "| old |\n\n*when*"}) == page
    with pytest.raises(KeyError):
        fill(page, {"a": "2"})


def test_stored_floats_have_six_digits():
    assert rounded({"a": [1.23456789, 12345678, True, None, "1.23456789"]}) == {
        "a": [1.23457, 12345678, True, None, "1.23456789"]
    }


def test_every_compared_method_is_measured():
    assert {name for pair in PAIRS for name in pair} | set(SPEED) <= set(MAIN)
    assert len({preset.drafting.settings.drafts for preset in FIXED.values()}) == 1
