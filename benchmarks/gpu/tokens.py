"""Does this device draw the tokens that a processor draws? The bundled model with the same seeds on both.

Every method but LANTERN must draw what plain decoding draws on a processor; LANTERN must draw what it draws there.
*Tokens* is the share of tokens that are equal, and *first* the median position of the first one that is not. In
float32 a token may differ where two candidates are nearly tied, and all tokens of an image after it with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial

import torch
from torch import Tensor

from adt_core.app.jobs import new_decoding
from adt_core.policies import PLAIN

from ..harness import captions
from .device import Case, the_device
from .models import LANTERN, TITLES, bundled, drawn, job_of

FIRST = 3200  # held-out caption of this part


@cache
def _codes(method: str, dtype: torch.dtype, where: torch.device, images: int, rounds: int | None) -> Tensor:
    """Codes [images, T] of a method on a device."""
    job = job_of(*bundled(dtype, where), method)
    return torch.cat([drawn(new_decoding(job, [prompt]), rounds) for prompt in captions(FIRST, images)])


def agreement(codes: Tensor, expected: Tensor) -> dict[str, float | int | None]:
    """How far codes [B, T] agree; where one of both is -1, nothing was drawn."""
    known = (codes >= 0) & (expected >= 0)
    same = (codes == expected) | ~known
    first = [row.tolist().index(False) for row in same if not row.all()]
    return {
        "images": len(codes),
        "equal images": int(same.all(1).sum()),
        "tokens": float((same & known).sum() / known.sum()),
        "first": float(torch.tensor(first).float().median()) if first else None,
    }


def _measure(method: str, dtype: torch.dtype, images: int, rounds: int | None) -> Iterator[dict]:
    reference = method if method == LANTERN else PLAIN
    expected = _codes(reference, dtype, torch.device("cpu"), images, rounds)
    found = agreement(_codes(method, dtype, the_device(), images, rounds), expected)
    yield {"table": "Tokens", "dtype": str(dtype)[6:], "method": TITLES[method], **found}


def cases(rehearse: bool) -> list[Case]:
    found = []
    for dtype, images in ((torch.float32, 6), (torch.float64, 2)):
        amounts = (1, 4) if rehearse else (images, None)
        found += [(f"{dtype} {method}", partial(_measure, method, dtype, *amounts)) for method in TITLES]
    return found
