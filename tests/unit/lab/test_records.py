"""Tests of benchmark records in damaged, incomplete and shared files."""

import json
import logging
import math

import pytest

from adt_core.lab import records
from adt_core.lab.records import RUNS, append, open_records
from adt_core.lab.report import summary, table
from tests.raising import raises_key

METHODS = "no-drafting", "eagle2"
SETTINGS = {"prompts": ["a cat", "a dog", "a cow"], "methods": dict.fromkeys(METHODS), "grid": [1, 2], "metrics": ["m"]}
FIGURES = {**dict.fromkeys(records.FIGURES, 1), "acceptance": [[1.0, 2.0]], "quality": {"score": [0.5, 1]}}


def record(number: int, figures: dict | None = None, **changes) -> dict:
    """Return a valid record of a prompt, with other statistics of the second method, and other fields."""
    run = FIGURES | {"seconds": 1.0 + number}
    runs = {name: run | {"picture": f"images/{name}/{number}.png"} for name in METHODS}
    runs["eagle2"] |= figures or {}
    return {"prompt": number, "text": SETTINGS["prompts"][number], "runs": runs} | changes


@pytest.fixture
def folder(tmp_path):
    """Return a folder with images of all prompts and records of the first two. Another image is two folders above."""
    folder = tmp_path / "results" / "of today"
    for number in range(3):
        for run in record(number)["runs"].values():
            (folder / run["picture"]).parent.mkdir(parents=True, exist_ok=True)
            (folder / run["picture"]).touch()
    (tmp_path / "secret.png").touch()
    assert open_records(folder, SETTINGS) == []
    for number in range(2):
        append(folder, record(number))
    return folder


def test_records_are_read(folder):
    before = (folder / RUNS).read_bytes()
    assert open_records(folder, SETTINGS) == [record(0), record(1)]
    assert (folder / RUNS).read_bytes() == before


def test_shards_have_files_of_their_own_and_every_run_reads_all(folder):
    before = (folder / RUNS).read_bytes()
    assert open_records(folder, SETTINGS, (3, 3)) == [record(0), record(1)]
    append(folder, record(2), (3, 3))
    assert (folder / RUNS).read_bytes() == before and (folder / "runs-3-of-3.jsonl").exists()
    assert open_records(folder, SETTINGS, (1, 3)) == open_records(folder, SETTINGS) == [*map(record, (2, 0, 1))]
    with raises_key("benchmark.other_settings"):
        open_records(folder, SETTINGS | {"prompts": ["a cat"]}, (2, 3))


def test_records_without_an_image_are_ignored(folder):
    (folder / record(0)["runs"]["eagle2"]["picture"]).unlink()
    assert open_records(folder, SETTINGS) == [record(1)]


def test_incomplete_records_are_ignored(folder):
    with (folder / RUNS).open("a", encoding="utf-8") as file:
        file.write(json.dumps(record(2))[:-9])
    before = (folder / RUNS).read_bytes()
    assert open_records(folder, SETTINGS) == [record(0), record(1)]
    append(folder, record(2))
    assert open_records(folder, SETTINGS) == [record(number) for number in range(3)]
    assert (folder / RUNS).read_bytes().startswith(before), "other processes may append to the file"


ODD_RUNS = 1, {"picture": "../../secret.png"}, {"picture": "/secret.png"}


@pytest.mark.parametrize(
    "line",
    [
        "",
        "nonsense",
        "[" * 100_000,
        "[1]",
        *(json.dumps(record(2, **change)) for change in ({"prompt": 7}, {"prompt": True}, {"text": "another"})),
        json.dumps(record(2, runs={})),
        *(json.dumps(record(2, runs=dict.fromkeys(METHODS, run))) for run in ODD_RUNS),
        json.dumps(record(0)),
        "\ufffd\x00",
    ],
    ids=range(13),
)
def test_damaged_and_duplicate_records_are_ignored(folder, line):
    with (folder / RUNS).open("a", encoding="utf-8") as file:
        file.write(line + "\n")
    append(folder, record(2))
    before = (folder / RUNS).read_bytes()
    assert open_records(folder, SETTINGS) == [record(number) for number in range(3)]
    assert (folder / RUNS).read_bytes() == before


