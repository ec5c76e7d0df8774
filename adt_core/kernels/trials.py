"""Functions that the trials of several operations share."""

from __future__ import annotations

import torch
from torch import Tensor

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
"""Dtypes for which kernels are used. Kernels compute in float32, so results in float64 would lose precision."""

MIN_SPEEDUP = 0.6
"""Minimum speed-up of kernels whose expected speed-up is about 1 or more. It is far below 1, so that small differences
of time do not change the choice (:class:`.choice.Trial`)."""


def is_candidate(x: Tensor) -> bool:
    """Return whether kernels may be used with the dtype and device of `x`. Kernels compute no gradients."""
    return x.is_cuda and x.dtype in DTYPES and not torch.is_grad_enabled()


def random_like(x: Tensor, *shape: int, seed: int = 0) -> Tensor:
    """Return normally distributed numbers with the dtype and on the device of `x`.

    Args:
        x: Any tensor.
        *shape: Shape of the result.
        seed: Seed of the numbers.
    """
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(x)


def tolerance(dtype: torch.dtype) -> float:
    """Return the allowed difference between kernel and reference, relative to the largest absolute value.

    The reference rounds after each of its operations, and the kernel only once.
    """
    return 8 * torch.finfo(dtype).eps
