"""What the bundled model knows, and who is told that a prompt asks for nothing of that."""

from pathlib import Path

import pytest

from adt_core import load_target
from adt_core.app.known import bundled_words, remark
from adt_core.app.prompts import BUNDLED_CAPTIONS, read_prompts
from model_making import wording
from model_making.export import write_words
from tests.tiny import write_tiny_checkpoint

TOLD = "This small model knows houses, boats, balloons, mugs and the like, and drew something else for "
WORDS = Path(wording.__file__).parents[1] / "adt_core" / "bundled" / "words.json"


@pytest.fixture(scope="module")
def bundled():
    return load_target()


def test_the_file_has_the_words_that_the_model_is_taught(tmp_path):
    write_words(tmp_path / "words.json")
    assert (tmp_path / "words.json").read_text(encoding="utf-8") == WORDS.read_text(encoding="utf-8"), (
        "write it anew: model_making.export.write_words"
    )
    assert bundled_words() == {*wording.naming_words()} < {*wording.vocabulary()}
    assert bundled_words().isdisjoint("a an the on of with left right middle background".split())


def test_every_name_has_a_word_that_says_it():
    assert all(bundled_words() & {*name.split()} for name in wording.naming_phrases() if name)


@pytest.mark.parametrize(
    "prompt",
    [
        "a cat",
        "cat2024",
        "2024",
        "!?",
        "房子",
        "дом",
        "a portrait of the queen on the left",
        "redhead",
        "carpet, bowling",
    ],
)
def test_a_prompt_without_a_known_word_is_told(bundled, prompt):
    assert remark(bundled, [prompt]) == f"{TOLD}{prompt!r}."


@pytest.mark.parametrize(
    "prompt", ["a house", "CATS IN THE RAIN", "a cat, blue", "red_cat", "2mugs", "猫 house", "", " \n"]
)
def test_others_are_not(bundled, prompt):
    """A blank one is refused or left out elsewhere."""
    assert remark(bundled, [prompt]) == ""


def test_captions_of_the_pack_are_not(bundled):
    assert remark(bundled, read_prompts(BUNDLED_CAPTIONS, "all")) == ""


def test_those_of_a_list_are_counted_and_the_first_are_named(bundled):
    assert remark(bundled, ["a cat", "a house", "a dog"]) == f"{TOLD}2 of 3 prompts: 'a cat', 'a dog'."
    said = remark(bundled, ["a cat", "a cat", "a house", *"bcd", "x" * 99])
    assert said == f"{TOLD}6 of 7 prompts: 'a cat', 'b', 'c' and others."
    assert len(remark(bundled, ["x" * 99])) < len(TOLD) + 50


def test_other_models_know_all_words(bundled, tmp_path):
    write_tiny_checkpoint(tmp_path / "bundled")
    for folder in (tmp_path / "bundled", WORDS.parent / "target"):
        assert remark(load_target(folder), ["a cat"]) == ""
    assert bundled.sized(128, 128).words == bundled.words