HUGE = 10**400
ODD = [
    *({name: value} for name in records.FIGURES for value in (None, "1", [], {}, True, math.nan, math.inf, -1, HUGE)),
    *({"seconds": value} for value in (0, 1e-300, 1e300)),
    *({name: 1.5} for name in ("agreement", "substitution_rate")),
    *({"acceptance": value} for value in (None, 1, [], [[1]], [[1, 2], [3]], [[1, None]], [[1, HUGE]], ["12"])),
    *({"quality": value} for value in (None, [], {}, {"a": 1}, {"a": [1]}, {"a": [1, 0]}, {"a": [HUGE, 1]})),
    *({"quality": {name: [1, 1]}} for name in ("method", "identical", "a\nb", "\ud800", "x" * 101)),
    *({"profile": value} for value in (1, {}, {"decodings": "many"})),
    *({"picture": value} for value in (None, 5, [], "", "x" * 5000, "a\0b")),
]  # fmt: skip


@pytest.mark.parametrize("odd", ODD, ids=range(len(ODD)))
def test_invalid_statistics_are_reported_and_measured_again(folder, odd, caplog):
    append(folder, record(2, figures=odd))
    with caplog.at_level(logging.WARNING):
        assert open_records(folder, SETTINGS) == [record(0), record(1)]
    assert f"'{folder / RUNS}' has invalid results for 1 prompts" in caplog.text
    append(folder, record(2))
    found = open_records(folder, SETTINGS)
    assert [row["method"] for row in summary(found)] == list(METHODS)


@pytest.mark.parametrize("other", [{"other score": [1, 1]}, {"score": [1, 1], "more": [1, 1]}])
def test_scores_that_some_records_lack_are_not_columns(folder, other):
    append(folder, record(2, figures={"quality": other}))
    found = open_records(folder, SETTINGS)
    assert len(found) == 3 and all("more" not in row and "other score" not in row for row in summary(found))
    for some in (found, found[2:]):  # the methods of the last record have other scores
        table([*summary(some)], len(some))


@pytest.mark.parametrize("damage", [b"", b"\0\0\0", b"{}\n", b'{"settings": 1}\n', b"\xff\xfe{"], ids=range(5))
def test_records_with_damaged_settings_are_ignored_but_not_deleted(folder, damage, caplog):
    damaged = damage + (folder / RUNS).read_bytes()[5:]
    (folder / RUNS).write_bytes(damaged)
    with caplog.at_level(logging.WARNING):
        assert open_records(folder, SETTINGS) == []
    assert "runs.jsonl' is damaged" in caplog.text
    append(folder, record(2))
    assert open_records(folder, SETTINGS) == [record(2)]
    assert (folder / RUNS).read_bytes().startswith(damaged)


def test_the_first_of_two_processes_determines_the_settings(tmp_path, monkeypatch):
    add = records.append
    others = SETTINGS | {"prompts": ["a cat"]}

    def late(folder, content, *shard):
        add(folder, {"settings": others}, *shard)  # another process writes it after this process has read the file
        add(folder, content, *shard)

    with monkeypatch.context() as patch:
        patch.setattr(records, "append", late)
        with raises_key("benchmark.other_settings"):
            open_records(tmp_path, SETTINGS)
    assert open_records(tmp_path, others) == []


def test_records_with_other_settings_are_rejected(folder):
    before = (folder / RUNS).read_bytes()
    with raises_key("benchmark.other_settings", name="prompts", saved="['a cat', 'a dog', 'a cow']"):
        open_records(folder, SETTINGS | {"prompts": ["a cat"]})
    with raises_key("benchmark.other_settings", name="commit", saved="None", value="'a1b2'"):
        open_records(folder, SETTINGS | {"commit": "a1b2"})
    assert (folder / RUNS).read_bytes() == before
