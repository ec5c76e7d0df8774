"""Tests of lists of prompts that somebody made to stop a program: each is refused in one sentence and little memory."""

import json
import time
import tracemalloc

import pytest

from adt_core.app import prompts as prompts_module
from adt_core.app.csv_tables import LONGEST_CELL, to_csv
from adt_core.app.prompt_remarks import remarks
from adt_core.app.prompts import PromptEntry, parse_lines, read_all
from tests.raising import raises_key


class Cancelled(Exception):
    pass


def cancel():
    raise Cancelled


def test_line_ends_need_no_memory_and_little_time(tmp_path):
    path = tmp_path / "p.txt"
    path.write_bytes(b"\n" * 5_000_000 + b"a cat\r\n\ra dog")
    tracemalloc.start()
    began = time.process_time()
    found = read_all(path)
    assert time.process_time() - began < 2
    assert tracemalloc.get_traced_memory()[1] < 50e6
    tracemalloc.stop()
    assert found == [PromptEntry("5000001", "a cat"), PromptEntry("5000003", "a dog")]


@pytest.mark.parametrize("suffix", [".txt", ".jsonl", ".json", ".csv"])
def test_reading_is_cancelled(tmp_path, suffix):
    content = {".txt": "a\n", ".jsonl": '"a"\n', ".json": '["a"]', ".csv": "prompt\na\n"}[suffix]
    (tmp_path / f"p{suffix}").write_text(content, encoding="utf-8")
    with pytest.raises(Cancelled):
        read_all(tmp_path / f"p{suffix}", check=cancel)


def test_the_number_of_prompts_is_limited(tmp_path, monkeypatch):
    monkeypatch.setattr(prompts_module, "MAX_ENTRIES", 3)
    with raises_key("prompts.too_many", most=3):
        parse_lines("a\nb\nc\nd")
    assert len(parse_lines("a\nb\n\n\nc")) == 3
    (tmp_path / "p.json").write_text("[null, null, null, null]", encoding="utf-8")
    with raises_key("prompts.too_many", most=3):
        read_all(tmp_path / "p.json")


@pytest.mark.parametrize(
    "value",
    [
        5,
        {},
        {"annotations": 1},
        {"annotations": {"a": 1}},
        {"annotations": [1]},
        {"annotations": [{}]},
        {"annotations": [{"image_id": 1, "caption": "a"}]},
        {"annotations": [{"image_id": [], "id": 1, "caption": "a"}]},
        {"annotations": [{"image_id": 1, "id": 1, "caption": "a"}, {"image_id": "b", "id": 1, "caption": "a"}]},
        [{"id": [[1]], "prompt": "a"}],
        [{"id": {"a": "\x1b[2J"}, "prompt": "a"}],
    ],
)
def test_json_of_another_shape_is_described(tmp_path, value):
    (tmp_path / "p.json").write_text(json.dumps(value), encoding="utf-8")
    with raises_key("prompts.bad_format", path="p.json", reason="expected") as refused:
        read_all(tmp_path / "p.json")
    assert str(refused.value).isprintable()


@pytest.mark.parametrize("depth", [*range(900, 1000, 10), 5000])
def test_nested_values_are_described(tmp_path, depth):
    (tmp_path / "p.jsonl").write_text("[" * depth + "]" * depth, encoding="utf-8")
    with raises_key("prompts.bad_format"):
        read_all(tmp_path / "p.jsonl")


def test_ids_and_cells_are_cut(tmp_path):
    (tmp_path / "p.jsonl").write_text(json.dumps({"id": "a" + "\t" * 60_000, "prompt": "a cat"}), encoding="utf-8")
    assert len(read_all(tmp_path / "p.jsonl")[0].id) == 200
    began = time.process_time()
    table = to_csv(["id"], [{"id": "a" + "\t" * 1_000_000 + "a"}])
    assert time.process_time() - began < 1
    assert len(table) < LONGEST_CELL + 20


def test_a_stray_quotation_mark_is_found(tmp_path):
    rows = [f'{n},"a cat, {n}"' for n in range(30)]
    rows[20] = '20,"a cat'
    (tmp_path / "p.csv").write_text("\n".join(["id,prompt", *rows]), encoding="utf-8")
    with raises_key("prompts.bad_format", reason="the row that begins in line 22"):
        read_all(tmp_path / "p.csv")
    rows = [*(f"{n},{n}" for n in range(20)), '20,"a cat', *"abcdefghijkl", 'x"']
    (tmp_path / "p.csv").write_text("\n".join(["id,prompt", *rows]), encoding="utf-8")
    assert "stray quotation mark" in remarks(read_all(tmp_path / "p.csv"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("\ufeffa cat", "invisible"),
        ("a c\u200bat", "invisible"),
        ("a cat\u200d", "invisible"),
        ("a (red house:1.3)", "weight"),
        ("\N{WOMAN}\u200d\N{ROCKET}", ""),
        ("a cat (at 10:30)", ""),
        ("a cat (small)", ""),
    ],
)
def test_odd_texts_get_a_remark(text, words):
    found = remarks([PromptEntry("7", text), PromptEntry("8", "a dog")])
    assert words in found if words else not found
    assert not words or ("'7'" in found and found.isprintable())
