"""Seconds an image: this engine beside transformers, and LANTERN's public code where it is at hand.

All figures are *computed*: seconds of a round or step, by the number of them in an image, and the seconds of reading
the prompt. Weights are random, so the tokens of a round (*tau*) come from elsewhere: from the bundled model on this
device, or from the paper's tables (*paper*; summaries of arXiv 2512.21857, temperature 0 on COCO unless told). Trees
have the mean depth and size that belong to that tau. The codec's work is left out. transformers decodes the same shape
with guidance in one batch of two rows, launched one by one as its users do, without padding. Steps and rounds of a
model take turns. *Times transformers* compares with the faster of its caches. Rounds and prompts of Emu3 are those of
an image of a quarter of its size.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

import torch

from adt_core import Target
from adt_core.app.jobs import new_decoding
from adt_core.drafters import Drafter
from adt_core.engine.job import Job
from adt_core.policies import PLAIN

from ..harness import captions
from . import device
from .device import Case, modes, seconds_of, spread, the_device
from .models import (
    ADT_TREE,
    BOTH,
    SEVEN_B,
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
from .others import Step, lantern_step, transformers_model, transformers_step
from .pieces import LONGEST

FIRST = 3500  # held-out caption of this part
OURS, TRANSFORMERS, LANTERN_CODE = "this engine", "transformers", "LANTERN's public code"


class Trace(NamedTuple):
    """How drafts fared. source: where that is known from. tree: depth, width and drafts of the trees, if the method's
    own size would depend on what is accepted."""

    title: str
    method: str
    source: str
    tau: float
    tree: tuple[int, int, int] | None = None


PAPER = (
    Trace("ADT-Tree", ADT_TREE, "paper", 3.40, (4, 10, 58)),
    Trace("ADT-Tree", ADT_TREE, "paper, PartiPrompts", 3.97, (4, 10, 58)),
    Trace("ADT-Tree, LANTERN", ADT_TREE, "paper", 4.86, (5, 10, 58)),
)
"""Depths are the paper's mean depths, 3.86, 4.31 and 5.15; widths and drafts are those of the public code."""


@cache
def traces(rehearse: bool) -> tuple[Trace, ...]:
    """Of the bundled model on this device, method by method."""
    dtype, found = torch.bfloat16 if the_device().type == "cuda" else torch.float32, []
    for method in (PLAIN, ADT_TREE, WINDOW, BOTH):
        decoding = new_decoding(job_of(*trained(dtype, rehearse), method), captions(FIRST, 1 if rehearse else 4))
        drawn(decoding)
        report = decoding.trace.report()
        tree = (max(1, round(report["mean_depth"])), 2, max(1, round(report["mean_nodes"])))
        known = (TITLES[method], method, "bundled model", report["tau"])
        found.append(Trace(*known, tree if method == ADT_TREE else None))
    return tuple(found)


def _job(trace: Trace, target: Target, network: Drafter, guidance: float) -> Job:
    """Rounds of the size that belongs to a trace."""
    if trace.tree is not None:
        return tree_job(target, network, *trace.tree, guidance=guidance)
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


def _prefill(job: Job) -> float:
    """Seconds of reading a prompt and making an image's noise; the first time does not count."""
    for _ in range(2):
        decoding = new_decoding(job, ["A picture."])
        drawn(decoding, 1)
    return decoding.trace.prefill_seconds


def _others(name: str, shape: Shape, length: int) -> tuple[dict[str, Step], dict[str, str]]:
    """Plain decoding by others, and what went wrong, by engine."""
    found, failed = {}, {}
    try:
        model = transformers_model(shape)
        made = {f"{TRANSFORMERS}, {kind} cache": partial(transformers_step, model, shape, length, kind)
                for kind in ("dynamic", "static")}  # fmt: skip
    except Exception as error:  # a version of transformers that works otherwise
        made, failed[TRANSFORMERS] = {}, device.last_line(error)
    if name == SEVEN_B and (repository := _lantern()):
        made[LANTERN_CODE] = partial(lantern_step, repository, shape, length)
    for engine, make in made.items():
        try:
            found[engine] = make()
            found[engine].step()  # the first call is slow
        except Exception as error:
            failed[engine] = device.last_line(error)
            device.synchronise()
    return found, failed


def _measure(name: str, rehearse: bool) -> Iterator[dict]:
    shape, repeats, warm = shape_of(name, rehearse), 2 if rehearse else 30, 1 if rehearse else 8
    target = random_target(name, shape, torch.bfloat16)
    network, length = random_network(target), target.length
    short = halved(target) if length > LONGEST else target
    chosen = [*traces(rehearse), *(PAPER if name == SEVEN_B else ())]
    jobs = {f"{trace.title}, {trace.source}": _job(trace, short, network, shape.guidance) for trace in chosen}
    streams = {key: Stream(job, modes()[0], warm=warm) for key, job in jobs.items()}
    others, failed = _others(name, shape, short.length)
    clocks: dict[str, Callable[[], float]] = {key: stream.seconds for key, stream in streams.items()}
    clocks |= {key: partial(seconds_of, other.step) for key, other in others.items()}
    taken, more = device.interleaved(clocks, repeats)
    for stream in streams.values():
        stream.close()
    rows = []
    for (key, job), trace in zip(jobs.items(), chosen):
        if key in taken:
            rows.append(_row(name, OURS, trace, taken[key], _prefill(job), length))
    one = Trace(TITLES[PLAIN], PLAIN, "1 by definition", 1.0)
    rows += [_row(name, key, one, taken[key], others[key].prefill, length) for key in others if key in taken]
    yield from compared(rows)
    yield from ({"what": f"{name}, {key}", "error": error} for key, error in (failed | more).items())


def compared(rows: list[dict]) -> list[dict]:
    """The rows with their ratios; None where there is nothing to compare with."""
    theirs = min((row["seconds"] for row in rows if row["engine"].startswith(TRANSFORMERS)), default=None)
    plain = next((row["seconds"] for row in rows if (row["engine"], row["method"]) == (OURS, TITLES[PLAIN])), None)
    compare = {"times plain": plain, "times transformers": theirs}
    return [row | {name: other and other / row["seconds"] for name, other in compare.items()} for row in rows]


def _lantern() -> Path | None:
    """The checkout of LANTERN's public code that LANTERN_REPO names."""
    named = os.environ.get("LANTERN_REPO")
    return Path(named) if named and Path(named).is_dir() else None


def _is_there() -> Iterator[dict]:
    found = _lantern()
    said = f"timed with {SEVEN_B}" if found else "not there: LANTERN_REPO names no folder"
    yield {"table": LANTERN_CODE, "checkouts": int(found is not None), "said": said}


def cases(rehearse: bool) -> list[Case]:
    return [(LANTERN_CODE, _is_there), *((name, partial(_measure, name, rehearse)) for name in SHAPES)]
