"""The documents show the figures that are kept, and say where they come from."""

import re

import pytest

from adt_core.lab.benchmark import PRESETS
from adt_core.policies import PLAIN
from benchmarks.figures.__main__ import MARKED, PARTS, filled, kept, pages, short, shown
from benchmarks.figures.methods import CHANGES, FIXED, MAIN, PAIRS, SPEED, bounds, changed, relaxed

FIGURES = kept()


def test_the_documents_show_what_is_kept():
    texts = shown(FIGURES)
    stale = [
        page.name for page in pages() if filled(page.read_text(encoding="utf-8"), texts) != page.read_text("utf-8")
    ]
    assert not stale, "python -m benchmarks.figures --write"


def test_every_part_is_kept_and_every_table_shown():
    """With where it comes from. No marker is left open."""
    assert list(FIGURES) == list(PARTS)
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages())
    assert {it[1] for it in MARKED.finditer(text)} == set(shown(FIGURES))
    assert text.count("<!-- figures: ") == text.count("<!-- /figures -->") == len(MARKED.findall(text))
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d", part["day"]) and part["count"] > 0 for part in FIGURES.values())


def test_a_document_is_filled_between_its_markers():
    page = "A <!-- figures: a -->1<!-- /figures --> b\n<!-- figures: t -->\n| old |\n\n*when*\n<!-- /figures -->\nend\n"
    once = filled(page, {"a": "2", "t": "| x |\n\n*now*"})
    assert once == page.replace(">1<", ">2<").replace("old", "x").replace("when", "now")
    assert filled(once.replace("\n| x |\n\n*now*\n", ""), {"a": "1", "t": "| old |\n\n*when*"}) == page
    with pytest.raises(KeyError):
        filled(page, {"a": "2"})


def test_numbers_are_kept_short():
    assert short({"a": [1.23456789, 12345678, True, None, "1.23456789"]}) == {
        "a": [1.23457, 12345678, True, None, "1.23456789"]
    }


def test_what_is_compared_is_run():
    assert {name for pair in PAIRS for name in pair} | set(SPEED) <= set(MAIN)
    assert len({preset.drafting.settings.nodes for preset in FIXED.values()}) == 1
    assert all(
        preset.drafting != PRESETS[name].drafting for name in CHANGES for preset in list(changed(name).values())[1:]
    )
    assert len(relaxed()) == len({(preset.drafting, preset.lantern, preset.source) for preset in relaxed().values()})


def test_bounds_are_of_tokens_alone():
    rows = [
        {"method": PLAIN, "target_forwards": 320.0, "drafter_forwards": 0.0},
        {"method": "fast", "target_forwards": 100.0, "drafter_forwards": 320.0},
    ]
    assert bounds(rows) == [[PLAIN, 1.0, 1.0], ["fast", 3.2, 320 / 110]]
