"""Storage of a weight matrix [in, out] with 4 bits per number.

The matrix is divided into groups of :data:`GROUP` = 64 inputs of one output channel. Two tensors store it, where
groups = ceil(in / 64):

- The packed matrix is uint8 [32 * groups, out], with the memory layout of a contiguous [out, 32 * groups] matrix. The
  byte ``packed[32 * g + j, o]``, with 0 <= j < 32, contains two levels from 0 to 15. Its 4 low bits are the level of
  input 64 * g + j, and its 4 high bits are the level of input 64 * g + 32 + j.
- The scale is bfloat16 [2, groups, out], contiguous. ``scale[0, g, o]`` is the step of a group, and ``scale[1, g, o]``
  is its zero point, an integer from 0 to 15.

The weight of a level is ``(level - zero point) * step``. If `in` is not a multiple of 64, the missing inputs of the
last group have the level of the zero point, so their weights are 0. With its scale, a number takes 4.5 bits.

For example, if group 0 of an output channel has the step 0.5 and the zero point 8, the byte 0xA7 = 167 at j = 3 has the
low level 7 and the high level 10. So the weight of input 3 is -0.5, and the weight of input 35 is 1.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

GROUP = 64  # number of inputs that share a step and a zero point
LEVELS = 16
SCALE_DTYPE = torch.bfloat16
"""Dtype of steps and zero points. It has the range of float32, so no step overflows or becomes 0. Levels are computed
with the rounded step, so its precision of 8 bits adds no error."""


def empty(inputs: int, outputs: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return an uninitialised packed matrix [32 * groups, out] uint8, and its scale [2, groups, out] bfloat16."""
    groups = -(-inputs // GROUP)
    packed = torch.empty(outputs, groups * GROUP // 2, dtype=torch.uint8, device=device).t()
    return packed, torch.empty(2, groups, outputs, dtype=SCALE_DTYPE, device=device)


def pack(packed: Tensor, scale: Tensor, value: Tensor) -> None:
    """Quantise a matrix [in, out] and store the result in existing tensors, as :func:`empty` returns them.

    Each group is stored either symmetrically or with a zero point, whichever has the smaller squared error.
    """
    value = value.to(packed.device, torch.float32)
    groups = F.pad(value, (0, 0, 0, -len(value) % GROUP)).unflatten(0, (-1, GROUP))
    levels, error = _quantised(groups, scale, *_symmetric_scale(groups))
    other_scale = torch.empty_like(scale)
    other_levels, other_error = _quantised(groups, other_scale, *_zero_point_scale(groups))
    is_better = other_error < error
    levels = torch.where(is_better[:, None], other_levels, levels)
    scale.copy_(torch.where(is_better, other_scale, scale))
    low, high = levels.unflatten(1, (2, -1)).unbind(1)
    packed.copy_((low | high << 4).flatten(0, 1))


def _symmetric_scale(groups: Tensor) -> tuple[Tensor, Tensor]:
    """Return step and zero point [groups, out] for levels that are symmetric about -0.5 steps.

    The largest weight is 7.5 steps from 0, so that no weight has an error of more than half a step.
    """
    step = torch.linalg.vector_norm(groups, torch.inf, 1) / (LEVELS / 2 - 0.5)
    return step, torch.full_like(step, LEVELS / 2)


def _zero_point_scale(groups: Tensor) -> tuple[Tensor, Tensor]:
    """Return step and zero point [groups, out] for levels from the smallest to the largest weight."""
    least = groups.amin(1).clamp_max(0)
    step = groups.amax(1).clamp_min(0) / (LEVELS - 1) - least / (LEVELS - 1)
    return step, (-least / _nonzero(step)).round()


def _nonzero(step: Tensor) -> Tensor:
    return step.clamp_min(torch.finfo(SCALE_DTYPE).tiny)


def _quantised(groups: Tensor, scale: Tensor, step: Tensor, zero_point: Tensor) -> tuple[Tensor, Tensor]:
    """Fill `scale` [2, groups, out] with step and zero point, [groups, out] float32 each.

    Returns:
        Levels [groups, 64, out] uint8, and the sum of the squared errors of each group [groups, out] float32.
    """
    scale[0] = _nonzero(step)
    scale[1] = zero_point
    step, zero_point = scale.float()[:, :, None]
    levels = (groups / step).add_(zero_point).round_().clamp_(0, LEVELS - 1)
    result = levels.to(torch.uint8)
    error = levels.sub_(zero_point).mul_(step).sub_(groups)
    return result, torch.linalg.vector_norm(error, 2, 1)


def unpack(packed: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the weights [64 * groups, out] of a packed matrix. float32 and float64 represent them exactly.

    They have the memory layout of a contiguous [out, 64 * groups] matrix.
    """
    pairs = packed.t().unflatten(1, (-1, GROUP // 2))  # [out, groups, 32]
    weights = torch.empty(*pairs.shape[:2], 2, GROUP // 2, dtype=dtype, device=packed.device)
    weights[:, :, 0] = pairs & (LEVELS - 1)
    weights[:, :, 1] = pairs >> 4
    step, zero_point = scale.to(dtype).mT[..., None, None]  # [out, groups, 1, 1]
    return weights.sub_(zero_point).mul_(step).flatten(1).t()
