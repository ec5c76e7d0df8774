"""Weight-only quantisation of the decoder's matrices to int8, fp8 or int4.

Compared with bfloat16, int8 and fp8 need half the memory, and int4 needs 28 %. Embedding, norms and head keep their
dtype. With int8 and fp8, the quantisation is symmetric, with one scale per output channel: a weight is approximately
`stored * scale`. This is the method of LLM.int8 (arXiv 2208.07339) without its separate treatment of outliers.
:mod:`.int4` defines the storage of int4, with a step and a zero point for each group of 64 inputs.
:mod:`.quantised_matmul` multiplies by int8 and fp8 weights. As with other weights, images decoded with drafts are equal
to images decoded without drafts.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..errors import AdtError
from ..kernels import choice
from . import int4
from .config import QUANTISED
from .layers import MATRICES, Decoder


def check_device(weights: str | None, device: torch.device) -> None:
    """Check that a device can multiply by quantised weights in a reasonable time.

    Without Triton, an NVIDIA GPU would convert int4 weights to half precision before each product. It would write and
    read more than 10 bytes per weight in each step, so a step of a 7B model would take 150 to 220 ms on an RTX 3060
    (computed, not measured). PyTorch's own int4 product would store (8 - zero point) * step in bfloat16, which
    rounds it, and its order of sums is not documented.

    Args:
        weights: "int8", "fp8" or "int4"; None if the weights are not quantised.
        device: Device on which the weights are or will be.

    Raises:
        AdtError: If the weights are int4, and the device is an NVIDIA GPU, and Triton is not installed.
    """
    if weights == "int4" and choice.is_nvidia(device) and not choice.has_triton():
        raise AdtError(
            "The weights are int4, which on an NVIDIA GPU needs the Python package triton (on Windows triton-windows), "
            "and it is not installed; choose int8 weights, or install it."
        )


def quantise(decoder: Decoder, kind: str) -> None:
    """Replace every matrix of the layers with an empty quantised matrix and an empty scale, which `store` fills.

    Args:
        kind: "int8", "fp8" or "int4".
    """
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
