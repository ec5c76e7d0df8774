"""Remarks on prompts and sizes that a model was not trained for, and the words that the bundled model knows."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from adt_core import load_target
from adt_core.app.prompts import BUNDLED_CAPTIONS, read_prompts
from adt_core.app.training_domain import bundled_vocabulary, domain_warning
from adt_core.models.load import FAMILIES
from model_making import wording
from model_making.export import write_words
from tests.layouts.lumina import write_lumina
from tests.tiny import write_tiny_checkpoint

TOLD = "This small model knows houses, boats, balloons, mugs and the like, and drew something else for "
WORDS = Path(wording.__file__).parents[1] / "adt_core" / "bundled" / "words.json"


@pytest.fixture(scope="module")
def bundled():
    return load_target()


def test_the_file_has_the_words_that_the_model_is_taught(tmp_path):
    write_words(tmp_path / "words.json")
    assert (tmp_path / "words.json").read_text(encoding="utf-8") == WORDS.read_text(encoding="utf-8"), (
        "write it again: model_making.export.write_words"
    )
    words = bundled_vocabulary()
    assert {kind: sorted(getattr(words, kind)) for kind in words._fields} == wording.known_words()
    assert frozenset().union(*words) > {*wording.vocabulary()} - {wording.UNKNOWN}
    assert sum(map(len, words)) == len(frozenset().union(*words)), "each word is of one kind"


def test_kinds_of_words():
    words = bundled_vocabulary()
    assert {*"house boats mug dinghy trees fruits fruit balloon lamp".split()} < words.things
    assert {*"snow city sea forest table kitchen night coffee".split()} < words.scenery
    assert {*"a the on left middle background red golden hot white".split()} < words.others


def test_every_name_has_a_word_that_says_it():
    words = bundled_vocabulary()
    kinds = [(wording.THING_NAMES, words.things), (wording.COLOUR_NAMES, words.others)]
    around = "GROUND_NAMES SKY_NAMES BACKDROP_NAMES WALL_NAMES TABLE_NAMES".split()
    kinds += [(getattr(wording, table), words.scenery | words.things) for table in around]
    for table, known in kinds:
        names = {name for options in table.values() for name in options if name}
        assert [name for name in names if not known & {*name.split()}] == []


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
def test_a_prompt_without_a_known_thing_is_told(bundled, prompt, unknown):
    """Colours and scenery don't silence it."""
    assert domain_warning(bundled, [prompt]) == f"{TOLD}{prompt!r}." + (
        f" Unknown words: {unknown}." if unknown else ""
    )


@pytest.mark.parametrize(
    "prompt",
    ["a house", "a dragon beside a house", "2mugs", "猫 house", "", " \n", "a beautiful sunset over the sea, 4k"],
)
def test_others_are_not(bundled, prompt):
    """Known scenery alone is drawn. A blank prompt is refused or left out elsewhere."""
    assert domain_warning(bundled, [prompt]) == ""


def test_captions_of_the_pack_are_not(bundled):
    assert domain_warning(bundled, read_prompts(BUNDLED_CAPTIONS, "all")) == ""


def test_those_of_a_list_are_counted_and_the_first_are_named(bundled):
    said = domain_warning(bundled, ["a cat", "a house", "a dog"])
    assert said == f"{TOLD}2 of 3 prompts: 'a cat', 'a dog'. Unknown words: cat, dog."
    said = domain_warning(bundled, ["a cat", "a cat", "a house", *"bcd", "x" * 99])
    assert said.startswith(f"{TOLD}6 of 7 prompts: 'a cat', 'b', 'c' and others. Unknown words: cat, xxx")
    assert len(domain_warning(bundled, ["xyz " * 99])) < len(TOLD) + 70


def test_other_models_know_all_words(bundled, tmp_path):
    write_tiny_checkpoint(tmp_path / "bundled")
    for folder in (tmp_path / "bundled", WORDS.parent / "target"):
        assert domain_warning(load_target(folder), ["a cat"]) == ""
    assert bundled.sized(128, 128).words == bundled.words


# ---- sizes -------------------------------------------------------------------------------------------

TRAINED = {family.name: family.trained for family in FAMILIES}


def drawn(family, width, height, usual, side, name="A model"):
    """Return the remark on an image of this size by a model of a family, whose usual image is a square."""
    grid = height // side, width // side
    usual_grid = (usual // side, usual // side)
    stated = {"name": name, "grid": grid, "usual_grid": usual_grid, "downsample": side, "words": frozenset()}
    return domain_warning(SimpleNamespace(**stated, trained=TRAINED[family]), ["a cat"])


@pytest.mark.parametrize("size", [(512, 512), (256, 256), (512, 1024), (768, 768), (2048, 256)])
def test_sizes_that_glm_image_was_not_trained_for_are_told(size):
    """They were drawn without a word."""
    told = drawn("glm-image", *size, 1024, 32, "GLM-Image")
    assert told == (
        "GLM-Image was trained for images of about as many pixels as 1024x1024 to 2048x2048; "
        f"{size[0]}x{size[1]} is outside of that, so the image may look worse."
    )


@pytest.mark.parametrize("size", [(1024, 1024), (1152, 896), (2048, 2048), (2048, 512), (1536, 1024), (1024, 832)])
def test_sizes_that_it_was_trained_for_are_not(size):
    assert drawn("glm-image", *size, 1024, 32) == ""


@pytest.mark.parametrize(
    "family, usual, side, told, untold",
    [
        ("lumina-mgpt", 768, 16, (512, 512), (1024, 512)),
        ("lumina-mgpt-2", 768, 8, (512, 512), (1024, 512)),
        ("emu3", 720, 8, (512, 512), (960, 544)),
    ],
)
def test_families_of_one_number_of_pixels(family, usual, side, told, untold):
    assert f"as many pixels as {usual}x{usual}; {told[0]}x{told[1]} is outside" in drawn(family, *told, usual, side)
    assert drawn(family, *untold, usual, side) == drawn(family, usual, usual, usual, side) == ""


def test_families_of_which_nothing_is_known_are_not_told():
    unknown = {name for name, trained in TRAINED.items() if trained is None}
    assert unknown == {"chameleon", "llamagen", "janus", "liquid"}
    assert drawn("chameleon", 64, 64, 512, 16) == ""


def test_a_loaded_model_has_the_sizes_of_its_family(tmp_path):
    target = load_target(write_lumina(tmp_path / "Lumina-mGPT-7B-768"))
    assert domain_warning(target, ["a cat"]) == ""
    assert domain_warning(target.sized(128, 64), ["a cat"]).startswith(
        f"{target.name} was trained for images of about as many"
    )
