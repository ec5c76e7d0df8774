"""Seconds per image of this engine and of transformers.

The seconds per image are *computed*: the time of a round, times the number of rounds in an image, plus the time to read
the prompt. The codec is not included. All models have random weights, so they cannot show how many tokens a round
accepts (*tau*). *Tau of* is the source of tau:

- *bundled model*: measured with the bundled model on this device.
- *paper*: from the tables of arXiv 2512.21857, for temperature 0 on COCO unless stated otherwise.

The timed trees have the mean depth and the mean size of the trees for which this tau was measured.

transformers decodes a model of the same shape with guidance, as one batch of two rows. It uses its default settings:
no padding and no CUDA graphs. *Times transformers* is the speed-up over transformers with the faster of its two caches.
Steps of transformers and rounds of this engine are interleaved. For Emu3, rounds and prompts are measured on an image
with half as many rows and columns.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import NamedTuple

import torch

from adt_core import Pipeline, Target
from adt_core.drafters import Drafter
from adt_core.policies import PLAIN

from ..harness import captions
from . import device
from .device import Case, modes, seconds_of, spread, usual_dtype
from .models import (
    ADT_TREE,
    MERGED,
    SEVEN_B,
    SHAPES,
    TITLES,
    WINDOW,
    ModelShape,
    Stream,
    decode_rounds,
    pipeline_of,
    random_network,
    random_target,
    shape_of,
    trained,
    tree_pipeline,
    with_quarter_grid,
)
from .other_engines import Step, transformers_model, transformers_step
from .pieces import LONGEST

FIRST_CAPTION = 3500  # number of the first held-out caption of this part
OURS = "this engine"
TRANSFORMERS = "transformers"


class TreeCase(NamedTuple):
    """Method, its tokens per round, and the trees to time for it."""

    title: str
    method: str  # key of `TITLES`
    source: str  # of tau, such as "bundled model" or "paper"
    tau: float
    tree: tuple[int, int, int] | None = None  # depth, width and number of drafts; None times the method's own trees


PAPER = (
    TreeCase("ADT-Tree", ADT_TREE, "paper", 3.40, (4, 10, 58)),
    TreeCase("ADT-Tree", ADT_TREE, "paper, PartiPrompts", 3.97, (4, 10, 58)),
    TreeCase("ADT-Tree, LANTERN", ADT_TREE, "paper", 4.86, (5, 10, 58)),
)
"""Results of the paper. Depths are the paper's mean depths 3.86, 4.31 and 5.15, rounded.

Widths and numbers of drafts are from the paper's public code."""


@cache
def traces(rehearse: bool) -> tuple[TreeCase, ...]:
    """Measure the tokens per round of each method, with the bundled model on this device."""
    found = []
    for method in (PLAIN, ADT_TREE, WINDOW, MERGED):
        pipeline = pipeline_of(*trained(usual_dtype(), rehearse), method)
        decoding = pipeline.decoding(captions(FIRST_CAPTION, 1 if rehearse else 4))
        decode_rounds(decoding)
        report = decoding.trace.report()
        tree = None
        if method == ADT_TREE:
            tree = (max(1, round(report["mean_depth"])), 2, max(1, round(report["mean_drafts"])))
        found.append(TreeCase(TITLES[method], method, "bundled model", report["tau"], tree))
    return tuple(found)


def _pipeline(trace: TreeCase, target: Target, network: Drafter) -> Pipeline:
    """Return a pipeline whose rounds draft the trees of a `TreeCase`."""
    if trace.tree is not None:
        return tree_pipeline(target, network, *trace.tree)
    return pipeline_of(target, network, trace.method)


def _row(shape: str, engine: str, trace: TreeCase, seconds: list[float], prefill: float, length: int) -> dict:
    rounds = 1 + (length - 1) / trace.tau
    return {
        "table": "Seconds an image, computed",
        "shape": shape,
        "engine": engine,
        "method": trace.title,
        "tau": trace.tau,
        "tau of": trace.source,
        "round, ms": spread(seconds, 1000),
        "prompt, ms": 1000 * prefill,
        "seconds": prefill + rounds * statistics.median(seconds),
    }


def _prefill_seconds(pipeline: Pipeline) -> float:
    """Return the seconds for reading a prompt and generating the noise of an image, after a warm-up."""
    for _ in range(2):
        decoding = pipeline.decoding(["A picture."])
        decode_rounds(decoding, 1)
    return decoding.trace.prefill_seconds


def _other_engines(shape: ModelShape, length: int) -> tuple[dict[str, Step], dict[str, str]]:
    """Return plain decoding by transformers with each cache that works, and the errors of the others."""
    steps: dict[str, Step] = {}
    failed: dict[str, str] = {}
    try:
        model = transformers_model(shape)
    except Exception as error:  # an incompatible version of transformers
        return {}, {TRANSFORMERS: device.describe_error(error)}
    for kind in ("dynamic", "static"):
        engine = f"{TRANSFORMERS}, {kind} cache"
        try:
            steps[engine] = transformers_step(model, shape, length, kind)
            steps[engine].step()  # warm-up
        except Exception as error:
            failed[engine] = device.describe_error(error)
            device.synchronise()
    return steps, failed


def _measure(name: str, rehearse: bool) -> Iterator[dict]:
    shape = shape_of(name, rehearse)
    repeats, warm_up = (2, 1) if rehearse else (30, 8)
    target = random_target(name, shape, torch.bfloat16)
    network = random_network(target)
    length = target.length
    short = with_quarter_grid(target) if length > LONGEST else target
    chosen = [*traces(rehearse), *(PAPER if name == SEVEN_B else ())]
    pipelines = {f"{trace.title}, {trace.source}": _pipeline(trace, short, network) for trace in chosen}
    streams = {key: Stream(pipeline, modes()[0], warm_up=warm_up) for key, pipeline in pipelines.items()}
    others, failed = _other_engines(shape, short.length)
    timers: dict[str, Callable[[], float]] = {key: stream.seconds for key, stream in streams.items()}
    timers |= {key: partial(seconds_of, other.step) for key, other in others.items()}
    times, more_failed = device.measure_interleaved(timers, repeats)
    for stream in streams.values():
        stream.close()
    rows = []
    for (key, pipeline), trace in zip(pipelines.items(), chosen):
        if key in times:
            rows.append(_row(name, OURS, trace, times[key], _prefill_seconds(pipeline), length))
    plain = TreeCase(TITLES[PLAIN], PLAIN, "1 by definition", 1.0)
    rows += [_row(name, key, plain, times[key], others[key].prefill, length) for key in others if key in times]
    yield from with_speedups(rows)
    yield from ({"what": f"{name}, {key}", "error": error} for key, error in (failed | more_failed).items())


def with_speedups(rows: list[dict]) -> list[dict]:
    """Return the rows with columns for the speed-ups added. If a baseline is missing, its speed-ups are None."""
    transformers = min((row["seconds"] for row in rows if row["engine"].startswith(TRANSFORMERS)), default=None)
    plain = next((row["seconds"] for row in rows if (row["engine"], row["method"]) == (OURS, TITLES[PLAIN])), None)
    baselines = {"times plain": plain, "times transformers": transformers}
    return [row | {name: seconds and seconds / row["seconds"] for name, seconds in baselines.items()} for row in rows]


def cases(rehearse: bool) -> list[Case]:
    """Return the cases of this part, one per model shape."""
    return [(name, partial(_measure, name, rehearse)) for name in SHAPES]
