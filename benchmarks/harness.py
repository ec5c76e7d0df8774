"""What the benchmarks share: held-out captions, what their pictures must show, and methods that take turns on them."""

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
from model_making.judging import asked_by_scene, judge, see

HELD_OUT_SEED = 2
BUNDLED, BUNDLED_COUNT = 4000, 200
"""First number and count of the held-out captions that come with the pack, adt_core/bundled/captions.json."""
SCENES = "attributes found"
"""Name of the metric of :func:`scene_metric`."""
SAMPLING = Sampling(1, BUNDLED_SAMPLING.temperature, guidance=BUNDLED_SAMPLING.guidance)
"""How the bundled model draws."""
RECIPE = Recipe(SAMPLING, lantern=Lantern(100, 0.1), drafter="bundled")
"""What methods have in common that are compared on it; the LANTERN of those that are called ``+lantern``."""


def captions(start: int, count: int) -> list[str]:
    """Held-out captions ``start`` .. ``start + count - 1``: never trained on."""
    return [example(HELD_OUT_SEED, i)[1] for i in range(start, start + count)]


def scene_metric(first: int = BUNDLED, count: int = BUNDLED_COUNT) -> ImageMetric:
    """Attributes found in a picture and attributes asked for, for pictures whose prompts are these held-out captions.

    It stands in for CLIP's score, which knows nothing of the bundled model's small scenes.
    """
    scenes = {caption: scene for _, caption, scene in (example(HELD_OUT_SEED, i) for i in range(first, first + count))}

    def metric(picture: Image.Image, prompt: str) -> Scores:
        named = judge(see(np.asarray(picture)), asked_by_scene(scenes[prompt])).named
        return {SCENES: (sum(named.values()), len(named))}

    return metric


@cache
def bundled() -> Target:
    """The bundled model, loaded once."""
    return load_target()


def comparison(presets: dict[str, Preset], prompts: list[str], recipe: Recipe = RECIPE) -> Benchmark:
    """Methods of any name on the bundled model; a name that ends in ``+lantern`` is a known one with the recipe's."""
    known = PRESETS | {name: preset for name, preset in presets.items() if not name.endswith(RELAXED)}
    return Benchmark(prompts, list(presets), recipe, known=known)


def compared(
    presets: dict[str, Preset], prompts: list[str], recipe: Recipe = RECIPE, judged: bool = False
) -> list[dict]:
    """Records of plain decoding and these methods, which take turns on every prompt, for ``adt_core.lab.report``.

    judged: look for what the prompts name, which must be captions that come with the pack.
    """
    benchmark = comparison(presets, prompts, recipe)
    benchmark = replace(benchmark, metrics={SCENES: scene_metric()} if judged else {})
    jobs = benchmark.jobs(bundled(), load_drafter("bundled", bundled()))
    with tempfile.TemporaryDirectory() as folder:
        return list(measure(benchmark, jobs, Path(folder)))
