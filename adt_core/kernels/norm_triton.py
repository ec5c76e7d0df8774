"""Triton kernel of :func:`.norm.norm`."""

import triton
import triton.language as tl

from .pointer_triton import pointer


@triton.jit
def rms_norm(
    x: "*i8", weight: "*i8", plus: "*i8", out: "*i8", columns, eps,
    DTYPE: tl.constexpr, HAS_PLUS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute the RMS norm of one row, and add `plus` if there is one. The grid is (rows)."""
    x = pointer(x, DTYPE)
    weight = pointer(weight, DTYPE)
    plus = pointer(plus, DTYPE)
    out = pointer(out, DTYPE)
    row = tl.program_id(0).to(tl.int64) * columns
    at = tl.arange(0, BLOCK)
    exists = at < columns
    y = tl.load(x + row + at, exists, 0.0).to(tl.float32)
    y *= tl.rsqrt(tl.sum(y * y, 0) / columns + eps)
    y *= tl.load(weight + at, exists, 0.0).to(tl.float32)
    if HAS_PLUS:
        y += tl.load(plus + row + at, exists, 0.0).to(tl.float32)
    tl.store(out + row + at, y.to(DTYPE), exists)
