"""Products with int8 and fp8 weights that read little more memory than the weights themselves.

A GPU multiplies 8-bit weights only by 8-bit activations. So each row of activations is scaled by a power of two and
split into two or three 8-bit digits. The digits of all rows are stacked and multiplied by the weight in one product::

    x / step      =  128 * high + low                  (int8: two digits of 7 bits, plus the sign)
    x @ weight    =  (128 * (high @ weight) + low @ weight) * step
"""

from __future__ import annotations

import logging

import torch
from torch import Tensor

from ..errors import is_out_of_memory
from ..runtime import cached_per_runtime
from .kernels import fp8_matmul, int8_matmul

_FP8_DIGITS = {torch.bfloat16: 2, torch.float16: 3}
"""Number of float8_e4m3fn digits, with 4 bits each, for an activation's significand: 8 bits of bfloat16, 11 of
float16."""
_REQUIREMENTS = {torch.int8: (8, (7, 5)), torch.float8_e4m3fn: (16, (8, 9))}
"""For each dtype of a weight, the number that both of its sides must be multiples of, and the minimum compute
capability."""

_CHECKED_ROWS = (1, 3, 64, 130)
"""Numbers of rows for which products are checked: plain steps, a tile, and a large tree."""


def quantised_matmul(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    """Multiply by a quantised weight, with the precision of x's dtype.

    An NVIDIA GPU multiplies 8-bit digits in half precision if :data:`_REQUIREMENTS` are met. Otherwise the weight is
    converted to x's dtype, and the output is scaled.

    Args:
        x: Rows [M, in].
        weight: Weight [in, out], int8 or float8_e4m3fn, with the memory layout of [out, in].
        scale: Scale of each output [out], float32 or float64.

    Returns:
        Product [M, out] in x's dtype.
    """
    return _digit_matmul(x, weight, scale) if _uses_digits(x, weight) else _converted_matmul(x, weight, scale)


def has_exact_sums(x: Tensor, weight: Tensor) -> bool:
    """Return whether `quantised_matmul` adds integers, so that the result does not depend on the order of the sum."""
    return weight.dtype == torch.int8 and _uses_digits(x, weight)


def _digit_matmul(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    return int8_digits(x, weight, scale) if weight.dtype == torch.int8 else fp8_digits(x, weight, scale)


def _uses_digits(x: Tensor, weight: Tensor) -> bool:
    if not x.is_cuda or torch.version.hip or x.dtype not in _FP8_DIGITS:
        return False
    multiple, _ = _REQUIREMENTS[weight.dtype]
    fits = weight.shape[0] % multiple == 0 and weight.shape[1] % multiple == 0
    return fits and supports_byte_matmul(x.device, weight.dtype) and _digits_work(x.device, x.dtype, weight.dtype)


def supports_byte_matmul(device: torch.device, stored: torch.dtype) -> bool:
    """Return whether an NVIDIA GPU has products of this 8-bit dtype, judged by its compute capability."""
    return torch.cuda.get_device_capability(device) >= _REQUIREMENTS[stored][1]


@cached_per_runtime
def _digits_work(device: torch.device, dtype: torch.dtype, stored: torch.dtype) -> bool:
    """Return whether products of digits and of converted weights agree on this device; log why if not."""
    generator = torch.Generator().manual_seed(0)
    weight = (40 * torch.randn(96, 64, generator=generator)).round().clamp(-127, 127).to(device, stored).t()
    scale = torch.ones(96, device=device)
    try:
        for rows in _CHECKED_ROWS:
            x = torch.randn(rows, 64, generator=generator).to(device, dtype)
            y = _digit_matmul(x, weight, scale)
            expected = _converted_matmul(x, weight, scale)
            if float((y - expected).abs().max()) > 0.02 * float(expected.abs().max()):
                break
        else:
            return True
        reason = f"the fast product of {rows} rows gave wrong results"
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise  # temporary, so this must not be cached
        reason = str(error).split("\n")[0].rstrip(".")
    kind = str(stored).removeprefix("torch.")
    logging.getLogger(__name__).warning(
        "Weights in %s are converted for each matrix multiplication, which is slow: %s.", kind, reason
    )
    return False


def _step(x: Tensor, bits: int) -> Tensor:
    """Return a power of two for each row of x [M, in], as float32 [M, 1], such that |x / step| < 2 ** bits."""
    largest = torch.linalg.vector_norm(x, torch.inf, -1, keepdim=True, dtype=torch.float32)
    return torch.exp2(torch.frexp(largest).exponent - float(bits))


def int8_digits(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    """Multiply as `quantised_matmul` does, with int8 digits whose products are summed exactly.

    For example, x / step = 300 gives high = 2 and low = 44, because 300 = 128 * 2 + 44.

    Args:
        x: Rows [M, in].
        weight: Weight [in, out] int8.
        scale: Scale of each output [out].

    Returns:
        Product [M, out] in x's dtype.
    """
    step = _step(x, 14)
    rows = len(x)
    integers = (x / step).round_().to(torch.int16)  # |integers| < 2 ** 14: 11 bits don't round up to it
    # CUDA requires more than 16 rows. Rows beyond M are uninitialised and their results are dropped.
    digits = torch.empty(2, max(rows, 9), x.shape[1], dtype=torch.int8, device=x.device)
    digits[0, :rows] = integers >> 7  # with `out=`, CUDA would shift in int8
    torch.bitwise_and(integers, 127, out=digits[1, :rows])
    high, low = int8_matmul(digits.flatten(0, 1), weight).view(*digits.shape[:2], -1)[:, :rows]
    return torch.mul((high * 128.0 + low) * step, scale).to(x.dtype)


def fp8_digits(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    """Multiply as `quantised_matmul` does, with fp8 digits: each holds the next 4 bits of the remainder.

    Args:
        x: Rows [M, in].
        weight: Weight [in, out] float8_e4m3fn.
        scale: Scale of each output [out].

    Returns:
        Product [M, out] in x's dtype.
    """
    step = _step(x, 8)
    remainder = x / step
    digits = torch.empty(_FP8_DIGITS[x.dtype], *x.shape, dtype=weight.dtype, device=x.device)
    for digit in digits[:-1]:
        digit.copy_(remainder)
        remainder = (remainder - digit.float()).mul_(16)
    digits[-1].copy_(remainder)
    *earlier, total = fp8_matmul(digits.flatten(0, 1), weight).view(*digits.shape[:2], -1)
    for product in reversed(earlier):
        total = torch.add(product, total, alpha=1 / 16)
    return torch.mul(total * step, scale).to(x.dtype)


def _converted_matmul(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    """Multiply by the converted weight. float16 rows are scaled down first, because their products would overflow."""
    if x.dtype != torch.float16:
        return (x @ weight.to(x.dtype) * scale).to(x.dtype)
    step = _step(x, -7)  # 18,000 products with weights of up to 448 are within the range of float16
    return ((x / step).half() @ weight.half() * step * scale).half()
