"""The attribute check has to see what is there, and only that: it grades the bundled model's pictures."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from adt_core.app.prompts import BUNDLED_CAPTIONS, read_prompts
from benchmarks.harness import BUNDLED, HELD_OUT_SEED, SCENES, captions, scene_metric
from model_making.attributes import check, degrade, measure
from model_making.data import example
from model_making.scenes import COLOURS, PLACES, SKIES, Item, Scene

COUNT, SEED = 60, 4


@pytest.fixture(scope="module")
def table() -> dict[str, dict[str, float]]:
    return measure(COUNT, SEED)


def test_own_renders_pass(table):
    assert table["all"]["own"] >= 0.98


def test_degraded_renders_pass(table):
    assert table["all"]["degraded"] >= 0.97


def test_shuffled_captions_fall_to_chance(table):
    # The margin covers the sampling error of a few hundred pairings; a blind check would be far above it.
    assert abs(table["all"]["shuffled"] - table["all"]["chance"]) < 0.04
    for kind in ("item", "sky", "ground"):
        assert table[kind]["shuffled"] < table[kind]["chance"] + 0.08, kind


def test_one_altered_word_is_noticed():
    wrong = []
    for index in range(30):
        image, _, scene = example(SEED, index)
        first = scene.items[0]
        named = {item.colour for item in scene.items}
        place = next(p for p in PLACES if p not in {item.place for item in scene.items})
        altered = [replace(scene, items=(replace(first, place=place),))]
        altered += [replace(scene, items=(replace(first, colour=c),)) for c in COLOURS if c not in named][:2]
        wrong += [next(iter(check(image, other).values())) for other in altered if first.colour]
        if scene.sky:
            sky = SKIES[SKIES.index(scene.sky) - 1]
            wrong.append(check(image, replace(scene, sky=sky))[f"sky:{sky}"])
    assert np.mean(wrong) < 0.02


def test_only_stated_attributes_are_named():
    outdoors = Scene(
        (Item("kite", "red", "left"), Item("pine", None, "right")), ground="snow", sky="night", backdrop="hills"
    )
    indoors = Scene((Item("mug", "blue", "middle"),), wall="tiled")
    picture = np.zeros((128, 128, 3), np.uint8)
    assert list(check(picture, outdoors)) == ["item:red left air", "plant:right", "sky:night", "ground:snow"]
    assert list(check(picture, indoors)) == ["item:blue middle standing", "wall:tiled", "table:wooden"]


def test_an_empty_picture_shows_nothing():
    for index in range(20):
        _, _, scene = example(SEED, index)
        assert not any(check(np.zeros((128, 128, 3), np.uint8), scene).values())


def test_degrading_is_seeded():
    image = example(SEED, 0)[0]
    once, again = (degrade(image, np.random.default_rng(7)) for _ in range(2))
    assert np.array_equal(once, again) and not np.array_equal(once, image)


def test_the_metric_of_the_benchmark_knows_the_scenes_of_the_bundled_captions():
    assert read_prompts(BUNDLED_CAPTIONS)[:6] == captions(BUNDLED, 6)
    metric, seen = scene_metric(count=6), 0
    for number in range(BUNDLED, BUNDLED + 6):
        image, caption, scene = example(HELD_OUT_SEED, number)
        found, count = metric(Image.fromarray(image), caption)[SCENES]
        assert found == count == len(check(image, scene))
        seen += metric(Image.new("RGB", (128, 128)), caption)[SCENES][0]
    assert seen < 6, "in black pictures"
