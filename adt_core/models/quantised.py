"""Weight-only quantisation of the decoder's matrices to int8 or fp8, with half the memory of bfloat16.

The quantisation is symmetric, with one scale per output channel: a weight is approximately `stored * scale`. This is
the method of LLM.int8 (arXiv 2208.07339) without its separate treatment of outliers. Embedding, norms and head keep
their dtype. :mod:`.quantised_matmul` multiplies by quantised weights. As with other weights, images
decoded with drafts are equal to images decoded without drafts.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .layers import MATRICES, Decoder

KINDS = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}


def quantise(decoder: Decoder, kind: str) -> None:
    """Replace every matrix of the layers with an empty quantised matrix and an empty scale, which `store` fills.

    The quantised matrix has the shape [in, out] and the memory layout of a contiguous [out, in] matrix, because int8
    and fp8 products on a GPU require this layout.

    Args:
        decoder: Decoder to change.
        kind: "int8" or "fp8".
    """
    dtype = KINDS[kind]
    for layer in decoder.layers:
        for name in MATRICES:
            weight = getattr(layer, name)
            stored = torch.empty_like(weight.t(), dtype=dtype, memory_format=torch.contiguous_format).t()
            setattr(layer, name, nn.Parameter(stored, requires_grad=False))
            scale = torch.empty(weight.shape[1], dtype=decoder.wide_dtype, device=weight.device)
            setattr(layer, f"{name}_scale", scale)


CHUNK_SIZE = 2**22
"""Number of elements to quantise at a time. This limits the size of the temporary float32 or float64 copies."""


def store(parameter: Tensor, scale: Tensor, value: Tensor) -> None:
    """Quantise a matrix and store the result in existing tensors.

    Args:
        parameter: [in, out] int8 or float8_e4m3fn, to fill with the quantised matrix.
        scale: [out] to fill with the scale of each output channel.
        value: [in, out] matrix to quantise.
    """
    outputs = max(CHUNK_SIZE // len(value), 1)
    for chunk in zip(parameter.split(outputs, 1), scale.split(outputs), value.split(outputs, 1)):
        _store_chunk(*chunk)


def _store_chunk(parameter: Tensor, scale: Tensor, value: Tensor) -> None:
    value = value.to(parameter.device, scale.dtype)
    largest = torch.iinfo(torch.int8).max if parameter.dtype == torch.int8 else torch.finfo(parameter.dtype).max
    scale.copy_((value.abs().amax(0) / largest).clamp_min(torch.finfo(scale.dtype).tiny))
    steps = value / scale
    rounded = steps.round() if parameter.dtype == torch.int8 else steps
    parameter.copy_(rounded.clamp(-largest, largest).to(parameter.dtype))
