"""Memory that a decoding took at most, beside what the engine said that it would take; random weights.

*Said* is ``Decoding.memory_required`` and the bytes of the weights. A few rounds are decoded from the top of an image;
caches are whole from the beginning. The codec, which is at work after the last round, is not. Under a limit, *outcome*
is what a user would be told. Only the last row loads a model. In the others the weights are made on the device, so they
don't show what a loader says of weights that do not fit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch

from adt_core import AdtError, load_target
from adt_core.app.jobs import new_decoding
from adt_core.policies import PLAIN

from .device import Case, free_memory, last_line, limit_memory, peaks, the_device
from .models import BOTH, SHAPES, TITLES, all_bytes, drawn, job_of, random_network, random_target, shape_of

METHODS, ROUNDS, GIB = (PLAIN, BOTH), 8, 2**30
SMALL_CARD = 12 * GIB
TOO_SMALL = 4 * 2**20
"""Less than the weights of the bundled model take."""


def _few_rounds(name: str, weights: str | None, method: str, rehearse: bool) -> dict[str, float | None]:
    """Memory of a few rounds, in GiB."""
    shape = shape_of(name, rehearse)
    target = random_target(name, shape, torch.bfloat16, weights)
    network = random_network(target) if method in METHODS[1:] else None
    free_memory()
    decoding = new_decoding(job_of(target, network, method, guidance=shape.guidance), ["A picture."])
    stored = all_bytes(target.decoder, target.codec, network)
    said = stored + decoding.memory_required()
    drawn(decoding, 2 if rehearse else ROUNDS)
    allocated, reserved = (None, None) if (found := peaks()) is None else (part / GIB for part in found)
    return {
        "weights, GiB": stored / GIB,
        "said, GiB": said / GIB,
        "allocated, GiB": allocated,
        "reserved, GiB": reserved,
        "allocated / said": allocated and allocated * GIB / said,
    }


def _measure(name: str, weights: str | None, method: str, rehearse: bool) -> Iterator[dict]:
    row = {"table": "Memory", "shape": name, "weights": weights or "bf16", "method": TITLES[method]}
    yield row | _few_rounds(name, weights, method, rehearse)


def outcome(run: Callable[[], object]) -> str:
    """What a user would be told: that it ran, the engine's sentence, or torch's error."""
    try:
        run()
    except AdtError as error:
        return f"a sentence: {error}"
    except torch.cuda.OutOfMemoryError as error:
        return f"torch's error: {last_line(error)}"
    return "it ran"


def _limited(what: str, most: int, run: Callable[[], object]) -> Iterator[dict]:
    limit_memory(most)
    try:
        told = outcome(run)
    finally:
        limit_memory(None)
    limited = the_device().type == "cuda"
    yield {"table": "Under a limit", "what": what, "limit, GiB": most / GIB, "limited": limited, "outcome": told}


def cases(rehearse: bool) -> list[Case]:
    kinds = (None, "int8")
    found = [
        (f"{name} {weights or 'bf16'} {method}", partial(_measure, name, weights, method, rehearse))
        for name in SHAPES for weights in kinds for method in METHODS
    ]  # fmt: skip
    for name in SHAPES:
        for weights in kinds[1:]:
            what, run = f"{name}, {weights or 'bf16'}, network and window", partial(_few_rounds, name, weights, BOTH)
            found.append((f"{what}, limited", partial(_limited, what, SMALL_CARD, partial(run, rehearse))))
    load = partial(load_target, "bundled", the_device(), torch.bfloat16)
    return [*found, ("too small", partial(_limited, "loading the bundled model", TOO_SMALL, load))]
