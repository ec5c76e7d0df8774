"""Tests of pipelines: the loop over a decoding, the division of prompts into parts, and the settings in a PNG."""

from contextlib import closing
from dataclasses import replace

import pytest
import torch

from adt_core import Drafting, Lantern, Pipeline, Recipe, Sampling
from adt_core.run import jobs
from adt_core.run.jobs import JobList, PromptEntry
from adt_core.run.runner import split
from tests.raising import raises_key

PROMPTS = ["a cat", "a dog", "a cow", "fog"]


@pytest.fixture
def pipeline(models):
    target, drafter = models
    return Pipeline(target, Recipe(Sampling(seed=3), Drafting("adt-tree")), drafter)


@pytest.mark.parametrize("batch_size", [1, 3])
def test_every_image_is_yielded_once_when_it_is_complete(pipeline, batch_size):
    decoding = pipeline.decoding(PROMPTS, batch_size=batch_size)
    yielded = []
    with closing(decoding.finished()) as running:
        for finished in running:
            for image in finished:
                assert (decoding.codes[image] >= 0).all()
            yielded += finished
    assert sorted(yielded) == list(range(len(PROMPTS)))


def test_completely_kept_images_are_yielded_without_a_round(pipeline):
    prefix = torch.zeros(2, 16, dtype=torch.long)
    with closing(pipeline.decoding(PROMPTS[:2], kept=prefix).finished()) as running:
        assert list(running) == [[0, 1]]


def test_leaving_the_loop_frees_the_caches(pipeline):
    decoding = pipeline.decoding(PROMPTS)
    with pytest.raises(ValueError), closing(decoding.finished()) as running:
        for _ in running:
            raise ValueError
    assert decoding.active == []


@pytest.mark.parametrize("images", [0, 1, 7, 8, 9, 40])
@pytest.mark.parametrize("batch_size, workers, factor", [(1, 1, 8), (4, 1, 8), (4, 3, 1), (3, 2, 2)])
def test_parts_cover_the_images_in_order(images, batch_size, workers, factor):
    found = split(images, batch_size, workers, factor)
    assert [number for part in found for number in part] == list(range(images))
    assert all(len(part) <= max(1, factor * batch_size) for part in found)
    assert batch_size > 1 or all(len(part) == 1 for part in found)
    assert len(found) * 2 >= min(workers, images), "most workers get a part"


@pytest.mark.parametrize(
    "lantern, options",
    [
        (None, (100, None, None, 1.0)),
        (Lantern(7, 0.2), (7, 0.2, None, 1.0)),
        (Lantern(7, factor=2.0, max_substitution=0.5), (7, None, 2.0, 0.5)),
    ],
)
def test_a_png_contains_the_options(pipeline, lantern, options):
    recipe = replace(pipeline.recipe, lantern=lantern, negative_prompt=" fog ")
    settings = Pipeline(pipeline.target, recipe).settings("a cat", 2)
    names = ("lantern_k", "lantern_delta", "lantern_factor", "max_substitution")
    assert tuple(settings[name] for name in names) == options
    others = {"prompt": "a cat", "image_index": 2, "negative_prompt": "fog", "size": None}
    assert others.items() <= settings.items()


def test_a_list_with_too_many_images_is_refused(monkeypatch):
    monkeypatch.setattr(jobs, "MAX_IMAGES", 5)
    entries = [PromptEntry(str(number), "a cat") for number in range(3)]
    assert JobList(entries[:2], Recipe(), per_prompt=2).count == 4
    with raises_key("images.too_many", count=6, most=5):
        JobList(entries, Recipe(), per_prompt=2)
