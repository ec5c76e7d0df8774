"""Tests of warnings about prompts and sizes outside of the training data, and of the bundled model's vocabulary."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from adt_core import load_target
from adt_core.app.prompts import BUNDLED_CAPTIONS, read_prompts
from adt_core.app.training_domain import domain_warning
from adt_core.models.load import FAMILIES, bundled_words
from model_making import captions
from model_making.export import write_words
from model_making.prompts import PROMPTS, TEMPLATES
from tests.layouts.lumina import write_lumina
from tests.tiny import write_tiny_checkpoint

NOTHING = "This small model draws houses, boats, balloons, mugs and the like"
WORDS = Path(captions.__file__).parents[1] / "adt_core" / "bundled" / "words.json"


@pytest.fixture(scope="module")
def bundled():
    return load_target()


def test_words_json_equals_the_training_vocabulary(tmp_path):
    write_words(tmp_path / "words.json")
    assert (tmp_path / "words.json").read_text(encoding="utf-8") == WORDS.read_text(encoding="utf-8"), (
        "update the file with model_making.export.write_words"
    )
    words = bundled_words()
    assert {kind: sorted(getattr(words, kind)) for kind in words._fields} == captions.known_words()
    assert frozenset().union(*words) > {*captions.vocabulary()} - {captions.UNKNOWN}
    assert sum(map(len, words)) == len(frozenset().union(*words)), "a word is in the lists of two kinds"


def test_kinds_of_words():
    words = bundled_words()
    assert {*"house boats mug dinghy trees fruits fruit balloon lamp".split()} < words.things
    assert {*"snow city sea forest table kitchen night coffee".split()} < words.scenery
    assert {*"a the on left middle background red golden hot white".split()} < words.others


def test_every_name_contains_a_word_of_its_kind():
    words = bundled_words()
    kinds = [(captions.OBJECT_NAMES, words.things), (captions.COLOUR_NAMES, words.others)]
    around = "GROUND_NAMES SKY_NAMES BACKDROP_NAMES WALL_NAMES TABLE_NAMES".split()
    kinds += [(getattr(captions, table), words.scenery | words.things) for table in around]
    for table, vocabulary in kinds:
        names = {name for options in table.values() for name in options if name}
        assert [name for name in names if not vocabulary & {*name.split()}] == []


@pytest.mark.parametrize(
    "prompt, things",
    [
        ("blue mug and a potted plant", "plant"),
        ("two sailboats, a lighthouse", "lighthouse; one of two sailboats"),
        ("a dragon beside a house", "dragon"),
        ("a lake at sunset with a cat's tail", "cat, tail"),
        ("red_cat beside a mug", "cat"),
        ("猫 house", "猫"),
        ("three small red houses", "two of three houses"),
        ("2 cars", "1 of 2 cars"),
        ("a pair of mugs", "all but one of the mugs"),
        ("houses and boats", "all but one of the houses; all but one of the boats"),
        ("house " + "x" * 30, "x" * 19 + "…"),
        (
            "house " + " ".join(letter * 2 for letter in "bcdefghijkl"),
            "bb, cc, dd, ee, ff, gg, hh, ii, jj, kk and others",
        ),
    ],
)
def test_what_is_not_drawn_is_reported_although_other_things_are(bundled, prompt, things):
    assert domain_warning(bundled, [prompt]) == f"Not drawn: {things}."


@pytest.mark.parametrize(
    "prompt, start",
    [("a cat", "Not drawn: cat. "), ("房子", "Not drawn: 房子. "), ("2024", ""), ("!?", ""), ("red", "")],
)
def test_prompts_that_name_nothing_known_are_reported(bundled, prompt, start):
    assert domain_warning(bundled, [prompt]) == f"{start}{NOTHING}; the prompt names nothing that it knows."


@pytest.mark.parametrize(
    "prompt",
    ["a house", "1 car", "", " \n", "a beautiful sunset over the sea, 4k", "a lake at sunset", "a vase of flowers"]
    + ["many trees and a bowl of fruits", "2mugs", "a photo of a tall old house with hills and mountains"],
)
def test_prompts_of_which_everything_is_drawn_are_not_reported(bundled, prompt):
    """Blank prompts are rejected elsewhere, so they cause no warning."""
    assert domain_warning(bundled, [prompt]) == ""


def test_ordinary_prompts_are_reported_only_for_things_that_the_scorer_does_not_count(bundled):
    words = {prompt.text: domain_warning(bundled, [prompt.text]) for prompt in (*PROMPTS, *TEMPLATES)}
    assert {warning for warning in words.values() if warning} == {"Not drawn: child.", "Not drawn: grandmother."}


def test_bundled_captions_are_not_reported(bundled):
    assert domain_warning(bundled, read_prompts(BUNDLED_CAPTIONS, "all")) == ""


def test_what_is_not_drawn_comes_before_other_remarks(bundled):
    assert domain_warning(replace(bundled, trained=(1, 1), grid=(8, 8)), ["a cat"]).startswith("Not drawn: cat. ")


def test_prompts_of_a_list_are_counted(bundled):
    warning = domain_warning(bundled, ["a cat", "a house", "a dog by two mugs"])
    start = "Not drawn in 2 of 3 prompts: cat, dog; one of two mugs."
    assert warning == f"{start} {NOTHING}; 1 of 3 prompts name nothing that it knows."
    assert len(domain_warning(bundled, ["xyz " * 99])) < 200


def test_models_without_a_vocabulary_report_no_prompts(bundled, tmp_path):
    write_tiny_checkpoint(tmp_path / "bundled")
    for folder in (tmp_path / "bundled", WORDS.parent / "target"):
        assert domain_warning(load_target(folder), ["a cat"]) == ""
    assert bundled.sized(128, 128).words == bundled.words


# ---- sizes -------------------------------------------------------------------------------------------

TRAINED = {family.name: family.trained for family in FAMILIES}


def warning_for(family, width, height, usual, side, name="A model"):
    """Return the warning about an image size, for a model of a family whose default image is a square."""
    grid = height // side, width // side
    usual_grid = (usual // side, usual // side)
    attributes = {"name": name, "grid": grid, "usual_grid": usual_grid, "downsample": side, "words": frozenset()}
    return domain_warning(SimpleNamespace(**attributes, trained=TRAINED[family]), ["a cat"])


@pytest.mark.parametrize("size", [(512, 512), (256, 256), (512, 1024), (768, 768), (2048, 256)])
def test_sizes_outside_of_the_training_range_are_reported(size):
    warning = warning_for("glm-image", *size, 1024, 32, "GLM-Image")
    assert warning == (
        "GLM-Image was trained for images of about as many pixels as 1024x1024 to 2048x2048; "
        f"{size[0]}x{size[1]} is outside of that, so the image may look worse."
    )


@pytest.mark.parametrize("size", [(1024, 1024), (1152, 896), (2048, 2048), (2048, 512), (1536, 1024), (1024, 832)])
def test_sizes_in_the_training_range_are_not_reported(size):
    assert warning_for("glm-image", *size, 1024, 32) == ""


@pytest.mark.parametrize(
    "family, usual, side, reported, accepted",
    [
        ("lumina-mgpt", 768, 16, (512, 512), (1024, 512)),
        ("lumina-mgpt-2", 768, 8, (512, 512), (1024, 512)),
        ("emu3", 720, 8, (512, 512), (960, 544)),
    ],
)
def test_families_with_one_number_of_pixels(family, usual, side, reported, accepted):
    assert f"as many pixels as {usual}x{usual}; {reported[0]}x{reported[1]} is outside" in warning_for(
        family, *reported, usual, side
    )
    assert warning_for(family, *accepted, usual, side) == warning_for(family, usual, usual, usual, side) == ""


def test_families_without_a_training_range_report_nothing():
    unknown = {name for name, trained in TRAINED.items() if trained is None}
    assert unknown == {"chameleon", "llamagen", "janus", "liquid"}
    assert warning_for("chameleon", 64, 64, 512, 16) == ""


def test_a_loaded_model_has_the_training_range_of_its_family(tmp_path):
    target = load_target(write_lumina(tmp_path / "Lumina-mGPT-7B-768"))
    assert domain_warning(target, ["a cat"]) == ""
    assert domain_warning(target.sized(128, 64), ["a cat"]).startswith(
        f"{target.name} was trained for images of about as many"
    )
