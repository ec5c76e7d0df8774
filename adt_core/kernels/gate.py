"""Activation of a gated MLP: the activated gate times the second half of the projection."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from torch import Tensor

from ..models.config import ACTIVATIONS
from . import choice
from .trials import MIN_SPEEDUP, ROUNDS, RoundRows, is_candidate, random_like, tolerance

BLOCK = 1024  # columns that a program of the kernel computes


def gate(gate_up: Tensor, activation: str, used_rows: int | None = None) -> Tensor:
    """Return activation(a) * b [N, k] for the halves a and b of each row.

    Args:
        gate_up: [N, 2 * k]: k columns of a, then k columns of b.
        activation: Key of :data:`..models.config.ACTIVATIONS`.
        used_rows: Number of rows to compute; all rows if None. The other rows of the result are undefined.
    """
    if uses_kernel(gate_up, activation):
        return kernel(gate_up, activation, used_rows)
    return reference(gate_up, activation)


def reference(gate_up: Tensor, activation: str) -> Tensor:
    """Compute :func:`gate` with torch, in all rows."""
    a, b = gate_up.split_with_sizes([gate_up.shape[-1] // 2] * 2, -1)
    return ACTIVATIONS[activation](a) * b


def kernel(gate_up: Tensor, activation: str, used_rows: int | None = None) -> Tensor:
    """Compute :func:`gate` with one Triton kernel."""
    from triton import cdiv

    from .gate_triton import gate as gated

    gate_up = gate_up.contiguous()
    rows = len(gate_up)
    columns = gate_up.shape[1] // 2
    out = gate_up.new_empty(rows, columns)
    grid = rows if used_rows is None else used_rows, cdiv(columns, BLOCK)
    is_gelu = activation == "gelu_pytorch_tanh"
    dtype = choice.triton_dtype(gate_up.dtype)
    choice.launch(gated, grid, (gate_up, out), columns, DTYPE=dtype, IS_GELU=is_gelu, BLOCK=BLOCK, num_warps=4)
    return out


def uses_kernel(gate_up: Tensor, activation: str) -> bool:
    """Return whether the kernel is used for the device, dtype and number of columns of `gate_up`."""
    shape = (*gate_up.shape[1:], activation)
    return is_candidate(gate_up) and choice.uses_kernel("gate", gate_up, shape, partial(_trial, gate_up, activation))


def _trial(gate_up: Tensor, activation: str) -> choice.Trial:
    rows = random_like(gate_up, ROUNDS[-1].total, gate_up.shape[1])

    def case(size: RoundRows) -> choice.Case:
        part = rows[: size.total]
        return choice.Case(
            lambda: kernel(part, activation, size.used)[: size.used],
            lambda: reference(part, activation)[: size.used],
            size.weight,
        )

    def equal_results() -> Iterator[tuple[str, Tensor, Tensor]]:
        yield f"1 and {len(rows)} rows", kernel(rows[7:8], activation), kernel(rows, activation)[7:8]

    return choice.Trial([case(size) for size in ROUNDS], tolerance(gate_up.dtype), equal_results, MIN_SPEEDUP)
