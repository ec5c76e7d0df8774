"""Products with weights of a byte a number, which read little more than these bytes.

A GPU multiplies bytes with bytes only. So the activations of a row are scaled by a power of two and written as two or
three digits of a byte each; the digits of all rows are stacked, and one product with the weight serves them all.
"""

from __future__ import annotations

import logging

import torch
from torch import Tensor

from ..errors import is_out_of_memory
from ..runtime import cached_per_runtime
from .kernels import fp8_matmul, int8_matmul

_DIGITS = {torch.bfloat16: 2, torch.float16: 3}
"""Digits of float8_e4m3fn, of 4 bits each, that hold an activation's significant bits: 8 of bfloat16, 11 of float16."""
_NEEDED = {torch.int8: (8, (7, 5)), torch.float8_e4m3fn: (16, (8, 9))}
"""By the weight's dtype: what both of its sides must be multiples of, and the least compute capability."""

_TRIED = (1, 3, 64, 130)
"""Rows with which products are tried: of plain steps, of a tile, and of a large tree."""


def quantised_matmul(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    """x [M, in] times what ``weight * scale`` says, in x's dtype and to its precision: [M, out].

    weight: [in, out], int8 or float8_e4m3fn, stored as [out, in]. scale: [out], float32 or float64. By digits on an
    NVIDIA GPU, in half precision, where :data:`_NEEDED` is met. Elsewhere the weight is converted to x's dtype, and the
    output is scaled.
    """
    return _by_digits(x, weight, scale) if _has_digits(x, weight) else _converted(x, weight, scale)


def has_exact_sums(x: Tensor, weight: Tensor) -> bool:
    """Is every sum of :func:`quantised_matmul` one of whole numbers, and so exact in any order?"""
    return weight.dtype == torch.int8 and _has_digits(x, weight)


def _by_digits(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    return int8_digits(x, weight, scale) if weight.dtype == torch.int8 else fp8_digits(x, weight, scale)


def _has_digits(x: Tensor, weight: Tensor) -> bool:
    if not x.is_cuda or torch.version.hip or x.dtype not in _DIGITS:
        return False
    multiple, _ = _NEEDED[weight.dtype]
    fits = weight.shape[0] % multiple == 0 and weight.shape[1] % multiple == 0
    return fits and supports_byte_matmul(x.device, weight.dtype) and _work_here(x.device, x.dtype, weight.dtype)


def supports_byte_matmul(device: torch.device, stored: torch.dtype) -> bool:
    """Can a GPU of NVIDIA multiply with bytes of this dtype, as far as its compute capability says?"""
    return torch.cuda.get_device_capability(device) >= _NEEDED[stored][1]


@cached_per_runtime
def _work_here(device: torch.device, dtype: torch.dtype, stored: torch.dtype) -> bool:
    """Do digits give what a converted weight gives? Tried once, since libraries and cards differ in what they take."""
    generator = torch.Generator().manual_seed(0)
    weight = (40 * torch.randn(96, 64, generator=generator)).round().clamp(-127, 127).to(device, stored).t()
    scale = torch.ones(96, device=device)
    try:
        for rows in _TRIED:
            x = torch.randn(rows, 64, generator=generator).to(device, dtype)
            y, expected = _by_digits(x, weight, scale), _converted(x, weight, scale)
            if float((y - expected).abs().max()) > 0.02 * float(expected.abs().max()):
                break
        else:
            return True
        reason = f"the fast product of {rows} rows gave wrong results"
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise  # it passes, and this function's answer is remembered
        reason = str(error).split("\n")[0].rstrip(".")
    kind = str(stored).removeprefix("torch.")
    logging.getLogger(__name__).warning(
        "Weights in %s are converted for each matrix multiplication, which is slow: %s.", kind, reason
    )
    return False


def _step(x: Tensor, bits: int) -> Tensor:
    """A power of two for every row of x [M, in], in float32 [M, 1]: ``x / step`` is exact and below 2 ** bits."""
    largest = torch.linalg.vector_norm(x, torch.inf, -1, keepdim=True, dtype=torch.float32)
    return torch.exp2(torch.frexp(largest).exponent - float(bits))


def int8_digits(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    """As :func:`quantised_matmul`: 15 bits of a row's numbers as ``128 * high + low``, summed exactly.

    CUDA's product wants more than 16 rows. Rows that are added stay as memory had them: nobody reads their results.
    """
    step, rows = _step(x, 14), len(x)
    whole = (x / step).round_().to(torch.int16)  # below 2 ** 14 in size: 11 bits don't round up to it
    digits = torch.empty(2, max(rows, 9), x.shape[1], dtype=torch.int8, device=x.device)
    digits[0, :rows] = whole >> 7  # with ``out``, CUDA would shift bytes
    torch.bitwise_and(whole, 127, out=digits[1, :rows])
    high, low = int8_matmul(digits.flatten(0, 1), weight).view(*digits.shape[:2], -1)[:, :rows]
    return torch.mul((high * 128.0 + low) * step, scale).to(x.dtype)


def fp8_digits(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    """As :func:`quantised_matmul`: every digit holds the next 4 bits of what the digits before it left."""
    step = _step(x, 8)
    rest = x / step
    digits = torch.empty(_DIGITS[x.dtype], *x.shape, dtype=weight.dtype, device=x.device)
    for digit in digits[:-1]:
        digit.copy_(rest)
        rest = (rest - digit.float()).mul_(16)
    digits[-1].copy_(rest)
    *earlier, total = fp8_matmul(digits.flatten(0, 1), weight).view(*digits.shape[:2], -1)
    for sums in reversed(earlier):
        total = torch.add(sums, total, alpha=1 / 16)
    return torch.mul(total * step, scale).to(x.dtype)


def _converted(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    """As :func:`quantised_matmul`. float16 would overflow before it is scaled, so its rows are made small."""
    if x.dtype != torch.float16:
        return (x @ weight.to(x.dtype) * scale).to(x.dtype)
    step = _step(x, -7)  # 18,000 products with numbers of up to 448 are within its range
    return ((x / step).half() @ weight.half() * step * scale).half()
