"""Weight-only quantisation of the decoder's matrices to int8, fp8 or int4.

Compared with bfloat16, int8 and fp8 need half the memory, and int4 needs 28 %. Embedding, norms and head keep their
dtype. With int8 and fp8, the quantisation is symmetric, with one scale per output channel: a weight is approximately
`stored * scale`. This is the method of LLM.int8 (arXiv 2208.07339) without its separate treatment of outliers.
:mod:`.int4` defines the storage of int4, with a step and a zero point for each group of 64 inputs.
:mod:`.quantised_matmul` multiplies by int8 and fp8 weights. As with other weights, images decoded with drafts are equal
to images decoded without drafts.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import torch
from torch import Tensor, nn

from ..errors import AdtError
from ..kernels import choice, linear
from ..kernels.verdicts import Verdict
from ..runtime import cached_per_runtime
from . import int4
from .config import QUANTISED
from .layers import MATRICES, Decoder


def check_device(weights: str | None, device: torch.device, dtype: torch.dtype) -> None:
    """Raise an AdtError if a device can't multiply by quantised weights in a reasonable time.

    Without the Triton kernel, a GPU would convert int4 weights to half precision before each product. It would write
    and read more than 10 bytes per weight in each step, so a step of a 7B model would take 150 to 220 ms on an RTX 3060
    (computed, not measured). PyTorch's own int4 product would store (8 - zero point) * step in bfloat16, which
    rounds it, and its order of sums is not documented. So a small product is computed with the kernel, except on CPUs.

    Args:
        weights: "int8", "fp8" or "int4"; None if the weights are not quantised.
        dtype: Dtype of the activations.
    """
    if weights == "int4" and device.type not in ("cpu", "meta"):
        problem = choice.missing_support(device, "linear") or _int4_problem(device, dtype)
        if problem:
            raise _int4_error(problem)


def check_products(weights: str | None, verdicts: Iterable[Verdict]) -> None:
    """Raise an AdtError if the weights are int4, and the kernel failed or gave a wrong result for one of them.

    Args:
        verdicts: Results of the trials of all operations; empty on devices without kernels.
    """
    faults = [it.reason for it in verdicts if it.operation == "linear" and it.is_fault]
    if weights == "int4" and faults:
        raise _int4_error(faults[0])


def _int4_error(problem: str) -> AdtError:
    return AdtError("int4.no_triton" if "Triton is not installed" in problem else "int4.no_kernel", reason=problem)


@cached_per_runtime
def _int4_problem(device: torch.device, dtype: torch.dtype) -> str:
    """Return the reason why the kernel does not multiply by a small int4 weight, or ""."""
    if dtype not in linear.TOLERANCE:
        return f"it multiplies bfloat16 and float16, not {str(dtype).removeprefix('torch.')}"
    matrix = torch.randn(2 * int4.GROUP, 32, generator=torch.Generator().manual_seed(0))
    with choice.watched(device), torch.inference_mode():
        return choice.failure(device, partial(_small_trial, matrix, device, dtype))


def _small_trial(matrix: Tensor, device: torch.device, dtype: torch.dtype) -> choice.Trial:
    rows, columns = matrix.shape
    stored, scale = int4.empty(rows, columns, device)
    store(stored, scale, matrix)
    x = torch.ones(1, len(matrix), dtype=dtype, device=device)
    case = choice.Case(partial(linear.kernel, x, stored, scale), partial(linear.reference, x, stored, scale))
    return choice.Trial([case], linear.TOLERANCE[dtype], tuple)


def quantise(decoder: Decoder, kind: str) -> None:
    """Replace every matrix of the layers with an empty matrix of a format and an empty scale, which `store` fills."""
    for layer in decoder.layers:
        for name in MATRICES:
            stored, scale = empty(getattr(layer, name), kind, decoder.wide_dtype)
            setattr(layer, name, nn.Parameter(stored, requires_grad=False))
            setattr(layer, f"{name}_scale", scale)


def empty(weight: Tensor, kind: str, wide_dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return an uninitialised quantised matrix and its scale, as arguments of `store`.

    The quantised matrix has the memory layout of a contiguous [out, in] matrix, because int8 and fp8 products on a GPU
    require this layout.

    Args:
        weight: [in, out] matrix to replace.
        kind: "int8", "fp8" or "int4".
        wide_dtype: Dtype of the scale of int8 and fp8.
    """
    if kind == "int4":
        return int4.empty(len(weight), weight.shape[1], weight.device)
    stored = torch.empty_like(weight.t(), dtype=QUANTISED[kind], memory_format=torch.contiguous_format).t()
    return stored, torch.empty(weight.shape[1], dtype=wide_dtype, device=weight.device)


CHUNK_SIZE = 2**22
"""Number of elements to quantise at a time. This limits the size of the temporary float32 or float64 copies."""


def store(parameter: Tensor, scale: Tensor, value: Tensor) -> None:
    """Quantise a matrix and store the result in existing tensors.

    Args:
        parameter: [in, out] int8 or float8_e4m3fn, or packed int4 (:mod:`.int4`), to fill with the quantised matrix.
        scale: [out] to fill with the scale of each output channel; with int4, the scale of :mod:`.int4`.
        value: [in, out] matrix to quantise.
    """
    outputs = max(CHUNK_SIZE // len(value), 1)
    store_chunk = int4.pack if parameter.dtype == QUANTISED["int4"] else _store_chunk
    for chunk in zip(parameter.split(outputs, 1), scale.split(outputs, -1), value.split(outputs, 1)):
        store_chunk(*chunk)


def _store_chunk(parameter: Tensor, scale: Tensor, value: Tensor) -> None:
    value = value.to(parameter.device, scale.dtype)
    largest = torch.iinfo(torch.int8).max if parameter.dtype == torch.int8 else torch.finfo(parameter.dtype).max
    scale.copy_((value.abs().amax(0) / largest).clamp_min(torch.finfo(scale.dtype).tiny))
    steps = value / scale
    rounded = steps.round() if parameter.dtype == torch.int8 else steps
    parameter.copy_(rounded.clamp(-largest, largest).to(parameter.dtype))
