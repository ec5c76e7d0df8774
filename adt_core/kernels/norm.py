"""RMS norm (arXiv 1910.07467), with an optional addition to the residual stream."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import cache, partial

import torch
import torch.nn.functional as F
from torch import Tensor

from . import choice
from .trials import MIN_SPEEDUP, ROUNDS, RoundRows, is_candidate, random_like, tolerance


def norm(x: Tensor, weight: Tensor, eps: float, plus: Tensor | None = None, used_rows: int | None = None) -> Tensor:
    """Return the RMS norm of each row of x [N, h], or the sum of the norm and `plus`, in the dtype of `x`.

    Args:
        weight: [h] in the dtype of `x`.
        plus: [N, h] residual stream, or None. Overwritten with the result unless gradients are enabled.
        used_rows: Number of rows to compute; all rows if None. The other rows of the result are undefined.
    """
    if uses_kernel(x):
        return kernel(x, weight, eps, plus, used_rows)
    return reference(x, weight, eps, plus)


def reference(x: Tensor, weight: Tensor, eps: float, plus: Tensor | None = None) -> Tensor:
    """Compute :func:`norm` with torch, in all rows."""
    y = rms_norm(x, weight, eps)
    if plus is None:
        return y
    return plus + y if torch.is_grad_enabled() else plus.add_(y)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return x / sqrt(mean(x^2) + eps) * weight for x [..., h] and a weight [h] of the same dtype.

    On a CPU, torch computes its RMS norm as 24 operations. Here it is five, and two to five times as fast.
    """
    h = weight.shape[0]
    if not x.is_cpu or x.dtype != torch.float32 or torch.is_grad_enabled():
        return F.rms_norm(x, (h,), weight, eps)
    # sqrt(mean(x^2) + eps) = sqrt(|x|^2 + h * eps) / sqrt(h) = hypot(|x|, sqrt(h * eps)) / sqrt(h)
    floor, scale = _constants(h, eps)
    rms = torch.linalg.vector_norm(x, 2, -1, True).hypot_(floor).mul_(scale)
    return x.mul(weight).div_(rms)


@cache
def _constants(h: int, eps: float) -> tuple[Tensor, Tensor]:
    """Return sqrt(h * eps) and 1 / sqrt(h). An operation with a tensor is faster than with a number of Python."""
    return torch.tensor(math.sqrt(h * eps), device="cpu"), torch.tensor(1 / math.sqrt(h), device="cpu")


def kernel(x: Tensor, weight: Tensor, eps: float, plus: Tensor | None = None, used_rows: int | None = None) -> Tensor:
    """Compute :func:`norm` with one Triton kernel, one row in each program."""
    from triton import next_power_of_2

    from .norm_triton import rms_norm

    x = x.contiguous()
    out = torch.empty_like(x) if plus is None else plus
    rows, columns = x.shape
    block = next_power_of_2(columns)
    choice.launch(
        rms_norm, (rows if used_rows is None else used_rows,), (x, weight, out, out), columns, eps,
        DTYPE=choice.triton_dtype(x.dtype), HAS_PLUS=plus is not None, BLOCK=block,
        num_warps=min(max(block // 512, 1), 8),
    )  # fmt: skip
    return out


def uses_kernel(x: Tensor) -> bool:
    """Return whether the kernel is used for the device, dtype and number of columns of `x`."""
    return is_candidate(x) and choice.uses_kernel("norm", x, x.shape[1:], partial(_trial, x))


def _trial(x: Tensor) -> choice.Trial:
    rows = random_like(x, ROUNDS[-1].total, x.shape[1])
    weight = random_like(x, 1, x.shape[1])[0]
    plus = random_like(x, *rows.shape, seed=1)

    def both(run: Callable[..., Tensor], size: RoundRows, residual: Tensor, *used_rows: int) -> Tensor:
        """Return a norm, and its addition to the residual stream."""
        y = run(rows[: size.total], weight, 1e-5, None, *used_rows)
        return run(y, weight, 1e-5, residual, *used_rows)[: size.used]

    def case(size: RoundRows) -> choice.Case:
        residuals = [plus[: size.total].clone() for _ in range(2)]
        first = partial(both, kernel, size, residuals[0], size.used)
        return choice.Case(first, partial(both, reference, size, residuals[1]), size.weight)

    def equal_results() -> Iterator[tuple[str, Tensor, Tensor]]:
        yield f"1 and {len(rows)} rows", kernel(rows[7:8], weight, 1e-5), kernel(rows, weight, 1e-5)[7:8]

    return choice.Trial([case(size) for size in ROUNDS], tolerance(x.dtype), equal_results, MIN_SPEEDUP)
