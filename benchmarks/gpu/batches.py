"""Throughput by batch size.

Complete images of the bundled model are timed, so the tokens per second are measured.

*Times plain* is the speed-up over plain decoding with the same batch size.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from adt_core import AdtError, Pipeline
from adt_core.policies import PLAIN

from ..harness import captions
from .device import Case, measure_interleaved, seconds_of, spread, usual_dtype
from .models import ADT_TREE, MERGED, TITLES, WINDOW, pipeline_of, trained

SIZES = (1, 8, 32, 64)
METHODS = (PLAIN, ADT_TREE, WINDOW, MERGED)
FIRST_CAPTION = 3300  # number of the first held-out caption of this part


def decode_batch(pipeline: Pipeline, size: int) -> float:
    """Decode a batch of held-out captions, and return the seconds.

    Raises:
        AdtError: If the engine has reduced the batch size for lack of memory.
    """
    decoding = pipeline.decoding(captions(FIRST_CAPTION, size), list(range(size)))
    seconds = seconds_of(decoding.run)
    if decoding.batch_size < size:
        raise AdtError(f"memory ran out; the engine reduced the batch size from {size} to {decoding.batch_size}")
    return seconds


def _bundled(size: int, rehearse: bool) -> Iterator[dict]:
    target, network = trained(usual_dtype(), rehearse)
    pipelines = {method: pipeline_of(target, network, method) for method in METHODS}
    for pipeline in pipelines.values():
        decode_batch(pipeline, size)  # warm-up
    calls = {method: partial(decode_batch, pipeline, size) for method, pipeline in pipelines.items()}
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


def cases(rehearse: bool) -> list[Case]:
    """Return the cases of this part, one per batch size."""
    sizes = (1, 2) if rehearse else SIZES
    return [(f"bundled {size}", partial(_bundled, size, rehearse)) for size in sizes]
