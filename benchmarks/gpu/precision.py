"""Check that drafting does not change the images of the bundled model in half precision on this device.

In the batch-invariant mode (*exact* on), every image must be equal to the image of plain decoding. With *exact* off,
images may differ, and the differences show why the mode exists. *First* is the median position of the first different
token, over the images that differ. *Flips per token* estimates how likely it is that a token differs: the number of
different images, divided by the number of tokens up to and including their first difference. Later tokens do not count,
because the first different token changes them, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache, partial

import torch
from torch import Tensor

from adt_core.policies import PLAIN

from ..harness import captions
from .device import Case
from .models import LANTERN, MERGED, TITLES, decode_rounds, pipeline_of, trained
from .tokens import agreement

FIRST_CAPTION = 3400  # number of the first held-out caption of this part
IMAGES = 8
FIRST_METHODS = (MERGED, "auto")


@cache
def _codes(method: str, dtype: torch.dtype, exact: bool, rehearse: bool) -> Tensor:
    """Decode images with a method, and return their codes [images, T], with T tokens per image."""
    target, drafter = trained(dtype, rehearse)
    target.decoder.exact = exact
    pipeline = pipeline_of(target, drafter, method)
    prompts = captions(FIRST_CAPTION, 1 if rehearse else IMAGES)
    return torch.cat([decode_rounds(pipeline.decoding([prompt])) for prompt in prompts])


def flips(codes: Tensor, expected: Tensor) -> float:
    """Return the number of different images, divided by the number of tokens up to and including the first difference.

    For example, two images of 100 tokens are compared. One is equal, the other first differs at its 50th token. The
    result is 1 / (100 + 50).

    Args:
        codes: Codes [B, T] of B images with T tokens. -1 marks tokens that were not decoded.
        expected: Codes [B, T] to compare with. -1 has the same meaning.
    """
    decoded = (codes >= 0) & (expected >= 0)
    differs = (codes != expected) & decoded
    equal_prefix = ((differs.cumsum(1) == 0) & decoded).sum(1)
    return float(differs.any(1).sum() / (equal_prefix + differs.any(1)).sum())


def _measure(method: str, dtype: torch.dtype, exact: bool, rehearse: bool) -> Iterator[dict]:
    plain, codes = (_codes(name, dtype, exact, rehearse) for name in (PLAIN, method))
    mode = "on" if exact else "off"
    row = {"table": "Half precision", "dtype": str(dtype)[6:], "method": TITLES[method], "exact": mode}
    yield row | agreement(codes, plain) | {"flips per token": flips(codes, plain)}


def _cases(methods: Sequence[str], exact: bool, rehearse: bool) -> list[Case]:
    return [
        (f"{dtype} {method} exact {exact}", partial(_measure, method, dtype, exact, rehearse))
        for dtype in (torch.bfloat16, torch.float16)
        for method in methods
    ]


def cases(rehearse: bool) -> list[Case]:
    """Return the most important cases: network and window, and auto, with exact on."""
    return _cases(FIRST_METHODS, True, rehearse)


def other_cases(rehearse: bool) -> list[Case]:
    """Return the other cases: the other lossless methods with exact on, and all lossless methods with exact off."""
    lossless = [name for name in TITLES if name not in (PLAIN, LANTERN)]
    others = [name for name in lossless if name not in FIRST_METHODS]
    return _cases(others, True, rehearse) + _cases(lossless, False, rehearse)
