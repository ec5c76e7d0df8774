"""Weight-only quantisation of the decoder's matrices: half the memory of bfloat16; products are those of ``digits``.

Symmetric, one scale per output (LLM.int8, arXiv 2208.07339, without its outliers): w is about ``stored * scale``.
Embedding, norms and head stay as they are. Drafting is as lossless on the quantised model as on any other.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .layers import MATRICES, Decoder

KINDS = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}


def quantise(decoder: Decoder, kind: str) -> None:
    """Give the matrices of every layer the dtype ``kind`` ("int8" or "fp8") and a scale, to be filled by ``store``.

    They stay [in, out], but are laid out in memory as [out, in], as GPUs' products of bytes want it.
    """
    dtype = KINDS[kind]
    for layer in decoder.layers:
        for name in MATRICES:
            weight = getattr(layer, name)
            stored = torch.empty_like(weight.t(), dtype=dtype, memory_format=torch.contiguous_format).t()
            setattr(layer, name, nn.Parameter(stored, requires_grad=False))
            scale = torch.empty(weight.shape[1], dtype=decoder.wide_dtype, device=weight.device)
            setattr(layer, f"{name}_scale", scale)


PIECE = 2**22
"""Numbers of a matrix that are stored at a time. Wider copies of a whole one would take more memory than its file."""


def store(parameter: Tensor, scale: Tensor, value: Tensor) -> None:
    """Fill a quantised ``parameter`` [in, out] and its ``scale`` [out] from ``value``."""
    outputs = max(PIECE // len(value), 1)
    for piece in zip(parameter.split(outputs, 1), scale.split(outputs), value.split(outputs, 1)):
        _store(*piece)


def _store(parameter: Tensor, scale: Tensor, value: Tensor) -> None:
    value = value.to(parameter.device, scale.dtype)
    most = torch.iinfo(torch.int8).max if parameter.dtype == torch.int8 else torch.finfo(parameter.dtype).max
    scale.copy_((value.abs().amax(0) / most).clamp_min(torch.finfo(scale.dtype).tiny))
    steps = value / scale
    parameter.copy_((steps.round() if parameter.dtype == torch.int8 else steps).clamp(-most, most).to(parameter.dtype))
