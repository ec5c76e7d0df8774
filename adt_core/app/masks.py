"""Masks: which cells of an image are generated, and which are kept."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import AdtError


def generated_cells(mask: Tensor, grid: tuple[int, int], name: str) -> Tensor:
    """Round masks to whole cells of an image.

    A cell is generated if the mean of the mask over the cell is at least 0.5. Values are limited to 0 (keep) to 1
    (generate).

    Args:
        mask: [height, width], [B, height, width] or [B, 1, height, width] in any size.
        grid: Rows and columns of cells.
        name: Name of the input for error messages.

    Returns:
        [B, rows, columns] bool, on the CPU.

    Raises:
        AdtError: If the mask has another shape, has no values or values that are not finite.
    """
    shape = list(mask.shape)
    if mask.ndim == 2:
        mask = mask[None]
    elif mask.ndim == 4 and shape[1] == 1:
        mask = mask[:, 0]
    if mask.ndim != 3 or not mask.numel():
        raise AdtError(
            f"`{name}`: the mask has the shape {shape}; use one of [height, width], [batch, height, width] or "
            "[batch, 1, height, width] with at least one pixel."
        )
    mask = mask.detach().float().cpu()
    if not mask.isfinite().all():
        raise AdtError(f"`{name}`: the mask has values that are infinite or not a number; draw it again.")
    share = F.adaptive_avg_pool2d(mask.clamp(0, 1), grid)
    return share >= 0.5 - 1e-6  # half of a cell, whatever the rounding of the mean


def check_not_empty(generated: Tensor, name: str) -> None:
    """Raise AdtError if no cell is generated. `name` is the name of the mask for the message."""
    if not generated.any():
        raise AdtError(f"`{name}`: the mask is empty, so nothing would be generated; paint over the part to generate.")


def upper_part_kept(grid: tuple[int, int], count: int) -> Tensor:
    """Return the mask [1, rows, columns] that keeps the first `count` cells, row by row, and generates the others."""
    rows, columns = grid
    return (torch.arange(rows * columns) >= count).view(1, rows, columns)
