"""Prompt files: every layout that is read, and what is said of a file that can't be."""

import json

import pytest

from adt_core.errors import AdtError
from adt_core.prompts import read_prompts, sample


def test_plain_text(tmp_path):
    (tmp_path / "p.txt").write_text("\ufeffa cat \n\n  a dog\n", encoding="utf-8")
    assert read_prompts(tmp_path / "p.txt") == ["a cat", "a dog"]


@pytest.mark.parametrize("caption, expected", [("first", ["a cat", "dogs"]), ("longest", ["a cat on a mat", "dogs"])])
def test_coco_captions_one_per_image(tmp_path, caption, expected):
    annotations = [{"image_id": 9, "id": 4, "caption": "dogs"}, {"image_id": 3, "id": 7, "caption": "a cat on a mat"},
                   {"image_id": 3, "id": 2, "caption": "a cat\n"}]
    (tmp_path / "captions_val2017.json").write_text(json.dumps({"images": [], "annotations": annotations}))
    assert read_prompts(tmp_path / "captions_val2017.json", caption=caption) == expected


def test_parti_prompts(tmp_path):
    (tmp_path / "PartiPrompts.tsv").write_text('Prompt\tCategory\tChallenge\tNote\nbond\tAbstract\tBasic\t\na sign that says "Hi"\tWorld\tWriting\tx\n')
    assert read_prompts(tmp_path / "PartiPrompts.tsv") == ["bond", 'a sign that says "Hi"']


def test_json_lines_and_lists(tmp_path):
    (tmp_path / "p.jsonl").write_text('"a cat"\n\n{"prompt": "a dog", "id": 1}\n{"caption": "a cow"}\n')
    assert read_prompts(tmp_path / "p.jsonl") == ["a cat", "a dog", "a cow"]
    (tmp_path / "p.json").write_text('["a cat", "a dog"]')
    assert read_prompts(tmp_path / "p.json") == ["a cat", "a dog"]


@pytest.mark.parametrize("name, text", [("a.json", "{"), ("a.json", "{}"), ("a.json", '{"annotations": [1]}'), ("a.json", "[1]"),
                                        ("a.jsonl", "{}"), ("a.jsonl", "1"), ("a.tsv", "Text\tx\nhi\t1\n"), ("a.txt", " \n"), ("a.json", "[]")])
def test_what_is_not_a_prompt_file_is_named(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    with pytest.raises(AdtError, match=f"--prompts: .*{name}"):
        read_prompts(tmp_path / name)


def test_a_sample_is_fixed_by_its_seed():
    prompts = [str(i) for i in range(50)]
    assert sample(prompts, 5, 1) == sample(prompts, 5, 1) != sample(prompts, 5, 2)
    assert sorted(sample(prompts, 99, 1)) == sorted(prompts)
