"""Functions that the trials of several operations share."""

from __future__ import annotations

import torch
from torch import Tensor

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
"""Dtypes of the kernels that compute in float32 and round once. They would lose precision of float64."""

MIN_SPEEDUP = 0.6
"""Minimum speed-up of kernels that replace several launches, or that are about as fast as one launch of PyTorch."""


def is_candidate(x: Tensor) -> bool:
    """Return whether a kernel without gradients may compute results with the dtype and on the device of `x`."""
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
