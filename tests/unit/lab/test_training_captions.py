"""Tests for training captions and the tokenizer of the bundled model."""

import numpy as np
import pytest

from model_making.captions import (
    COLOUR_NAMES,
    OBJECT_NAMES,
    SKY_NAMES,
    UNKNOWN,
    CaptionWord,
    default_places,
    vocabulary,
    write_caption,
)
from model_making.prompts import ObjectSpec, PromptSpec
from model_making.render import render
from model_making.scenes import COLOURED_OBJECTS, COLOURS, PLACES, Scene, SceneItem, sample_wide_scene
from model_making.scoring import analyse_image, score_prompt
from model_making.tokenise import make_tokenizer

ITEMS = SceneItem("house", "red", "left"), SceneItem("kite", "yellow", "right")
SCENE = Scene(ITEMS, ground="snow", sky="night", backdrop="forest")


def sample_captions(count=400, scene=SCENE) -> list[list[CaptionWord]]:
    return [write_caption(scene, np.random.default_rng(seed)) for seed in range(count)]


def caption_spec(caption: list[CaptionWord]) -> PromptSpec:
    """Return the contents that an image of a caption must show."""
    expected = [one for word in caption for one in word.expected]
    background = dict(one.split(":") for one in expected if isinstance(one, str))
    table = background.pop("table", None) is not None
    objects = tuple(one for one in expected if isinstance(one, ObjectSpec))
    named = {part: (name,) for part, name in background.items()}
    return PromptSpec("wording", text_of(caption), objects, table=table, **named)


def text_of(caption: list[CaptionWord]) -> str:
    return " ".join(word.text for word in caption)


def test_captions_vary_and_depend_only_on_the_seed():
    texts = [text_of(caption) for caption in sample_captions()]
    assert len(set(texts)) > 350
    assert texts == [text_of(caption) for caption in sample_captions()]


def test_each_caption_word_is_one_token():
    tokenizer = make_tokenizer()
    for seed in range(400):
        rng = np.random.default_rng(seed)
        caption = [word.text for word in write_caption(sample_wide_scene(rng), rng)]
        assert caption
        assert set(caption) <= set(vocabulary())
        known = [text for text in caption if text != UNKNOWN]
        assert tokenizer.encode(" ".join(known), add_special_tokens=False).tokens == known


def test_items_are_attached_to_the_end_of_their_names():
    for caption in sample_captions():
        for i, word in enumerate(caption):
            if word.item:
                prefix = text_of(caption[: i + 1])
                (item,) = (item for item in SCENE.items if item.kind == word.item.kind)
                assert word.item.colour in (None, item.colour)
                assert any(name in prefix for name in OBJECT_NAMES[item.kind])
                if word.item.colour:
                    assert any(name in prefix for name in COLOUR_NAMES[item.colour])


def test_captions_omit_contents_at_random():
    kinds = {frozenset(word.item.kind for word in caption if word.item) for caption in sample_captions()}
    assert kinds >= {frozenset({"house"}), frozenset({"kite"}), frozenset()}
    names_night = [any(name in text_of(caption) for name in SKY_NAMES["night"]) for caption in sample_captions()]
    assert 0.4 < np.mean(names_night) < 0.9


def test_captions_of_empty_scenes_name_the_background():
    for caption in sample_captions(50, Scene((), ground="water", sky="sunset")):
        assert set(text_of(caption).split()) - {UNKNOWN}
        assert not any(word.item for word in caption)


def test_all_objects_and_colours_have_names():
    assert set(COLOURED_OBJECTS) < set(OBJECT_NAMES)
    assert set(COLOURS) == set(COLOUR_NAMES)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("A Red house, in a snowy-field at NIGHT!", "a red house in a snowy field at night"),
        ("carpet, 4k, household", f"{UNKNOWN} {UNKNOWN} {UNKNOWN}"),
        ("红色的房子", UNKNOWN),
        ("...", ""),
    ],
)
def test_tokenizer_maps_each_other_word_to_the_unknown_token(text, tokens):
    assert make_tokenizer().encode(text, add_special_tokens=False).tokens == tokens.split()


def test_wide_scenes_have_up_to_three_objects_of_different_kinds():
    scenes = [sample_wide_scene(np.random.default_rng([7, seed])) for seed in range(600)]
    kinds = [[item.kind for item in scene.items] for scene in scenes]
    assert all(len(set(group)) == len(group) for group in kinds)
    assert {len(group) for group in kinds} == {0, 1, 2, 3}


@pytest.mark.long
def test_rendered_scenes_show_what_their_captions_name():
    results = []
    for seed in range(40):
        rng = np.random.default_rng([17, seed])
        scene = sample_wide_scene(rng)
        score = score_prompt(analyse_image(np.asarray(render(scene, rng))), caption_spec(write_caption(scene, rng)))
        assert score.named
        results += [*score.named.values(), *score.not_repeated]
    assert np.mean(results) > 0.95


def test_caption_spec_omits_unnamed_contents():
    specs = [caption_spec(caption) for caption in sample_captions()]
    assert {len(spec.objects) for spec in specs} == {0, 1, 2}
    assert {spec.sky for spec in specs} == {(), ("night",)}
    assert {spec.ground for spec in specs} == {(), ("snow",)}
    houses = [one for spec in specs for one in spec.objects if "house" in one.kinds]
    assert {(house.colour, house.place) for house in houses} == {(c, p) for c in (None, "red") for p in (None, "left")}


@pytest.mark.parametrize("places", [("middle",), ("right",), ("left", "middle"), ("middle", "right"), tuple(PLACES)])
def test_default_places_recovers_unnamed_places(places):
    place_of = dict(zip(("house", "kite", "flower"), places))
    scene = Scene(tuple(SceneItem(kind, "red", place) for kind, place in place_of.items()), ground="snow", sky="rain")
    by_caption = [caption_spec(caption).objects for caption in sample_captions(scene=scene)]
    for objects in filter(None, by_caption):
        assert default_places([one.place for one in objects]) == [place_of[one.kinds[0]] for one in objects]
    unnamed = [one.place is None for objects in by_caption for one in objects]
    assert any(unnamed) == ("middle" in places)


def test_relative_places():
    """Check "a house on the left side of a kite", and the same caption with "right"."""
    captions = [caption for caption in sample_captions(2000) if " side of" in text_of(caption)]
    pairs = [(text_of(caption), caption_spec(caption).objects) for caption in captions]
    relative = [(text, objects) for text, objects in pairs if [one.place for one in objects] == [None, None]]
    sides = {("left" in text, objects[0].kinds) for text, objects in relative}
    assert sides == {(True, ("house",)), (False, ("kite",))}


def test_an_ambiguous_name_accepts_both_kinds():
    scene = Scene((SceneItem("rowboat", "red", "left"),), ground="water", sky="clear")
    kinds = {one.kinds for caption in sample_captions(scene=scene) for one in caption_spec(caption).objects}
    assert kinds == {("rowboat",), ("sailboat", "rowboat")}
