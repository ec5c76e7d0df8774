"""Tests of warnings about prompts and sizes outside of the training data, and of the bundled model's vocabulary."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from adt_core import load_target
from adt_core.app.prompts import BUNDLED_CAPTIONS, read_prompts
from adt_core.app.training_domain import domain_warning
from adt_core.models.load import FAMILIES, bundled_words
from model_making import captions
from model_making.export import write_words
from tests.layouts.lumina import write_lumina
from tests.tiny import write_tiny_checkpoint

WARNING = "This small model knows houses, boats, balloons, mugs and the like, and drew something else for "
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
    "prompt, unknown",
    [
        ("a cat", "cat"),
        ("cat2024", "cat2024"),
        ("2024", ""),
        ("!?", ""),
        ("房子", "房子"),
        ("дом", "дом"),
        ("a portrait of the queen on the left", "portrait, queen"),
        ("redhead", "redhead"),
        ("carpet, bowling", "carpet, bowling"),
        ("red", ""),
        ("red_cat", "cat"),
        ("a cat, blue", "cat"),
        ("CATS IN THE RAIN", "cats"),
        ("a cat's tail", "cat's, tail"),
        ("elf queen riding a dragon, neon city", "elf, queen, riding, dragon, neon"),
        ("x" * 30, "x" * 19 + "…"),
        (" ".join("bcdefghijkl"), ""),
        (" ".join(letter * 2 for letter in "bcdefghijkl"), "bb, cc, dd, ee, ff, gg, hh, ii, jj, kk and others"),
    ],
)
def test_prompts_without_a_known_object_are_reported(bundled, prompt, unknown):
    assert domain_warning(bundled, [prompt]) == f"{WARNING}{prompt!r}." + (
        f" Unknown words: {unknown}." if unknown else ""
    )


@pytest.mark.parametrize(
    "prompt",
    ["a house", "a dragon beside a house", "2mugs", "猫 house", "", " \n", "a beautiful sunset over the sea, 4k"],
)
def test_prompts_with_a_known_object_or_scenery_are_not_reported(bundled, prompt):
    """Blank prompts are rejected elsewhere, so they cause no warning."""
    assert domain_warning(bundled, [prompt]) == ""


def test_bundled_captions_are_not_reported(bundled):
    assert domain_warning(bundled, read_prompts(BUNDLED_CAPTIONS, "all")) == ""


def test_prompts_of_a_list_are_counted_and_the_first_are_quoted(bundled):
    warning = domain_warning(bundled, ["a cat", "a house", "a dog"])
    assert warning == f"{WARNING}2 of 3 prompts: 'a cat', 'a dog'. Unknown words: cat, dog."
    warning = domain_warning(bundled, ["a cat", "a cat", "a house", *"bcd", "x" * 99])
    assert warning.startswith(f"{WARNING}6 of 7 prompts: 'a cat', 'b', 'c' and others. Unknown words: cat, xxx")
    assert len(domain_warning(bundled, ["xyz " * 99])) < len(WARNING) + 70


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
