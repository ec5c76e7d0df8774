"""Tensors in files: finite numbers only, and fp8 weights with scales beside them, read as the product of both.

Names of scales: ``scale_weight`` (ComfyUI's fp8_scaled), ``weight_scale`` (its later files, and others') and
``weight_scale_inv`` (DeepSeek-V3's, arXiv 2412.19437, section 3.3, a factor all the same). A scale is one number, one
for each output, or one for each block of 128 x 128. Scales of inputs are for products in fp8, which are not made here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from ...errors import AdtError

_SCALES = "scale_weight", "weight_scale", "weight_scale_inv"
_UNUSED = "scale_input", "input_scale", "comfy_quant"
_MARK = "scaled_fp8"  # ComfyUI's, of files with such scales
_BLOCK = 128
_FP8 = re.compile(r"f(loat)?8_e[45]m\w+", re.IGNORECASE)
_WIDE = re.compile(r"b?f(loat)?(16|32|64)", re.IGNORECASE)


_WIDER = {torch.bfloat16: "float32", torch.float32: "float64"}
"""dtypes -> the next one that holds larger numbers. Narrower dtypes than these leave a choice."""


class Stored(NamedTuple):
    """A tensor in a file.

    Attributes:
        shape: Its sizes.
        dtype: As the file calls it, such as "F16" or "BF16".
        read: Function that reads it onto the CPU.
        file: The file.
        name: Name of the tensor in the file.
    """

    shape: tuple[int, ...]
    dtype: str
    read: Callable[[], Tensor]
    file: Path
    name: str


def numbers(stored: Stored) -> Tensor:
    """Read weights and check that all of them are finite.

    Returns:
        The tensor on the CPU, float8 as float32: torch joins float8 with no other dtype.
    Raises:
        AdtError: If a number is NaN or infinite.
    """
    value = _common(stored.read())
    if not _is_finite(value):
        found = "NaN" if value.isnan().any() else "infinity"
        problem = f"the tensor {stored.name!r} holds {found}, but finite numbers were expected"
        remedy = "download the file again, or if it was converted to float16, use the original or a bfloat16 version"
        raise AdtError(f"{stored.file}: {problem}; {remedy}.")
    return value


def may_overflow(dtype: torch.dtype, source: torch.dtype) -> bool:
    """Return whether finite numbers of the dtype ``source`` may be infinite in a parameter of ``dtype``.

    Any into float16: a few weights are multiplied while they are stored.
    """
    if not (dtype.is_floating_point and source.is_floating_point):
        return False
    return dtype == torch.float16 or torch.finfo(dtype).max < torch.finfo(source).max


def refuse_overflow(parameter: Tensor, sources: list[Stored]) -> None:
    """Raise an error if a parameter, made of finite numbers, is not finite.

    Args:
        parameter: Filled from ``sources``.
        sources: The tensors in files that it was made of.
    Raises:
        AdtError: If numbers overflowed in the parameter's dtype.
    """
    if _is_finite(_common(parameter)):
        return
    largest = [_common(stored.read()).abs().max().item() for stored in sources]
    stored = sources[largest.index(max(largest))]
    name, most = str(parameter.dtype).removeprefix("torch."), torch.finfo(parameter.dtype).max
    problem = f"the tensor {stored.name!r} has values too large for {name}, whose maximum is {most:.6g}"
    remedy = f"load this model with dtype {_WIDER.get(parameter.dtype, 'bfloat16 or float32')}"
    raise AdtError(f"{stored.file}: {problem}; {remedy}.")


def _common(tensor: Tensor) -> Tensor:
    """Return float8 as float32: torch neither joins nor compares float8."""
    return tensor.float() if tensor.is_floating_point() and tensor.element_size() == 1 else tensor


def _is_finite(tensor: Tensor) -> bool:
    """Return whether no number is NaN or infinite.

    The extremes tell it in one pass: NaN is an extreme, too. ``torch.isfinite`` makes several tensors of the same
    size, and takes about 40 times as long on a CPU.
    """
    if not tensor.is_floating_point() or not tensor.numel():
        return True
    return all(math.isfinite(extreme.item()) for extreme in torch.aminmax(tensor))


def plain_names(stored: dict[str, Stored]) -> dict[str, Stored]:
    """Return the tensors of a file without what torch.compile and DistributedDataParallel put before their names.

    Raises:
        AdtError: If two tensors then have the same name.
    """
    plain: dict[str, Stored] = {}
    for name, tensor in stored.items():
        short = re.sub(r"^(module\.)+", "", name.replace("_orig_mod.", ""))
        if short in plain:
            problem = f"holds the tensor {short!r} twice, as {plain[short].name!r} and {name!r}"
            raise AdtError(f"{tensor.file} {problem}; save only one model in the file.")
        plain[short] = tensor
    return plain


def with_scales(stored: dict[str, Stored]) -> dict[str, Stored]:
    """The tensors of a file without the scales that are understood. Their weights are read in float32."""
    made = dict(stored)
    for name, weight in stored.items():
        stem = name.removesuffix("weight")
        scale = next((stored[stem + kind] for kind in _SCALES if stem + kind in stored), None)
        if scale is not None and stem != name and _is_understood(weight, scale):
            made[name] = weight._replace(dtype="F32", read=partial(_product, weight, scale))
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
    value, factor = weight.read().float(), numbers(scale).float()
    if factor.numel() == 1:
        return value * factor.reshape(())
    if factor.ndim == 2 and factor.shape[1] > 1 or len(factor) != len(value):
        factor = factor.repeat_interleave(_BLOCK, 0).repeat_interleave(_BLOCK, 1)
        return value * factor[: value.shape[0], : value.shape[1]]
    return value * factor.reshape(-1, 1)
