"""Compare the bundled model's tokens on this device with those on a CPU, for the same seeds.

Every method except LANTERN must generate the tokens of plain decoding on a CPU; LANTERN must generate its own tokens on
a CPU. *Tokens* is the share of equal tokens, and *first* the median position of the first different one. In float32, a
token may differ if two candidates are nearly tied, and all later tokens of the image with it.
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
from .models import LANTERN, TITLES, bundled, decode_rounds, job_of

FIRST_CAPTION = 3200  # number of the first held-out caption of this part


@cache
def _codes(method: str, dtype: torch.dtype, where: torch.device, images: int, rounds: int | None) -> Tensor:
    """Return the codes [images, T] of a method on a device."""
    job = job_of(*bundled(dtype, where), method)
    prompts = captions(FIRST_CAPTION, images)
    return torch.cat([decode_rounds(new_decoding(job, [prompt]), rounds) for prompt in prompts])


def agreement(codes: Tensor, expected: Tensor) -> dict[str, float | int | None]:
    """Compare codes [B, T]; positions where either is -1 were not decoded and don't count."""
    decoded = (codes >= 0) & (expected >= 0)
    same = (codes == expected) | ~decoded
    first = [row.tolist().index(False) for row in same if not row.all()]
    return {
        "images": len(codes),
        "equal images": int(same.all(1).sum()),
        "tokens": float((same & decoded).sum() / decoded.sum()),
        "first": float(torch.tensor(first).float().median()) if first else None,
    }


def _measure(method: str, dtype: torch.dtype, images: int, rounds: int | None) -> Iterator[dict]:
    reference = method if method == LANTERN else PLAIN
    expected = _codes(reference, dtype, torch.device("cpu"), images, rounds)
    result = agreement(_codes(method, dtype, the_device(), images, rounds), expected)
    yield {"table": "Tokens", "dtype": str(dtype)[6:], "method": TITLES[method], **result}


def cases(rehearse: bool) -> list[Case]:
    """Return the cases of this part: every method in float32 and float64."""
    found = []
    for dtype, images in ((torch.float32, 6), (torch.float64, 2)):
        amounts = (1, 4) if rehearse else (images, None)
        found += [(f"{dtype} {method}", partial(_measure, method, dtype, *amounts)) for method in TITLES]
    return found
