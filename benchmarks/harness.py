"""Parts that several benchmarks share: held-out captions, an image metric, and comparisons in turns.

A held-out caption is a caption that no training has used. Captions are identified by their number.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from unittest.mock import patch

import numpy as np
from PIL import Image

from adt_core import Lantern, Pipeline, Recipe, Sampling, cache_folder
from adt_core.lab.benchmark import Benchmark, BenchmarkWorker, measure_missing
from adt_core.lab.presets import PRESETS, Preset
from adt_core.lab.quality import ImageMetric, Scores
from adt_core.models.load import BUNDLED_SAMPLING
from adt_core.policies import RELAXED
from model_making.data import example
from model_making.scoring import analyse_image, scene_spec, score_prompt

ROOT = Path(__file__).resolve().parents[1]
HELD_OUT_SEED = 2  # seed of the caption generator for held-out captions
BUNDLED = 4000  # number of the first held-out caption in adt_core/bundled/captions.json
BUNDLED_COUNT = 200  # number of captions in adt_core/bundled/captions.json
SCENES = "attributes found"  # name of the metric of :func:`scene_metric` in reports
SAMPLING = Sampling(1, BUNDLED_SAMPLING.temperature, guidance_scale=BUNDLED_SAMPLING.guidance_scale)
"""Default sampling of the bundled model."""
RECIPE = Recipe(SAMPLING, lantern=Lantern(100, 0.1), drafter="bundled")
"""Default recipe of comparisons. Only methods whose name ends in ``+lantern`` use LANTERN."""


def git(*arguments: str) -> str:
    """Return the output of git in this checkout; "" if it fails."""
    try:
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=30).stdout.rstrip()
    except (OSError, subprocess.TimeoutExpired):
        return ""


def captions(start: int, count: int) -> list[str]:
    """Return the held-out captions with the numbers `start` to `start + count - 1`."""
    return [example(HELD_OUT_SEED, i)[1] for i in range(start, start + count)]


def scene_metric(first: int = BUNDLED, count: int = BUNDLED_COUNT) -> ImageMetric:
    """Return a metric that counts how many attributes of the prompt an image shows.

    An attribute is, for example, "a red house on the left" or "a night sky". The benchmarks use this metric instead of
    the CLIP score, because the CLIP score does not work for the small synthetic scenes of the bundled model.

    Args:
        first: Number of the first held-out caption that the metric accepts as a prompt.
    """
    scenes = {caption: scene for _, caption, scene in (example(HELD_OUT_SEED, i) for i in range(first, first + count))}

    def metric(image: Image.Image, prompt: str) -> Scores:
        found = score_prompt(analyse_image(np.asarray(image)), scene_spec(scenes[prompt])).named
        return {SCENES: (sum(found.values()), len(found))}

    return metric


@cache
def bundled() -> Pipeline:
    """Return the bundled model with its drafter, on the CPU. Only the first call loads them."""
    return Pipeline.load("bundled", device="cpu")


@contextmanager
def empty_profile_cache() -> Iterator[None]:
    """Store cost profiles in a new, empty folder during the block."""
    with tempfile.TemporaryDirectory() as folder, patch.dict(os.environ, {cache_folder.VARIABLE: folder}):
        yield


def comparison(presets: dict[str, Preset], prompts: list[str], recipe: Recipe = RECIPE) -> Benchmark:
    """Return a benchmark that compares methods on the bundled model.

    Args:
        presets: Methods by name. If a name ends in ``+lantern``, the method uses the recipe's LANTERN settings.
        recipe: Settings that all methods share.
    """
    known = PRESETS | {name: preset for name, preset in presets.items() if not name.endswith(RELAXED)}
    return Benchmark(prompts, list(presets), recipe, available=known)


def compared(
    presets: dict[str, Preset], prompts: list[str], recipe: Recipe = RECIPE, judged: bool = False
) -> list[dict]:
    """Measure plain decoding and other methods. All methods decode one prompt before the next prompt starts.

    Args:
        presets: Methods by name, as in :func:`comparison`.
        recipe: Settings that all methods share.
        judged: Whether to apply :func:`scene_metric`. The prompts must then be captions of
            adt_core/bundled/captions.json.

    Returns:
        Records for ``adt_core.lab.report``.
    """
    benchmark = comparison(presets, prompts, recipe)
    benchmark = replace(benchmark, metrics={SCENES: scene_metric()} if judged else {})
    worker = BenchmarkWorker(benchmark, benchmark.pipelines(bundled()))
    with tempfile.TemporaryDirectory() as folder:
        return list(measure_missing(worker, Path(folder)))
