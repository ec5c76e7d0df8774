"""Held-out captions, an image metric, and interleaved comparisons that the benchmarks share."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image

from adt_core import Lantern, Sampling, Target, load_drafter, load_target
from adt_core.app.checkpoints import BUNDLED_SAMPLING
from adt_core.lab.benchmark import PRESETS, RELAXED, Benchmark, Preset, measure
from adt_core.lab.quality import ImageMetric, Scores
from adt_core.policies.recipe import Recipe
from model_making.data import example
from model_making.scoring import analyse_image, scene_spec, score_prompt

HELD_OUT_SEED = 2
BUNDLED = 4000
"""Number of the first held-out caption in adt_core/bundled/captions.json."""
BUNDLED_COUNT = 200
"""Number of captions in adt_core/bundled/captions.json."""
SCENES = "attributes found"
"""Name of the metric that :func:`scene_metric` returns."""
SAMPLING = Sampling(1, BUNDLED_SAMPLING.temperature, guidance=BUNDLED_SAMPLING.guidance)
"""Default sampling of the bundled model."""
RECIPE = Recipe(SAMPLING, lantern=Lantern(100, 0.1), drafter="bundled")
"""Default recipe of comparisons; its LANTERN settings apply to methods whose name ends in ``+lantern``."""


def captions(start: int, count: int) -> list[str]:
    """Return the held-out captions with the numbers `start` to `start + count - 1`; no training has used them."""
    return [example(HELD_OUT_SEED, i)[1] for i in range(start, start + count)]


def scene_metric(first: int = BUNDLED, count: int = BUNDLED_COUNT) -> ImageMetric:
    """Return a metric that counts the prompted attributes found in an image.

    It replaces the CLIP score, which does not cover the bundled model's small synthetic scenes.

    Args:
        first: Number of the first held-out caption that the metric accepts as a prompt.
        count: Number of captions that it accepts.
    """
    scenes = {caption: scene for _, caption, scene in (example(HELD_OUT_SEED, i) for i in range(first, first + count))}

    def metric(image: Image.Image, prompt: str) -> Scores:
        found = score_prompt(analyse_image(np.asarray(image)), scene_spec(scenes[prompt])).named
        return {SCENES: (sum(found.values()), len(found))}

    return metric


@cache
def bundled() -> Target:
    """Return the bundled model, loaded once."""
    return load_target()


def comparison(presets: dict[str, Preset], prompts: list[str], recipe: Recipe = RECIPE) -> Benchmark:
    """Return a benchmark of these methods on the bundled model.

    Args:
        presets: Methods by name. A name that ends in ``+lantern`` is the method without this ending, with the recipe's
            LANTERN settings.
        prompts: Prompts, one image each.
        recipe: Settings that all methods share.
    """
    known = PRESETS | {name: preset for name, preset in presets.items() if not name.endswith(RELAXED)}
    return Benchmark(prompts, list(presets), recipe, available=known)


def compared(
    presets: dict[str, Preset], prompts: list[str], recipe: Recipe = RECIPE, judged: bool = False
) -> list[dict]:
    """Measure plain decoding and these methods, interleaved on every prompt.

    Args:
        presets: Methods by name, as in :func:`comparison`.
        prompts: Prompts, one image each.
        recipe: Settings that all methods share.
        judged: Apply :func:`scene_metric`; the prompts must be captions of adt_core/bundled/captions.json.

    Returns:
        Records for ``adt_core.lab.report``.
    """
    benchmark = comparison(presets, prompts, recipe)
    benchmark = replace(benchmark, metrics={SCENES: scene_metric()} if judged else {})
    jobs = benchmark.jobs(bundled(), load_drafter("bundled", bundled()))
    with tempfile.TemporaryDirectory() as folder:
        return list(measure(benchmark, jobs, Path(folder)))
