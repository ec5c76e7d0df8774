"""Half precision: how often does a method draw another image than plain decoding? The bundled model on this device.

With the exact mode no image may differ; without it, this shows what the mode is for.
*First* is the median position of the first token that differs, of the images that differ. *Flips per token*: images
that differ, by the tokens up to the first that differs; later ones follow from it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial

import torch
from torch import Tensor

from adt_core.app.jobs import new_decoding
from adt_core.policies import PLAIN

from ..harness import captions
from .device import Case
from .models import LANTERN, TITLES, drawn, job_of, trained
from .tokens import agreement

FIRST, IMAGES = 3400, 8  # first held-out caption of this part, and how many


@cache
def _codes(method: str, dtype: torch.dtype, exact: bool, rehearse: bool) -> Tensor:
    """Codes [images, T] of a method."""
    target, drafter = trained(dtype, rehearse)
    target.decoder.exact = exact
    job = job_of(target, drafter, method)
    return torch.cat([drawn(new_decoding(job, [prompt])) for prompt in captions(FIRST, 1 if rehearse else IMAGES)])


def flips(codes: Tensor, expected: Tensor) -> float:
    """Images that differ, by the tokens up to the first that differs. Codes [B, T]; -1 where nothing was drawn."""
    known = (codes >= 0) & (expected >= 0)
    differs = (codes != expected) & known
    alike = ((differs.cumsum(1) == 0) & known).sum(1)
    return float(differs.any(1).sum() / (alike + differs.any(1)).sum())


def _measure(method: str, dtype: torch.dtype, exact: bool, rehearse: bool) -> Iterator[dict]:
    plain, codes = (_codes(name, dtype, exact, rehearse) for name in (PLAIN, method))
    found = agreement(codes, plain)
    mode = "on" if exact else "off"
    yield (
        {"table": "Half precision", "dtype": str(dtype)[6:], "method": TITLES[method], "exact": mode}
        | found
        | {"flips per token": flips(codes, plain)}
    )


def cases(rehearse: bool) -> list[Case]:
    lossless = [name for name in TITLES if name not in (PLAIN, LANTERN)]
    return [
        (f"{dtype} {method} exact {exact}", partial(_measure, method, dtype, exact, rehearse))
        for exact in (True, False)
        for dtype in (torch.bfloat16, torch.float16)
        for method in lossless
    ]
