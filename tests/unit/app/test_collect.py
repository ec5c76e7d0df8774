"""Tests of a batch's report: contact sheet, table and statistics."""

import csv
import io

import numpy as np
import pytest
from adt_tree_pack.nodes import contact_sheet as collect
from PIL import Image

from adt_core.app.csv_tables import to_csv
from tests.command import read_json, read_table

COLORS = [(200, 30, 30), (30, 200, 30), (30, 30, 200), (200, 200, 30), (30, 200, 200)]
IMAGES = [Image.new("RGB", (64, 32), color) for color in COLORS]


FIGURES = dict(seed=1, tokens=16, tau=2.0, target_forwards=8, mean_depth=1.5, substitution_rate=0.0, mean_drafts=4.0)


def row(id: str, file: str, seconds: float, **more) -> dict:
    return {"id": id, "prompt": 'a "cat", a dog', **FIGURES, "seconds": seconds, "file": file, **more}


def test_all_statistics_are_written(tmp_path):
    rows = [row("1", "a.png", 2.0), row("x", "b.png", 1.0, tau=4.0), row("3", "a.png", 2.0)]
    paths = collect.write_report(rows, {"seed": 1}, collect.contact_sheet(IMAGES[:3], ["", "", ""]), tmp_path, "report")
    assert [path.name for path in paths] == ["report.csv", "report.json", "report.png"]
    table = read_table(paths[0])
    assert tuple(table[0]) == collect.COLUMNS and table[0]["prompt"] == 'a "cat", a dog'
    assert [line["id"] for line in table] == ["1", "x", "3"]
    report = read_json(paths[1])
    assert report["images"] == rows and report["settings"] == {"seed": 1}
    assert report["summary"] == {
        "images": 3,
        "distinct_images": 2,
        "left_out": 0,
        "seconds": 3.0,
        "tokens": 32,
        "tokens_per_second": pytest.approx(32 / 3),
        "tau": 3.0,
        "accepted_per_round": 2.0,
        "mean_depth": 1.5,
        "substitution_rate": 0.0,
    }


def test_skipped_prompts_are_in_the_report(tmp_path):
    left_out = [{"id": "2", "prompt": "=a b c", "note": "left out: prompt is 3 tokens long"}]
    rows = [row("1", "a.png", 2.0, note="cut to its first 3 of 9 characters", caption="a cat in")]
    sheet = collect.contact_sheet(IMAGES[:1], [""])
    table, figures, _ = collect.write_report(rows, {}, sheet, tmp_path, "report", left_out=left_out)
    drawn, other = read_table(table)
    assert drawn["note"] == rows[0]["note"] and (other["id"], other["note"]) == ("2", left_out[0]["note"])
    assert other["prompt"] == "'=a b c" and other["seconds"] == other["file"] == ""
    report = read_json(figures)
    assert report["left_out"] == left_out and report["images"] == rows
    assert (report["summary"]["left_out"], report["summary"]["seconds"]) == (1, 2.0)


def test_a_report_is_only_replaced_by_the_same_list(tmp_path):
    """A report may be replaced by that of a longer version of the list, but not if its list is unknown."""
    rows = [row("1", "a.png", 2.0), row("2", "b.png", 1.0)]

    def write(rows: list[dict], name: str = "report") -> str:
        own = collect.own_name(tmp_path, name, rows)
        collect.write_report(rows, {}, collect.contact_sheet(IMAGES[:1], [""]), tmp_path, own)
        return own

    assert write(rows) == "report"
    assert write([row("1", "c.png", 2.0)]) == "report-2", "the report of another list must not be replaced"
    first = (tmp_path / "report.json").read_bytes()
    assert write(rows[:1]) == "report-3", "the existing report has an image that this list lacks"
    assert (tmp_path / "report.json").read_bytes() == first
    assert write([*rows, row("3", "d.png", 1.0)]) == "report", "the report of a shorter version must be replaced"
    assert write([row("1", "c.png", 9.0)]) == "report-2", "a report with other statistics must not be replaced"
    (tmp_path / "report.json").write_text("[", encoding="utf-8")
    assert write([*rows, row("9", "e.png", 1.0)]) == "report-3" and write([row("5", "f.png", 1.0)]) == "report-4"
    (tmp_path / "sums.csv").write_text("of somebody else", encoding="utf-8")
    assert write(rows, "sums") == "sums-2" and (tmp_path / "sums.csv").read_text(encoding="utf-8") == "of somebody else"


