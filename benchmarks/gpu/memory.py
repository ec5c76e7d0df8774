"""Peak memory of a decoding, compared with the engine's estimate.

*Said* is the estimate: ``Decoding.memory_required`` plus the bytes of the weights. The models have random weights. The
benchmark decodes only the first rounds of an image, because the caches have their full size from the start. The codec
runs after the last round and is not included.

A second table shows what happens under a memory limit. *Outcome* is the result that a user would see. Only the last row
loads a model from files. The other rows create random weights on the device, so they do not test the loader's error for
weights that are too large.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch

from adt_core import AdtError, load_target
from adt_core.policies import PLAIN

from .device import Case, describe_error, free_memory, limit_memory, peaks, the_device
from .models import (
    MERGED,
    SHAPES,
    TITLES,
    all_bytes,
    decode_rounds,
    pipeline_of,
    random_network,
    random_target,
    shape_of,
)

GIB = 2**30
METHODS = (PLAIN, MERGED)
ROUNDS = 8
SMALL_CARD = 12 * GIB
TOO_SMALL = 4 * 2**20  # memory limit in bytes, below the weights of the bundled model


def _few_rounds(name: str, weights: str | None, method: str, rehearse: bool) -> dict[str, float | None]:
    """Decode a few rounds. Return the estimated memory and the peak memory in GiB."""
    target = random_target(name, shape_of(name, rehearse), torch.bfloat16, weights)
    network = None if method == PLAIN else random_network(target)
    free_memory()
    decoding = pipeline_of(target, network, method).decoding(["A picture."])
    stored = all_bytes(target.decoder, target.codec, network)
    estimate = stored + decoding.memory_required()
    decode_rounds(decoding, 2 if rehearse else ROUNDS)
    peak = peaks()
    allocated, reserved = (None, None) if peak is None else (part / GIB for part in peak)
    return {
        "weights, GiB": stored / GIB,
        "said, GiB": estimate / GIB,
        "allocated, GiB": allocated,
        "reserved, GiB": reserved,
        "allocated / said": allocated and allocated * GIB / estimate,
    }


def _measure(name: str, weights: str | None, method: str, rehearse: bool) -> Iterator[dict]:
    row = {"table": "Memory", "shape": name, "weights": weights or "bf16", "method": TITLES[method]}
    yield row | _few_rounds(name, weights, method, rehearse)


def outcome(run: Callable[[], object]) -> str:
    """Run a function, and describe the result for a user: success, an error of the engine, or an error of torch."""
    try:
        run()
    except AdtError as error:
        return f"a sentence: {error}"
    except torch.cuda.OutOfMemoryError as error:
        return f"torch's error: {describe_error(error)}"
    return "it ran"


def _limited(what: str, limit: int, run: Callable[[], object]) -> Iterator[dict]:
    limit_memory(limit)
    try:
        result = outcome(run)
    finally:
        limit_memory(None)
    limited = the_device().type == "cuda"
    yield {"table": "Under a limit", "what": what, "limit, GiB": limit / GIB, "limited": limited, "outcome": result}


def cases(rehearse: bool) -> list[Case]:
    """Return the cases of this part.

    There is a case for each shape, weight type and method without a memory limit, then one for each shape with a limit.
    The last case loads the bundled model with a limit that is too small.
    """
    found = [
        (f"{name} {weights or 'bf16'} {method}", partial(_measure, name, weights, method, rehearse))
        for name in SHAPES
        for weights in (None, "int8", "int4")
        for method in METHODS
    ]
    for name in SHAPES:
        what = f"{name}, int8, network and window"
        run = partial(_few_rounds, name, "int8", MERGED, rehearse)
        found.append((f"{what}, limited", partial(_limited, what, SMALL_CARD, run)))
    load = partial(load_target, "bundled", the_device(), torch.bfloat16)
    return [*found, ("too small", partial(_limited, "loading the bundled model", TOO_SMALL, load))]
