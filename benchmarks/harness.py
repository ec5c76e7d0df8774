"""What the benchmarks share: held-out captions, what their pictures must show, and methods that take turns."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from PIL import Image
from torch import Tensor

from adt_core.app.jobs import Job, decode
from adt_core.policies import PLAIN
from adt_lab.quality import PictureMetric, Scores
from model_making.attributes import check
from model_making.data import example

from .turns import in_turns

HELD_OUT_SEED = 2
BUNDLED, BUNDLED_COUNT = 4000, 200
"""First number and count of the held-out captions that come with the pack, adt_core/bundled/captions.json."""
SCENES = "attributes found"
"""Name of the metric of :func:`scene_metric`."""

Run = Callable[[str], tuple[dict, Tensor]]
"""Decodes a prompt; its report and its codes [T]."""


def captions(start: int, count: int) -> list[str]:
    """Held-out captions ``start`` .. ``start + count - 1``: never trained on."""
    return [example(HELD_OUT_SEED, i)[1] for i in range(start, start + count)]


def scene_metric(first: int = BUNDLED, count: int = BUNDLED_COUNT) -> PictureMetric:
    """Attributes found in a picture and attributes asked for, for pictures whose prompts are these held-out captions.

    It stands in for CLIP's score, which knows nothing of the bundled model's small scenes.
    """
    scenes = {caption: scene for _, caption, scene in (example(HELD_OUT_SEED, i) for i in range(first, first + count))}

    def metric(picture: Image.Image, prompt: str) -> Scores:
        found = check(np.asarray(picture), scenes[prompt])
        return {SCENES: (sum(found.values()), len(found))}

    return metric


def runner(job: Job) -> Run:
    """A run of one method."""

    def run(prompt: str) -> tuple[dict, Tensor]:
        decoding = decode(job.decoding([prompt]))
        return decoding.trace.report(), decoding.codes[0]

    return run


def interleaved(runs: dict[str, Run], prompts: list[str]) -> list[dict]:
    """Every run on every prompt, in turns; one uncounted prompt first.

    One of them is plain decoding. Returns the records that ``adt_lab.report`` sums up.
    """
    for run in runs.values():
        run(prompts[0])
    records = []
    for done in in_turns(runs, prompts):
        plain = done[PLAIN][1]
        agreement = {name: (codes == plain).double().mean().item() for name, (_, codes) in done.items()}
        records.append({"runs": {name: {**done[name][0], "agreement": agreement[name]} for name in runs}})
    return records