@pytest.mark.parametrize(
    "prompt, cell",
    [
        ("=1+1", "'=1+1"),
        ("\uff1d1", "'\uff1d1"),
        ("\uff0b1", "'\uff0b1"),
        ("\uff0d1", "'\uff0d1"),
        ("\uff20a", "'\uff20a"),
        ("a cat;=1", "a cat;'=1"),
        ("a cat; @b", "a cat; '@b"),
        ('a cat;"=1"', 'a cat;"\'=1"'),
        ("a cat;\uff1d1;+2", "a cat;'\uff1d1;'+2"),
        ("a\n-1", "a\n'-1"),
        ("a\t=1", "a\t'=1"),
        (" =1", " '=1"),
        ("a-b = c; d", "a-b = c; d"),
    ],
)
def test_formulas_are_escaped(tmp_path, prompt, cell):
    """Some spreadsheet programs split lines at semicolons, and accept full-width signs as the start of a formula."""
    path, *_ = collect.write_report([row("1", "a.png", 1.0) | {"prompt": prompt}], {}, IMAGES[0], tmp_path, "report")
    assert [line["prompt"] for line in read_table(path)] == [cell]
    heading, *_ = csv.reader(io.StringIO(to_csv([prompt, "b"], []).decode()))
    assert heading == [cell, "b"]


def test_cells_of_other_types(tmp_path):
    """In an untrusted PNG, the seed may be a list of strings."""
    odd = [row("1", "a.png", 1.0) | {"seed": ["a;=1"]}, row("2", "b.png", 1.0) | {"seed": -1, "note": None}]
    path, *_ = collect.write_report(odd, {}, IMAGES[0], tmp_path, "report")
    one, other = read_table(path)
    assert one["seed"] == "['a;'=1']" and other["seed"] == "-1" and other["note"] == ""


def test_lone_surrogates_are_escaped(tmp_path):
    """Ids and skipped prompts may contain lone surrogates."""
    left_out = [{"id": "\ud800", "prompt": "a \udfff", "note": "left out"}]
    texts = {"prompt": "\ud800"}
    paths = collect.write_report([row("\ud83d", "a.png", 1.0)], {}, IMAGES[0], tmp_path, "r", texts, left_out)
    assert read_json(paths[1])["left_out"] == left_out
    assert [line["id"] for line in read_table(paths[0])] == ["\\ud83d", "\\ud800"]
    with Image.open(paths[2]) as sheet:
        assert sheet.info["prompt"] == "\\ud800"


@pytest.mark.parametrize("columns, shape", [(0, (3, 2)), (2, (2, 3)), (9, (5, 1))])
def test_positions_of_images_on_the_sheet(columns, shape):
    sheet = collect.contact_sheet(IMAGES, [""] * 5, columns, width=50)
    assert sheet.size == (shape[0] * 58 + 8, shape[1] * 33 + 8), "images have the aspect ratio 2:1 and gaps"
    for number, color in enumerate(COLORS):
        assert sheet.getpixel((8 + number % shape[0] * 58 + 25, 8 + number // shape[0] * 33 + 12)) == color


def test_labels_are_below_their_images_and_truncated():
    labels = ["", "7: " + "a very long caption " * 20, "", "", ""]
    sheet = np.asarray(collect.contact_sheet(IMAGES, labels, columns=5, width=100))
    ink = (sheet > 128).all(-1)
    columns = np.flatnonzero(ink.any(0))
    assert 116 <= columns.min() and columns.max() < 216, "the label must be only below the second image"
    assert not ink[:58].any() and ink[58:].any()


def test_sheets_of_relaxed_images_have_a_remark():
    rows = [row("1", "a.png", 2.0, relaxed=True, substitution_rate=rate) for rate in (0.02, 0.04)]
    assert collect.remark(rows) == "Relaxed (LANTERN): 3.0 % of the tokens replaced"
    assert collect.remark([row("1", "a.png", 2.0, relaxed=False)]) == ""
    plain, relaxed = (collect.contact_sheet(IMAGES, [""] * 5, remark=remark) for remark in ("", "Relaxed"))
    assert relaxed.height > plain.height
    assert (np.asarray(relaxed)[plain.height :] > 128).any(), "there is no line below the images"


def test_sheets_have_a_maximum_size():
    sheet = collect.contact_sheet(IMAGES * 20, ["x \U0010fffe"] * 100, columns=0, width=2048)
    assert max(sheet.size) <= collect.LONGEST_SIDE and sheet.size[0] > collect.LONGEST_SIDE * 0.9
