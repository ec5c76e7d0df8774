"""Products with int8 and fp8 weights that do not convert the weights to a wider dtype.

A GPU multiplies 8-bit weights only by 8-bit activations. So each row of activations is divided by a power of two,
``step``, and each quotient is split into two or three 8-bit numbers, called digits. One product multiplies the digits
of all rows by the weight, so the GPU reads the weight once. For int8, with two digits of 7 bits plus the sign::

    x / step      =  128 * high + low
    x @ weight    =  (128 * (high @ weight) + low @ weight) * step

In shapes, M is the number of rows of activations.
"""

from __future__ import annotations

import logging

import torch
from torch import Tensor

from ..errors import is_out_of_memory
from ..runtime import cached_per_runtime
from .torch_private import fp8_matmul, int8_matmul

_FP8_DIGITS = {torch.bfloat16: 2, torch.float16: 3}
"""Number of float8_e4m3fn digits for each dtype of the activations. A digit has 4 significant bits. bfloat16 has 8
significant bits, so it needs 2 digits; float16 has 11 and needs 3."""
_REQUIREMENTS = {torch.int8: (8, (7, 5)), torch.float8_e4m3fn: (16, (8, 9))}
"""Requirements of the fast product by the weight's dtype: `in` and `out` must be multiples of the first number; the
second value is the minimum compute capability."""

_CHECKED_ROWS = (1, 3, 64, 130)
"""Numbers of rows for which the fast product is checked: plain decoding (1, 3), a tile (64), a large tree (130)."""


def quantised_matmul(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    """Multiply by a quantised weight, with the precision of x's dtype.

    On an NVIDIA GPU that meets :data:`_REQUIREMENTS`, x in half precision is split into 8-bit digits. In all other
    cases, the weight is converted to x's dtype.

    Args:
        x: [M, in] activations.
        weight: [in, out] int8 or float8_e4m3fn, with the memory layout of a contiguous [out, in] matrix.
        scale: [out] float32 or float64 factors: the weight's true value is ``weight * scale``.

    Returns:
        [M, out] in x's dtype.
    """
    return _digit_matmul(x, weight, scale) if _uses_digits(x, weight) else _converted_matmul(x, weight, scale)


def has_exact_sums(x: Tensor, weight: Tensor) -> bool:
    """Return whether `quantised_matmul` adds only integers. Then the order of the sum does not change the result."""
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
    """Return whether the compute capability of an NVIDIA GPU allows products of the 8-bit dtype ``stored``."""
    return torch.cuda.get_device_capability(device) >= _REQUIREMENTS[stored][1]


@cached_per_runtime
def _digits_work(device: torch.device, dtype: torch.dtype, stored: torch.dtype) -> bool:
    """Return whether the product of digits is correct on this device, and log the problem if not.

    The reference is the product with the converted weight.
    """
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
            raise  # lack of memory is temporary, so the answer must not be cached
        reason = str(error).split("\n")[0].rstrip(".")
    kind = str(stored).removeprefix("torch.")
    logging.getLogger(__name__).warning(
        "Weights in %s are converted for each matrix multiplication, which is slow: %s.", kind, reason
    )
    return False


def _step(x: Tensor, bits: int) -> Tensor:
    """Return ``step``, a power of two for each row of x [M, in], such that |x / step| < 2 ** bits: float32 [M, 1]."""
    largest = torch.linalg.vector_norm(x, torch.inf, -1, keepdim=True, dtype=torch.float32)
    return torch.exp2(torch.frexp(largest).exponent - float(bits))


def int8_digits(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    """Compute `quantised_matmul` with int8 digits. Their products are integers, so the sums are exact.

    For example, x / step = 300 gives high = 2 and low = 44, because 300 = 128 * 2 + 44.
    """
    step = _step(x, 14)
    rows = len(x)
    integers = (x / step).round_().to(torch.int16)  # never 2 ** 14: x has at most 11 significant bits
    # CUDA requires more than 16 rows, so each of the two digits has at least 9. Rows after the first M are
    # uninitialised, and their results are dropped.
    digits = torch.empty(2, max(rows, 9), x.shape[1], dtype=torch.int8, device=x.device)
    digits[0, :rows] = integers >> 7  # with `out=`, CUDA would shift in int8
    torch.bitwise_and(integers, 127, out=digits[1, :rows])
    high, low = int8_matmul(digits.flatten(0, 1), weight).view(*digits.shape[:2], -1)[:, :rows]
    return torch.mul((high * 128.0 + low) * step, scale).to(x.dtype)


def fp8_digits(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    """Compute `quantised_matmul` with fp8 digits.

    The first digit is x / step, rounded to 4 significant bits. Each further digit is the remaining difference, times 16
    and rounded in the same way. For example, x / step = 201 gives the digits 208 and -112: the difference is
    201 - 208 = -7, and -7 * 16 = -112.
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
    """Compute `quantised_matmul` with the weight converted to x's dtype.

    float16 activations are scaled down first, because their products could exceed the range of float16.
    """
    if x.dtype != torch.float16:
        return (x @ weight.to(x.dtype) * scale).to(x.dtype)
    step = _step(x, -7)  # a sum of 18,000 products with weights up to 448 stays in the range of float16
    return ((x / step).half() @ weight.half() * step * scale).half()
