"""Functions that the trials of several operations share."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
"""Dtypes for which kernels are used. Kernels compute in float32, so results in float64 would lose precision."""

MIN_SPEEDUP = 0.6
"""Minimum speed-up of kernels whose expected speed-up is about 1 or more. It is far below 1, so that small differences
of time do not change the choice (:class:`.choice.Trial`)."""


class RoundRows(NamedTuple):
    """Numbers of rows in the matrices of activations of a round.

    Attributes:
        used: Number of rows that are not padding.
        total: Number of rows with padding, a multiple of a tile.
        weight: Share of such rounds in an image, up to a common factor. It is an assumption, not a measurement.
    """

    used: int
    total: int
    weight: int


ROUNDS = (RoundRows(2, 64, 4), RoundRows(50, 64, 4), RoundRows(128, 128, 1))
"""Rounds of one image with guidance: a plain round, a tree with 24 drafts, and a tree with 63 drafts. On a GPU, trees
that exceed one tile of 64 rows are rarely the fastest (docs/gpu.md)."""


ALL_KERNELS_CAPABILITY = (8, 0)
"""Oldest compute capability for which all kernels are used. On older GPUs, down to :data:`.choice.MIN_CAPABILITY`, only
products with int4 weights have one: Triton has no matrix instructions for these GPUs (docs/kernels.md), and none was
measured."""


def is_candidate(x: Tensor, is_int4: bool = False) -> bool:
    """Return whether kernels may be used with the dtype and device of `x`. Kernels compute no gradients."""
    if not x.is_cuda or x.dtype not in DTYPES or torch.is_grad_enabled():
        return False
    return is_int4 or torch.cuda.get_device_capability(x.device) >= ALL_KERNELS_CAPABILITY


def has_small_shared_memory(capability: tuple[int, int]) -> bool:
    """Return whether a multiprocessor has about 100 KB of shared memory, by compute capability."""
    return capability in ((8, 6), (8, 9)) or capability >= (12, 0)


def random_like(x: Tensor, *shape: int, seed: int = 0) -> Tensor:
    """Return normally distributed numbers with the dtype and on the device of `x`."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(x)


def tolerance(dtype: torch.dtype) -> float:
    """Return the allowed difference between kernel and reference, relative to the largest absolute value.

    The reference rounds after each of its operations, and the kernel only once.
    """
    return 8 * torch.finfo(dtype).eps
