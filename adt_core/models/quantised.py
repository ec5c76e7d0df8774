"""Weight-only quantisation of the decoder's matrices to int8 or fp8, which halves the memory of bfloat16.

It is symmetric with one scale per output channel (LLM.int8, arXiv 2208.07339, without its outliers): w is approximately
`stored * scale`. Embedding, norms and head keep their dtype. :mod:`.quantised_matmul` multiplies by such weights.
Drafting leaves the images of a quantised model unchanged, as with any other weights.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .layers import MATRICES, Decoder

KINDS = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}


def quantise(decoder: Decoder, kind: str) -> None:
    """Replace the matrices of every layer by empty quantised ones with a scale, to be filled by `store`.

    They have the shape [in, out], but the memory layout of [out, in], which a GPU's int8 and fp8 products require.

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
"""Elements of a matrix that are quantised at a time, because the temporary copies are wider than the file's dtype."""


def store(parameter: Tensor, scale: Tensor, value: Tensor) -> None:
    """Quantise a matrix into an existing parameter.

    Args:
        parameter: Quantised matrix [in, out] to fill.
        scale: Scale [out] to fill.
        value: Matrix [in, out].
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
