"""Several images at once. With the bundled model whole images are timed, so its tokens a second were seen.

With the shape of a 7B model rounds are timed, and tokens a second are *computed*: images, by the seconds of a round,
by the tokens that the bundled model decides in a round of this method and so many images. Its methods come one after
another, because their caches do not fit into memory together. *Times plain* compares with plain decoding of as many
images.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from functools import cache, partial

import numpy as np
import torch

from adt_core import AdtError
from adt_core.app.jobs import decode, new_decoding
from adt_core.engine.job import Job
from adt_core.policies import PLAIN

from ..harness import captions
from .device import Case, interleaved, modes, seconds_of, spread, the_device
from .models import (
    ADT_TREE,
    BOTH,
    SEVEN_B,
    TITLES,
    WINDOW,
    Stream,
    job_of,
    random_network,
    random_target,
    shape_of,
    trained,
)

SIZES, METHODS = (1, 2, 4, 8, 16), (PLAIN, ADT_TREE, WINDOW, BOTH)
FIRST = 3300  # held-out caption of this part


def _dtype() -> torch.dtype:
    """What people would run the models in here."""
    return torch.bfloat16 if the_device().type == "cuda" else torch.float32


def check_size(decoding, size: int) -> None:
    """AdtError if memory ran out and the engine went on with fewer images."""
    if decoding.at_once < size:
        raise AdtError(f"memory ran out, and {decoding.at_once} of {size} images were decoded at once")


def whole_image(job: Job, size: int) -> tuple[float, float]:
    """Seconds of decoding so many images, and the tokens of a round."""
    decoding = new_decoding(job, captions(FIRST, size), list(range(size)))
    seconds = seconds_of(lambda: decode(decoding))
    check_size(decoding, size)
    return seconds, decoding.trace.report()["tau"]


@cache
def tokens_a_round(method: str, size: int, rehearse: bool) -> float:
    """Of the bundled model, with so many images at once."""
    return whole_image(job_of(*trained(_dtype(), rehearse), method), size)[1]


def _bundled(size: int, rehearse: bool) -> Iterator[dict]:
    target, network = trained(_dtype(), rehearse)
    jobs = {method: job_of(target, network, method) for method in METHODS}
    for job in jobs.values():
        whole_image(job, size)  # does not count: first calls are slow
    calls = {method: lambda job=job: whole_image(job, size)[0] for method, job in jobs.items()}
    taken, failed = interleaved(calls, 1 if rehearse else 5 if size == 1 else 3)
    for method, seconds in taken.items():
        tokens = size * target.length
        row = {"table": "Batches of the bundled model", "method": TITLES[method], "images": size}
        row["tokens/s"] = spread([tokens / value for value in seconds])
        if PLAIN in taken:
            row["times plain"] = spread(list(np.array(taken[PLAIN]) / np.array(seconds)))
        yield row
    yield from ({"what": f"bundled, {method}", "error": error} for method, error in failed.items())


def _seven(size: int, rehearse: bool) -> Iterator[dict]:
    shape = shape_of(SEVEN_B, rehearse)
    target = random_target(SEVEN_B, shape, _dtype())
    network, plain = random_network(target), None
    for method in METHODS:
        tau = tokens_a_round(method, size, rehearse)
        row = {"table": f"Batches of {SEVEN_B}", "method": TITLES[method], "images": size}
        stream = Stream(job_of(target, network, method), modes()[0], size, warm=1 if rehearse else 6)
        seconds = [stream.seconds() for _ in range(2 if rehearse else 20)]
        check_size(stream.decoding, size)
        stream.close()
        rate = size * tau / statistics.median(seconds)
        plain = rate if plain is None else plain
        yield row | {
            "round, ms": spread(seconds, 1000),
            "tokens a round": tau,
            "tokens/s, computed": rate,
            "times plain, computed": rate / plain,
        }


def cases(rehearse: bool) -> list[Case]:
    sizes = SIZES[:2] if rehearse else SIZES
    found = [(f"bundled {size}", partial(_bundled, size, rehearse)) for size in sizes]
    return found + [(f"{SEVEN_B} {size}", partial(_seven, size, rehearse)) for size in sizes]
