"""Captions as people type them: what they name is in the scene, and the model has a token for each of their words."""

import numpy as np
import pytest

from model_making.judging import judge, see
from model_making.render import render
from model_making.scenes import COLOURS, PLACES, THINGS, Item, Scene, sample_wide_scene
from model_making.tokenise import make_tokenizer
from model_making.wording import (
    COLOUR_NAMES,
    SKY_NAMES,
    THING_NAMES,
    UNKNOWN,
    Said,
    asked_by,
    usual_places,
    vocabulary,
    word,
)

HOUSE, KITE = Item("house", "red", "left"), Item("kite", "yellow", "right")
SCENE = Scene((HOUSE, KITE), ground="snow", sky="night", backdrop="forest")


def wordings(count=400, scene=SCENE) -> list[list[Said]]:
    return [word(scene, np.random.default_rng(seed)) for seed in range(count)]


def text(caption: list[Said]) -> str:
    return " ".join(said.word for said in caption)


def test_a_scene_is_worded_in_many_ways_and_the_same_seed_gives_the_same():
    texts = [text(caption) for caption in wordings()]
    assert len(set(texts)) > 350
    assert texts == [text(caption) for caption in wordings()]


def test_every_word_has_a_token_of_its_own():
    tokenizer = make_tokenizer()
    for seed in range(400):
        rng = np.random.default_rng(seed)
        caption = [said.word for said in word(sample_wide_scene(rng), rng)]
        assert caption and set(caption) <= set(vocabulary())
        known = [name for name in caption if name != UNKNOWN]
        assert tokenizer.encode(" ".join(known), add_special_tokens=False).tokens == known


def test_what_a_word_is_said_of_is_in_the_scene():
    """A thing is marked where its name ends, with its colour if that was said before."""
    for caption in wordings():
        for i, said in enumerate(caption):
            if said.of:
                before = " ".join(one.word for one in caption[: i + 1])
                (item,) = (item for item in SCENE.items if item.kind == said.of.kind)
                assert said.of.colour in (None, item.colour)
                assert any(name in before for name in THING_NAMES[item.kind])
                if said.of.colour:
                    assert any(name in before for name in COLOUR_NAMES[item.colour])


def test_captions_leave_things_out():
    named = [{said.of.kind for said in caption if said.of} for caption in wordings()]
    assert {frozenset(kinds) for kinds in named} >= {frozenset({"house"}), frozenset({"kite"}), frozenset()}
    nights = [any(name in text(caption) for name in SKY_NAMES["night"]) for caption in wordings()]
    assert 0.4 < np.mean(nights) < 0.9


def test_a_scene_without_things_is_worded_by_its_surroundings():
    for caption in wordings(50, Scene((), ground="water", sky="sunset")):
        assert set(text(caption).split()) - {UNKNOWN} and not any(said.of for said in caption)


def test_every_thing_and_colour_has_names():
    assert set(THINGS) < set(THING_NAMES) and set(COLOURS) == set(COLOUR_NAMES)


@pytest.mark.parametrize(
    ("typed", "read"),
    [
        ("A Red house, in a snowy-field at NIGHT!", "a red house in a snowy field at night"),
        ("carpet, 4k, household", f"{UNKNOWN} {UNKNOWN} {UNKNOWN}"),
        ("红色的房子", UNKNOWN),
        ("...", ""),
    ],
)
def test_any_text_is_read(typed, read):
    """Words that the model was not taught are one unknown token each, whatever words they hold."""
    assert make_tokenizer().encode(typed, add_special_tokens=False).tokens == read.split()


def test_wide_scenes_hold_no_kind_twice_and_up_to_three_things():
    scenes = [sample_wide_scene(np.random.default_rng([7, seed])) for seed in range(600)]
    kinds = [[item.kind for item in scene.items] for scene in scenes]
    assert all(len(set(group)) == len(group) for group in kinds)
    assert {len(group) for group in kinds} == {0, 1, 2, 3}


@pytest.mark.long
def test_a_picture_of_the_scene_shows_what_its_captions_ask_for():
    found = []
    for seed in range(40):
        rng = np.random.default_rng([17, seed])
        scene = sample_wide_scene(rng)
        judged = judge(see(np.asarray(render(scene, rng))), asked_by(word(scene, rng)))
        assert judged.named
        found += [*judged.named.values(), *judged.once]
    assert np.mean(found) > 0.95


def test_what_is_left_out_is_not_asked_for():
    asked = [asked_by(caption) for caption in wordings()]
    assert {len(one.things) for one in asked} == {0, 1, 2}
    assert {one.sky for one in asked} == {(), ("night",)} and {one.ground for one in asked} == {(), ("snow",)}
    houses = [thing for one in asked for thing in one.things if "house" in thing.kinds]
    assert {(house.colour, house.place) for house in houses} == {(c, p) for c in (None, "red") for p in (None, "left")}


@pytest.mark.parametrize("places", [("middle",), ("right",), ("left", "middle"), ("middle", "right"), tuple(PLACES)])
def test_where_no_place_is_said_things_stand_where_they_usually_do(places):
    where = dict(zip(("house", "kite", "flower"), places))
    scene = Scene(tuple(Item(kind, "red", place) for kind, place in where.items()), ground="snow", sky="rain")
    asked = [asked_by(caption).things for caption in wordings(scene=scene)]
    for things in filter(None, asked):
        truth = [where[thing.kinds[0]] for thing in things]
        assert usual_places([thing.place for thing in things]) == truth
    unsaid = [thing.place is None for things in asked for thing in things]
    assert any(unsaid) if "middle" in places else not any(unsaid)


def test_one_thing_beside_another_is_left_or_right_of_it():
    beside = [caption for caption in wordings(2000) if " side of" in text(caption)]
    pairs = [(text(caption), asked_by(caption).things) for caption in beside if len(asked_by(caption).things) == 2]
    unsaid = [(words, things) for words, things in pairs if {thing.place for thing in things} == {None}]
    sides = {("left" in words, things[0].kinds) for words, things in unsaid}
    assert sides == {(True, ("house",)), (False, ("kite",))}


def test_a_name_of_two_kinds_asks_for_either():
    boats = wordings(scene=Scene((Item("rowboat", "red", "left"),), ground="water", sky="clear"))
    kinds = {thing.kinds for caption in boats for thing in asked_by(caption).things}
    assert kinds == {("rowboat",), ("sailboat", "rowboat")}
