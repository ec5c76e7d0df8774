"""Seconds an image: this engine beside transformers, and LANTERN's public code where it is at hand.

All figures are *computed*: seconds of a round or step, by the number of them in an image, and the seconds of reading
the prompt. Weights are random, so the tokens of a round (*tau*) come from elsewhere: from the bundled model on this
device, or from the paper's tables (*paper*; summaries of arXiv 2512.21857, temperature 0 on COCO unless told). Trees
have the mean depth and size that belong to that tau. The codec's work is left out. transformers decodes the same shape
with guidance in one batch of two rows, launched one by one as its users do, without padding. Steps and rounds of a
model take turns. *Times transformers* compares with the faster of its caches.
"""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

import torch

from adt_core import Target
from adt_core.app.jobs import Job
from adt_core.policies import PLAIN

from ..harness import captions
from . import device
from .device import Case, modes, seconds_of, spread, the_device
from .models import (
    ADT_TREE,
    BOTH,
    SHAPES,
    TITLES,
    WINDOW,
    Shape,
    Stream,
    drawn,
    halved,
    job_of,
    random_network,
    random_target,
    shape_of,
    trained,
    tree_job,
)
from .others import lantern_step, transformers_step
from .pieces import LONGEST

FIRST = 3500  # held-out caption of this part
OTHERS = "transformers"


class Trace(NamedTuple):
    """How drafts fared. source: where that is known from."""

    title: str
    method: str
    source: str
    tau: float
    depth: float = 0
    width: int = 2
    nodes: float = 0


PAPER = (
    Trace("ADT-Tree", ADT_TREE, "paper", 3.40, 3.86, 10, 58),
    Trace("ADT-Tree", ADT_TREE, "paper, PartiPrompts", 3.97, 4.31, 10, 58),
    Trace("ADT-Tree, LANTERN", ADT_TREE, "paper", 4.86, 5.15, 10, 58),
)


@cache
def traces(rehearse: bool) -> tuple[Trace, ...]:
    """Of the bundled model on this device, method by method."""
    dtype, found = torch.bfloat16 if the_device().type == "cuda" else torch.float32, []
    for method in (PLAIN, ADT_TREE, WINDOW, BOTH):
        decoding = job_of(*trained(dtype, rehearse), method).decoding(captions(FIRST, 1 if rehearse else 4))
        drawn(decoding)
        report = decoding.trace.report()
        found.append(Trace(TITLES[method], method, "bundled model", report["tau"], report["mean_depth"], 2,
                           report["mean_nodes"]))  # fmt: skip
    return tuple(found)


def _job(trace: Trace, target: Target, network, guidance: float) -> Job:
    """Rounds of the size that belongs to a trace: ADT-Tree's own size would depend on what is accepted."""
    if trace.method == ADT_TREE:
        tree = (max(1, round(trace.depth)), trace.width, max(1, round(trace.nodes)))
        return tree_job(target, network, *tree, guidance=guidance)
    return job_of(target, network, trace.method, guidance=guidance)


def _row(shape: str, engine: str, trace: Trace, seconds: list[float], prefill: float, length: int) -> dict:
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


def _measure(name: str, rehearse: bool) -> Iterator[dict]:
    shape, repeats = shape_of(name, rehearse), 2 if rehearse else 30
    target = random_target(name, shape, torch.bfloat16)
    network, length = random_network(target), target.length
    short = halved(target) if length > LONGEST else target
    chosen = [*traces(rehearse), *(PAPER if name == next(iter(SHAPES)) else ())]
    streams = {
        f"{trace.title}, {trace.source}": (
            trace, Stream(_job(trace, short, network, shape.guidance), modes()[0], warm=1 if rehearse else 8)
        )
        for trace in chosen
    }  # fmt: skip
    clocks: dict[str, Callable[[], float]] = {key: stream.seconds for key, (_, stream) in streams.items()}
    failed, prefills = {}, {}
    for kind in ("dynamic", "static"):
        key = f"{OTHERS}, {kind} cache"
        try:
            step = transformers_step(shape, short.length, kind)
            prefills[key], clocks[key] = step.prefill, partial(seconds_of, step.step)
            step.step()  # the first call is slow
        except Exception as error:  # a version of transformers that works otherwise
            failed[key] = device.last_line(error)
    taken, more = device.interleaved(clocks, repeats)
    rows = []
    for key, seconds in taken.items():
        if key in streams:
            trace, stream = streams[key]
            rows.append(_row(name, "this engine", trace, seconds, stream.decoding.trace.prefill_seconds, length))
            stream.close()
        else:
            rows.append(_row(name, key, Trace("plain", PLAIN, "1 by definition", 1.0), seconds, prefills[key], length))
    yield from compared(rows)
    yield from ({"what": f"{name}, {key}", "error": error} for key, error in (failed | more).items())


def compared(rows: list[dict]) -> list[dict]:
    """The rows with their ratios; None where there is nothing to compare with."""
    theirs = min((row["seconds"] for row in rows if row["engine"].startswith(OTHERS)), default=None)
    plain = next((row["seconds"] for row in rows if row["engine"] == "this engine" and row["method"] == "plain"), None)
    compare = {"times plain": plain, "times transformers": theirs}
    return [row | {name: other and other / row["seconds"] for name, other in compare.items()} for row in rows]


def _lantern(shape: Shape, rehearse: bool) -> Iterator[dict]:
    repository = os.environ.get("LANTERN_REPO")
    if not repository or not Path(repository).is_dir():
        said = "not there: LANTERN_REPO names no folder"
        yield {"table": "LANTERN's public code", "folder": repository, "said": said, "step, ms": None, "steps": 0}
        return
    sys.path.insert(0, repository)
    step, repeats = lantern_step(shape, shape.grid[0] * shape.grid[1]), 2 if rehearse else 30
    step()
    seconds = [seconds_of(step) for _ in range(repeats)]
    yield {"table": "LANTERN's public code", "folder": repository, "said": "plain steps of its Anole",
           "step, ms": spread(seconds, 1000), "steps": repeats}  # fmt: skip


def cases(rehearse: bool) -> list[Case]:
    first = next(iter(SHAPES))
    found = [(name, partial(_measure, name, rehearse)) for name in SHAPES]
    return [*found, ("LANTERN's public code", partial(_lantern, shape_of(first, rehearse), rehearse))]
