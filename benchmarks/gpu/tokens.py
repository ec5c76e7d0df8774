"""Tokens of the bundled model on this device, compared with expected tokens for the same seeds.

- *Tokens*: in float32 and float64, every method must generate the tokens of plain decoding on a CPU. LANTERN is the
  exception: it must generate the tokens of LANTERN on a CPU. In float32, a token may differ if two candidates are
  nearly tied. All later tokens of this image may then differ, too.
- *Half precision*: every lossless method must generate the tokens of plain decoding on this device in the
  batch-invariant mode (*exact* on). With *exact* off, images may differ, and the differences show why the mode exists.

The column *tokens* is the share of equal tokens. *First* is the median position of the first different token, over the
images that differ. *Flips per token* estimates how likely it is that a token differs: the number of different images,
divided by the number of tokens up to and including their first difference. Later tokens do not count, because the first
different token changes them, too.
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

FIRST_CAPTION = 3200  # number of the first held-out caption of this part
HALF_PRECISION_IMAGES = 8
FIRST_METHODS = (MERGED, "auto")


@cache
def _codes(
    method: str,
    dtype: torch.dtype,
    images: int,
    rounds: int | None = None,
    exact: bool = True,
    rehearse: bool = False,
    where: torch.device | None = None,
) -> Tensor:
    """Decode images with a method, and return their codes [images, T], with T tokens per image."""
    target, drafter = trained(dtype, rehearse, where=where)
    target.decoder.exact = exact
    pipeline = pipeline_of(target, drafter, method)
    return torch.cat([decode_rounds(pipeline.decoding([prompt]), rounds) for prompt in captions(FIRST_CAPTION, images)])


def agreement(codes: Tensor, expected: Tensor) -> dict[str, float | int | None]:
    """Compare the tokens of two decodings.

    Example of the flips per token: one of two images of 100 tokens is equal, the other first differs at its 50th token.
    The result is 1 / (100 + 50).

    Args:
        codes: Codes [B, T] of B images with T tokens. -1 marks tokens that were not decoded.
        expected: Codes [B, T] to compare with. -1 has the same meaning. Positions with -1 in either tensor do not
            count.

    Returns:
        Number of images, and the other columns of the tables.
    """
    decoded = (codes >= 0) & (expected >= 0)
    differs = (codes != expected) & decoded
    equal_prefix = ((differs.cumsum(1) == 0) & decoded).sum(1)
    flipped = differs.any(1)
    first = differs.int().argmax(1)[flipped]
    return {
        "images": len(codes),
        "equal images": int((~flipped).sum()),
        "tokens": 1 - float(differs.sum() / decoded.sum()),
        "first": float(first.float().median()) if len(first) else None,
        "flips per token": float(flipped.sum() / (equal_prefix + flipped).sum()),
    }


def _tokens(method: str, dtype: torch.dtype, images: int, rounds: int | None) -> Iterator[dict]:
    reference = method if method == LANTERN else PLAIN
    expected = _codes(reference, dtype, images, rounds, where=torch.device("cpu"))
    found = _codes(method, dtype, images, rounds)
    yield {"table": "Tokens", "dtype": str(dtype)[6:], "method": TITLES[method], **agreement(found, expected)}


def cases(rehearse: bool) -> list[Case]:
    """Return the cases of the first table: every method in float32, then every method in float64."""
    found = []
    for dtype, images in ((torch.float32, 6), (torch.float64, 2)):
        amounts = (1, 4) if rehearse else (images, None)
        found += [(f"{dtype} {method}", partial(_tokens, method, dtype, *amounts)) for method in TITLES]
    return found


def _half(method: str, dtype: torch.dtype, exact: bool, rehearse: bool) -> Iterator[dict]:
    images = 1 if rehearse else HALF_PRECISION_IMAGES
    plain, codes = (_codes(name, dtype, images, exact=exact, rehearse=rehearse) for name in (PLAIN, method))
    row = {"table": "Half precision", "dtype": str(dtype)[6:], "method": TITLES[method]}
    yield row | {"exact": "on" if exact else "off"} | agreement(codes, plain)


def _half_cases(methods: Sequence[str], exact: bool, rehearse: bool) -> list[Case]:
    return [
        (f"{dtype} {method} exact {exact}", partial(_half, method, dtype, exact, rehearse))
        for dtype in (torch.bfloat16, torch.float16)
        for method in methods
    ]


def half(rehearse: bool) -> list[Case]:
    """Return the most important cases of the second table: network and window, and auto, with exact on."""
    return _half_cases(FIRST_METHODS, True, rehearse)


def other_half(rehearse: bool) -> list[Case]:
    """Return the other cases: the other lossless methods with exact on, and all lossless methods with exact off."""
    lossless = [name for name in TITLES if name not in (PLAIN, LANTERN)]
    others = [name for name in lossless if name not in FIRST_METHODS]
    return _half_cases(others, True, rehearse) + _half_cases(lossless, False, rehearse)
