"""Compare the tokens of the bundled model on this device with the tokens on a CPU, for the same seeds.

Every method must generate the same tokens as plain decoding on a CPU. LANTERN is the exception: it must generate the
same tokens as LANTERN on a CPU. *Tokens* is the share of equal tokens. *First* is the median position of the first
different token. In float32, a token may differ if two candidates are nearly tied. All later tokens of this image may
then differ, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial

import torch
from torch import Tensor

from adt_core.policies import PLAIN

from ..harness import captions
from .device import Case, the_device
from .models import LANTERN, TITLES, bundled, decode_rounds, pipeline_of

FIRST_CAPTION = 3200  # number of the first held-out caption of this part


@cache
def _codes(method: str, dtype: torch.dtype, where: torch.device, images: int, rounds: int | None) -> Tensor:
    """Decode images with a method on a device, and return their codes [images, T], with T tokens per image."""
    pipeline = pipeline_of(*bundled(dtype, where), method)
    prompts = captions(FIRST_CAPTION, images)
    return torch.cat([decode_rounds(pipeline.decoding([prompt]), rounds) for prompt in prompts])


def agreement(codes: Tensor, expected: Tensor) -> dict[str, float | int | None]:
    """Compare the tokens of two decodings.

    Args:
        codes: Codes [B, T] of B images with T tokens. -1 marks tokens that were not decoded.
        expected: Codes [B, T] to compare with. -1 has the same meaning. Positions with -1 in either tensor do not
            count.

    Returns:
        Number of images, number of equal images, share of equal tokens, and median position of the first different
        token.
    """
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
    """Return the cases of this part: every method in float32, then every method in float64."""
    found = []
    for dtype, images in ((torch.float32, 6), (torch.float64, 2)):
        amounts = (1, 4) if rehearse else (images, None)
        found += [(f"{dtype} {method}", partial(_measure, method, dtype, *amounts)) for method in TITLES]
    return found
