"""The records of a benchmark survive whatever happens to their file."""

import json
import logging

import pytest

from adt_core.app import records
from adt_core.app.records import RUNS, append, open_records
from adt_core.errors import AdtError

SETTINGS = {"prompts": ["a cat", "a dog", "a cow"], "methods": {"autoregressive": {}, "eagle2": {}}}


def record(number: int, **changes) -> dict:
    runs = {name: {"seconds": 1.0 + number, "picture": f"images/{name}/{number}.png"} for name in SETTINGS["methods"]}
    return {"prompt": number, "text": SETTINGS["prompts"][number], "runs": runs} | changes


@pytest.fixture
def folder(tmp_path):
    """With the pictures of all prompts, and the records of the first two; two folders above lies another picture."""
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


def test_records_come_back(folder):
    before = (folder / RUNS).read_bytes()
    assert open_records(folder, SETTINGS) == [record(0), record(1)]
    assert (folder / RUNS).read_bytes() == before


def test_a_record_whose_picture_is_gone_is_left_out(folder):
    (folder / record(0)["runs"]["eagle2"]["picture"]).unlink()
    assert open_records(folder, SETTINGS) == [record(1)]


def test_half_a_record_is_passed_over(folder):
    with (folder / RUNS).open("a") as file:
        file.write(json.dumps(record(2))[:-9])
    before = (folder / RUNS).read_bytes()
    assert open_records(folder, SETTINGS) == [record(0), record(1)]
    append(folder, record(2))
    assert open_records(folder, SETTINGS) == [record(number) for number in range(3)]
    assert (folder / RUNS).read_bytes().startswith(before), "the file is only added to: others may write it too"


@pytest.mark.parametrize(
    "line",
    [
        "",
        "nonsense",
        "[" * 100_000,
        "[1]",
        json.dumps(record(2, prompt=7)),
        json.dumps(record(2, prompt=True)),
        json.dumps(record(2, text="another")),
        json.dumps(record(2, runs={})),
        json.dumps(record(2, runs=dict.fromkeys(SETTINGS["methods"], 1))),
        json.dumps(record(2, runs=dict.fromkeys(SETTINGS["methods"], {"picture": "../../secret.png"}))),
        json.dumps(record(2, runs=dict.fromkeys(SETTINGS["methods"], {"picture": "/secret.png"}))),
        json.dumps(record(0)),
        "\ufffd\x00",
    ],
    ids=range(13),
)
def test_a_damaged_or_second_record_is_left_out(folder, line):
    with (folder / RUNS).open("a", encoding="utf-8") as file:
        file.write(line + "\n")
    append(folder, record(2))
    before = (folder / RUNS).read_bytes()
    assert open_records(folder, SETTINGS) == [record(number) for number in range(3)]
    assert (folder / RUNS).read_bytes() == before


@pytest.mark.parametrize("damage", [b"", b"\0\0\0", b"{}\n", b'{"settings": 1}\n', b"\xff\xfe{"], ids=range(5))
def test_records_whose_settings_are_damaged_stay_in_the_file_and_count_for_nothing(folder, damage, caplog):
    lost = damage + (folder / RUNS).read_bytes()[5:]
    (folder / RUNS).write_bytes(lost)
    with caplog.at_level(logging.WARNING):
        assert open_records(folder, SETTINGS) == []
    assert "runs.jsonl' is damaged" in caplog.text
    append(folder, record(2))
    assert open_records(folder, SETTINGS) == [record(2)]
    assert (folder / RUNS).read_bytes().startswith(lost)


def test_of_two_that_begin_a_file_the_first_decides_what_it_is_for(tmp_path, monkeypatch):
    add, others = records.append, SETTINGS | {"prompts": ["a cat"]}

    def late(folder, content):
        add(folder, {"settings": others})  # another process, since this one has looked
        add(folder, content)

    with monkeypatch.context() as patch:
        patch.setattr(records, "append", late)
        with pytest.raises(AdtError, match="other settings"):
            open_records(tmp_path, SETTINGS)
    assert open_records(tmp_path, others) == []


def test_records_of_other_settings_are_never_mixed(folder):
    before = (folder / RUNS).read_bytes()
    with pytest.raises(AdtError, match="other settings"):
        open_records(folder, SETTINGS | {"prompts": ["a cat"]})
    assert (folder / RUNS).read_bytes() == before
