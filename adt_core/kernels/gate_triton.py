"""Triton kernel of :func:`.gate.gate`."""

import triton
import triton.language as tl

from .pointer_triton import pointer


@triton.jit
def gate(
    gate_up: "*i8", out: "*i8", columns, DTYPE: tl.constexpr, IS_GELU: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Multiply activated gates by their values. The grid is (rows, blocks of columns)."""
    gate_up = pointer(gate_up, DTYPE)
    out = pointer(out, DTYPE)
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    exists = at < columns
    x = tl.load(gate_up + row * 2 * columns + at, exists, 0.0).to(tl.float32)
    up = tl.load(gate_up + (row * 2 + 1) * columns + at, exists, 0.0).to(tl.float32)
    z = x
    if IS_GELU:  # (1 + tanh(z)) / 2 = sigmoid(2 z)
        z = 1.5957691216057308 * (x + 0.044715 * x * x * x)  # 2 * sqrt(2 / pi)
    y = x * tl.sigmoid(z) * up
    tl.store(out + row * columns + at, y.to(DTYPE), exists)
