"""Throughput by batch size.

For the bundled model, the benchmark times complete images, so the tokens per second are measured.

The 7B model has random weights, so it cannot show how many drafts a real model accepts. For this model, the benchmark
times rounds, and the tokens per second are *computed* from three numbers::

    tokens per second = images * tokens per round / seconds of a round

Tokens per round counts the tokens of one image. It is measured on the bundled model with the same method and batch
size. The methods run one after the other, because the caches of all methods do not fit into memory beside the 7B model.

*Times plain* is the speed-up over plain decoding with the same batch size.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from functools import cache, partial

import numpy as np
import torch

from adt_core import AdtError, Decoding
from adt_core.app.pipeline import Pipeline
from adt_core.policies import PLAIN

from ..harness import captions
from .device import Case, measure_interleaved, modes, seconds_of, spread, the_device
from .models import (
    ADT_TREE,
    BOTH,
    SEVEN_B,
    TITLES,
    WINDOW,
    Stream,
    pipeline_of,
    random_network,
    random_target,
    shape_of,
    trained,
)

SIZES = (1, 8, 32, 64)
METHODS = (PLAIN, ADT_TREE, WINDOW, BOTH)
FIRST_CAPTION = 3300  # number of the first held-out caption of this part


def _dtype() -> torch.dtype:
    return torch.bfloat16 if the_device().type == "cuda" else torch.float32


def check_batch_size(decoding: Decoding, size: int) -> None:
    """Check that the engine decodes as many images at the same time as requested.

    Raises:
        AdtError: If the engine has reduced the batch size for lack of memory.
    """
    if decoding.at_once < size:
        raise AdtError(f"memory ran out; the engine reduced the batch size from {size} to {decoding.at_once}")


def decode_batch(pipeline: Pipeline, size: int) -> tuple[float, float]:
    """Decode a batch of held-out captions. Return the seconds, and the mean tokens per round and image."""
    decoding = pipeline.decoding(captions(FIRST_CAPTION, size), list(range(size)))
    seconds = seconds_of(lambda: decoding.run())
    check_batch_size(decoding, size)
    return seconds, decoding.trace.report()["tau"]


@cache
def tokens_per_round(method: str, size: int, rehearse: bool) -> float:
    """Return the measured tokens per round and image of the bundled model, for a method and a batch size."""
    return decode_batch(pipeline_of(*trained(_dtype(), rehearse), method), size)[1]


def _bundled(size: int, rehearse: bool) -> Iterator[dict]:
    target, network = trained(_dtype(), rehearse)
    pipelines = {method: pipeline_of(target, network, method) for method in METHODS}
    for pipeline in pipelines.values():
        decode_batch(pipeline, size)  # warm-up
    calls = {
        method: lambda pipeline=pipeline: decode_batch(pipeline, size)[0] for method, pipeline in pipelines.items()
    }
    repeats = 5 if size == 1 else 3
    times, failed = measure_interleaved(calls, 1 if rehearse else repeats)
    for method, seconds in times.items():
        tokens = size * target.length
        row = {"table": "Batches of the bundled model", "method": TITLES[method], "images": size}
        row["tokens/s"] = spread([tokens / value for value in seconds])
        if PLAIN in times:
            row["times plain"] = spread(list(np.array(times[PLAIN]) / np.array(seconds)))
        yield row
    yield from ({"what": f"bundled, {method}", "error": error} for method, error in failed.items())


def _seven(size: int, rehearse: bool) -> Iterator[dict]:
    shape = shape_of(SEVEN_B, rehearse)
    target = random_target(SEVEN_B, shape, _dtype())
    network = random_network(target)
    plain = None
    for method in METHODS:
        tau = tokens_per_round(method, size, rehearse)
        row = {"table": f"Batches of {SEVEN_B}", "method": TITLES[method], "images": size}
        stream = Stream(pipeline_of(target, network, method), modes()[0], size, warm_up=1 if rehearse else 6)
        seconds = [stream.seconds() for _ in range(2 if rehearse else 20)]
        check_batch_size(stream.decoding, size)
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
    """Return the cases of this part. A case measures one model with one batch size."""
    sizes = (1, 2) if rehearse else SIZES
    bundled = [(f"bundled {size}", partial(_bundled, size, rehearse)) for size in sizes]
    return bundled + [(f"{SEVEN_B} {size}", partial(_seven, size, rehearse)) for size in sizes]
