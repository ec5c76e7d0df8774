"""Things are told apart by their shapes, also after the codec; and the judge of a picture counts them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from adt_core import load_target
from adt_core.app.prompts import BUNDLED_CAPTIONS, read_prompts
from benchmarks.harness import BUNDLED, HELD_OUT_SEED, SCENES, captions, scene_metric
from model_making.asking import Prompt, Wanted
from model_making.data import example
from model_making.finding import find
from model_making.judging import asked_by_scene, judge, measure, missed, see, through_codec
from model_making.render import render
from model_making.scenes import COLOURS, PLACES, PLANTS, SKIES, THINGS, Item, Scene
from model_making.surroundings import degrade

pytestmark = pytest.mark.long
KINDS = (*THINGS, *PLANTS)
SEED = 4


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
    for kind in ("thing", "sky", "ground"):
        assert table[kind]["own"] == 1 and table[kind]["codec"] >= 0.95, kind
    assert abs(table["thing"]["shuffled"] - table["thing"]["chance"]) < 0.06
    assert not missed(table["thing"]) and missed({**table["thing"], "codec": 0.9}) == ["codec"]


def test_two_of_a_kind_are_counted_as_two():
    twice = [Item("house", "red", "left"), Item("house", "red", "right")]
    assert looks(picture(*twice)) == [("house", "red", "left"), ("house", "red", "right")]
    once = Prompt("", "", (Wanted(("house",), "red"),))
    two, one = (judge(see(picture(*twice[:count])), once) for count in (2, 1))
    assert two.shapes == one.shapes == [True] and two.once == [False] and one.once == [True]


def test_a_covered_thing_is_found_beside_what_covers_it():
    items = [Item("tent", "yellow", "middle"), Item("house", "blue", "left"), Item("pine", None, "right")]
    assert looks(picture(*items)) == sorted(((item.kind, item.colour, item.place) for item in items), key=str)


@pytest.mark.parametrize("ground", ["grass", "water", "cobblestone"])
def test_an_empty_scene_has_nothing_in_it(ground):
    for sky, backdrop in (("clear", "forest"), ("sunset", "mountains"), ("night", "hills")):
        scene = Scene((), ground=ground, sky=sky, backdrop=backdrop)
        image = np.array(render(scene, np.random.default_rng(9)))
        assert find(image) == [] and find(through_codec(load_target().codec, image[None])[0]) == []
        assert all(judge(see(image), asked_by_scene(scene, backdrop=True)).named.values())
    assert find(np.zeros((128, 128, 3), np.uint8)) == []


def test_a_prompt_is_judged_by_what_it_names_alone():
    image = picture(Item("sailboat", "red", "left"), ground="water", sky="night", backdrop="none")
    right = Prompt("", "", (Wanted(("rowboat", "sailboat"), None, "left"),), sky=("sunset", "night"))
    assert judge(see(image), right).named == {"thing:rowboat/sailboat left": True, "sky:sunset/night": True}
    wrong = Prompt("", "", (Wanted(("sailboat",), "red", "right"),), ground=("sand",), table=True)
    judged = judge(see(image), wrong)
    assert not any(judged.named.values()) and len(judged.named) == 3
    assert judged.shapes == [True], "its kind and colour are right, its place is not"
    two = Prompt("", "", (Wanted(("sailboat",)), Wanted(("sailboat",), "red")))
    assert judge(see(image), two).shapes == [True, False], "one boat does not stand for two"
    assert judge(see(image), two).once == []


def test_one_altered_word_is_noticed():
    """Of the captions of the grammar, by which the benchmark of methods judges pictures."""
    wrong = []
    for index in range(20):
        image, _, scene = example(SEED, index)
        first, seen = scene.items[0], see(image)
        place = next(p for p in PLACES if p not in {item.place for item in scene.items})
        altered = [replace(scene, items=(replace(first, place=place),))]
        named = {item.colour for item in scene.items}
        altered += [replace(scene, items=(replace(first, colour=c),)) for c in COLOURS if c not in named][:2]
        wrong += [next(iter(judge(seen, asked_by_scene(other)).named.values())) for other in altered if first.colour]
        if scene.sky:
            sky = SKIES[SKIES.index(scene.sky) - 1]
            wrong.append(judge(seen, asked_by_scene(replace(scene, sky=sky))).named[f"sky:{sky}"])
    assert len(wrong) > 50 and np.mean(wrong) < 0.02


def test_a_caption_asks_for_what_it_names():
    outdoors = Scene((Item("kite", "red", "left"), Item("pine", None, "right")), "snow", "night", "hills")
    indoors = Scene((Item("mug", "blue", "middle"),), wall="tiled")
    black = see(np.zeros((128, 128, 3), np.uint8))
    names = ["thing:red kite left", "thing:pine right", "sky:night", "ground:snow"]
    assert judge(black, asked_by_scene(outdoors)).named == dict.fromkeys(names, False)
    names = ["thing:blue mug middle", "wall:tiled", "table:wooden"]
    assert judge(black, asked_by_scene(indoors)).named == dict.fromkeys(names, False)


def test_degrading_is_seeded():
    image = example(SEED, 0)[0]
    once, again = (degrade(image, np.random.default_rng(7)) for _ in range(2))
    assert np.array_equal(once, again) and not np.array_equal(once, image)


def test_the_metric_of_the_benchmark_knows_the_scenes_of_the_bundled_captions():
    assert read_prompts(BUNDLED_CAPTIONS)[:4] == captions(BUNDLED, 4)
    metric, seen = scene_metric(count=4), 0
    for number in range(BUNDLED, BUNDLED + 4):
        image, caption, _ = example(HELD_OUT_SEED, number)
        found, count = metric(Image.fromarray(image), caption)[SCENES]
        assert found == count > 2
        seen += metric(Image.new("RGB", (128, 128)), caption)[SCENES][0]
    assert seen == 0, "in black pictures"
