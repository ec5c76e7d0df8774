"""Things are told apart by their shapes, also after the codec; and the judge of a picture counts them."""

from __future__ import annotations

import numpy as np
import pytest

from adt_core import load_target
from model_making.asking import Prompt, Wanted
from model_making.finding import find
from model_making.judging import judge_prompt, shapes_and_numbers
from model_making.render import render
from model_making.scenes import PLANTS, THINGS, Item, Scene
from model_making.shapes import measure, missed, names_in, stated, through_codec

KINDS = (*THINGS, *PLANTS)


def picture(*items: Item, **around: str) -> np.ndarray:
    """uint8 [128, 128, 3]"""
    scene = Scene(items, **(around or {"ground": "snow", "sky": "clear"}))
    return np.array(render(scene, np.random.default_rng(8)))


def looks(image: np.ndarray) -> list[tuple[str, str | None, str]]:
    return sorted(((thing.kind, thing.colour, thing.place) for thing in find(image)), key=str)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_told_from_all_others(kind):
    colour = None if kind in PLANTS else "purple"
    for around in ({"ground": "grass", "sky": "rain", "backdrop": "hills"}, {"ground": "sand", "sky": "night"}):
        assert looks(picture(Item(kind, colour, "right"), **around)) == [(kind, colour, "right")]


def test_what_is_in_a_scene_is_seen_with_and_without_the_codec():
    table = measure(load_target().codec, count=14, seed=6)
    for kind in ("thing", "plant", "sky", "ground"):
        assert table[kind]["own"] == 1 and table[kind]["codec"] >= 0.95, kind
    assert abs(table["thing"]["shuffled"] - table["thing"]["chance"]) < 0.06
    assert not missed(table["thing"]) and missed({**table["thing"], "codec": 0.9}) == ["codec"]


def test_two_of_a_kind_are_counted_as_two():
    twice = [Item("house", "red", "left"), Item("house", "red", "right")]
    assert looks(picture(*twice)) == [("house", "red", "left"), ("house", "red", "right")]
    assert not [name for name in names_in(picture(*twice)) if "house" in name], "none was asked for twice"
    there, once = shapes_and_numbers(find(picture(*twice)), (Wanted(("house",), "red"),))
    assert there == [True] and once == [False]
    there, once = shapes_and_numbers(find(picture(twice[0])), (Wanted(("house",), "red"),))
    assert there == [True] and once == [True]


def test_a_covered_thing_is_found_beside_what_covers_it():
    items = [Item("tent", "yellow", "middle"), Item("house", "blue", "left"), Item("pine", None, "right")]
    assert looks(picture(*items)) == sorted(((item.kind, item.colour, item.place) for item in items), key=str)


@pytest.mark.parametrize("ground", ["grass", "water", "cobblestone"])
def test_an_empty_scene_has_nothing_in_it(ground):
    for sky, backdrop in (("clear", "forest"), ("sunset", "mountains"), ("night", "hills")):
        scene = Scene((), ground=ground, sky=sky, backdrop=backdrop)
        image = np.array(render(scene, np.random.default_rng(9)))
        assert find(image) == [] and find(through_codec(load_target().codec, image[None])[0]) == []
        assert names_in(image) == stated(scene)
    assert find(np.zeros((128, 128, 3), np.uint8)) == []


def test_a_prompt_is_judged_by_what_it_names_alone():
    image = picture(Item("sailboat", "red", "left"), ground="water", sky="night", backdrop="none")
    right = Prompt("", "", (Wanted(("rowboat", "sailboat"), None, "left"),), sky=("sunset", "night"))
    assert judge_prompt(image, right).named == {"thing:rowboat/sailboat left": True, "sky:sunset/night": True}
    wrong = Prompt("", "", (Wanted(("sailboat",), "red", "right"),), ground=("sand",), table=True)
    judged = judge_prompt(image, wrong)
    assert not any(judged.named.values()) and len(judged.named) == 3
    assert judged.shapes == [True], "its kind and colour are right, its place is not"
    two = Prompt("", "", (Wanted(("sailboat",)), Wanted(("sailboat",), "red")))
    assert judge_prompt(image, two).shapes == [True, False], "one boat does not stand for two"
    assert judge_prompt(image, two).once == []
