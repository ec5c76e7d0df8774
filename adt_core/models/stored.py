"""Tensors in files; and fp8 weights with scales beside them, which are read as the product of both.

Names of scales: ``scale_weight`` (ComfyUI's fp8_scaled), ``weight_scale`` (its later files, and others') and
``weight_scale_inv`` (DeepSeek-V3's, arXiv 2412.19437, section 3.3, a factor all the same). A scale is one number, one
for each output, or one for each block of 128 x 128. Scales of inputs are for products in fp8, which are not made here.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from torch import Tensor

_SCALES = "scale_weight", "weight_scale", "weight_scale_inv"
_UNUSED = "scale_input", "input_scale", "comfy_quant"
_MARK = "scaled_fp8"  # ComfyUI's, of files with such scales
_BLOCK = 128
_FP8 = re.compile(r"f(loat)?8_e[45]m\w+", re.IGNORECASE)
_WIDE = re.compile(r"b?f(loat)?(16|32|64)", re.IGNORECASE)


class Stored(NamedTuple):
    """A tensor in a file: its shape, its dtype (such as "F16" or "BF16"), and how to read it onto the CPU."""

    shape: tuple[int, ...]
    dtype: str
    read: Callable[[], Tensor]


def with_scales(stored: dict[str, Stored]) -> dict[str, Stored]:
    """The tensors of a file without the scales that are understood. Their weights are read in float32."""
    made = dict(stored)
    for name, weight in stored.items():
        stem = name.removesuffix("weight")
        scale = next((stored[stem + kind] for kind in _SCALES if stem + kind in stored), None)
        if scale is not None and stem != name and _is_understood(weight, scale):
            made[name] = Stored(weight.shape, "F32", partial(_product, weight, scale))
            for other in (*(stem + kind for kind in (*_SCALES, *_UNUSED)), _MARK):
                made.pop(other, None)
    return made


def _is_understood(weight: Stored, scale: Stored) -> bool:
    if len(weight.shape) != 2 or not _FP8.fullmatch(weight.dtype) or not _WIDE.fullmatch(scale.dtype):
        return False
    outputs, inputs = weight.shape
    blocks = (-(-outputs // _BLOCK), -(-inputs // _BLOCK))
    return scale.shape in ((), (1,), (outputs,), (outputs, 1), blocks)


def _product(weight: Stored, scale: Stored) -> Tensor:
    value, factor = weight.read().float(), scale.read().float()
    if factor.numel() == 1:
        return value * factor.reshape(())
    if factor.ndim == 2 and factor.shape[1] > 1 or len(factor) != len(value):
        factor = factor.repeat_interleave(_BLOCK, 0).repeat_interleave(_BLOCK, 1)
        return value * factor[: value.shape[0], : value.shape[1]]
    return value * factor.reshape(-1, 1)
