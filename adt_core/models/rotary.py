"""Rotary position embeddings (RoPE, arXiv 2104.09864)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .config import DecoderConfig

Rope = tuple[Tensor, Tensor]
"""Tables of :func:`rope_tables`: cos and sin."""

SPARE_POSITIONS = 512
"""Positions after ``max_positions``, for drafts that reach beyond the end of the image."""


class MropePositions(NamedTuple):
    """M-RoPE positions of a model with ``mrope_section``.

    Attributes:
        table: [max_positions + SPARE_POSITIONS, 3] int64, time, row and column of each entry.
        origin: Index of the image's first token. Prompts end right before it, so their entries count back from there.
    """

    table: Tensor
    origin: int

    @classmethod
    def of(cls, config: DecoderConfig, grids: Sequence[tuple[int, int]]) -> MropePositions:
        """Return the positions of a sequence of grids.

        A grid's time, first row and first column are one number; the next grid begins after its longer side.

        Args:
            config: Shape of the decoder.
            grids: Rows and columns of the grids that an image's tokens form, in the order in which they are generated.
        """
        parts = []
        begin = 0
        for rows, columns in grids:
            parts.append(grid_positions(begin, rows, columns))
            begin += max(rows, columns)
        image = torch.cat(parts)
        origin = config.max_positions - len(image)
        before = torch.arange(-origin, 0)[:, None].expand(-1, 3)
        after = torch.arange(begin, begin + SPARE_POSITIONS)[:, None].expand(-1, 3)
        return cls(torch.cat([before, image, after]), origin)


def grid_positions(begin: int, rows: int, columns: int) -> Tensor:
    """Return time, row and column of every cell of a grid, [rows * columns, 3] int64.

    Args:
        begin: Time, row and column of the first cell.
        rows: Rows of the grid.
        columns: Columns of the grid.
    """
    cells = torch.cartesian_prod(torch.zeros(1, dtype=torch.long), torch.arange(rows), torch.arange(columns))
    return cells + begin


def rope_tables(config: DecoderConfig, like: Tensor, positions: Tensor | None = None) -> Rope:
    """Return the tables of NeoX-style rotations (halves of a head form the pairs).

    The sign of the rotation is folded into sin: the rotated vector is ``x * cos + roll(x, head_dim / 2) * sin``. With
    ``grid_rope``, half of the pairs use the row and half the column, and both tables are 0 before the grid, which sets
    these queries and keys to zero.

    Args:
        config: Shape of the decoder.
        like: Tensor that sets dtype and device.
        positions: [n, 3] M-RoPE positions of a model with ``mrope_section``; by default 0, 1, 2, ... on all axes.

    Returns:
        cos and sin, [max_positions + SPARE_POSITIONS, head_dim] each, or [n, head_dim] for given ``positions``.
    """
    half = config.head_dim // 2
    position = torch.arange(config.max_positions + SPARE_POSITIONS, dtype=torch.float64)[:, None]
    if config.mrope_section is not None:
        turning = sum(config.mrope_section)
        # mrope_section (2, 1, 1) -> axis [0, 0, 1, 2]: pairs 0 and 1 use time, pair 2 the row, pair 3 the column
        axis = torch.arange(3).repeat_interleave(torch.tensor(config.mrope_section))
        at = position.expand(-1, 3) if positions is None else positions.cpu()
        angle = at[:, axis] * config.rope_theta ** (-torch.arange(turning, dtype=torch.float64) / turning)
        return _tables(F.pad(angle, (0, half - turning)), like)
    if config.grid_rope is None:
        angle = position * config.rope_theta ** (-torch.arange(half, dtype=torch.float64) / half)
        return _tables(angle, like)
    before, columns = config.grid_rope
    frequency = config.rope_theta ** (-torch.arange(half // 2, dtype=torch.float64) / (half // 2))
    cell = (position - before).clamp_min(0)
    angle = torch.cat([cell // columns * frequency, cell % columns * frequency], -1)
    cos, sin = _tables(angle, position)
    in_grid = position >= before
    return (cos * in_grid).to(like), (sin * in_grid).to(like)


def _tables(angle: Tensor, like: Tensor) -> Rope:
    """Return cos and sin [n, head_dim] of angles [n, head_dim / 2], with the sign folded in."""
    return torch.cat([angle.cos()] * 2, -1).to(like), torch.cat([-angle.sin(), angle.sin()], -1).to(like)


MATRICES_PAY_UP_TO = {"cuda": 512}
"""Largest number of tokens whose rotations are stored as matrices, by type of device: one launch a layer, not three."""


class Rotation(NamedTuple):
    """Rotations of N tokens.

    Attributes:
        cos: [N, 1, d].
        sin: [N, 1, d], with the sign folded in.
        matrices: The same rotations as matrices [n, d, d], one tensor for each tile of n tokens; None if cos and sin
            are faster.
    """

    cos: Tensor
    sin: Tensor
    matrices: Sequence[Tensor] | None

    @classmethod
    def of(cls, positions: Tensor, rope: Rope, layers: int, tile: int = 0) -> Rotation:
        """Return the rotations of some positions.

        Args:
            positions: [N] indices into the tables.
            rope: Tables of :func:`rope_tables`.
            layers: Layers that share the rotations.
            tile: Tokens that are rotated together; 0 for all.
        """
        cos, sin = (table[positions] for table in rope)
        tile = tile or len(cos)
        pays = tile <= MATRICES_PAY_UP_TO.get(cos.device.type, 0) and layers > 2
        matrices = _matrices(cos, sin).split(tile) if pays and not torch.is_grad_enabled() else None
        return cls(cos[:, None], sin[:, None], matrices)

    def rotated(self, qk: Tensor, qkv: Tensor) -> Tensor:
        """Return rotated queries and keys, followed by the values.

        Args:
            qk: [N, query and key heads, d], to rotate.
            qkv: [N, all heads, d], of which the last heads are the values. Overwritten unless gradients are enabled.

        Returns:
            [N, all heads, d], in the memory of ``qkv`` unless gradients are enabled.
        """
        place, values = qkv.tensor_split([qk.shape[1]], 1)
        if self.matrices is not None:
            tile = len(self.matrices[0])
            for part, rotated, matrices in zip(qk.split(tile), place.split(tile), self.matrices):
                torch.bmm(part, matrices, out=rotated)
            return qkv
        terms = qk * self.cos, qk.roll(qk.shape[-1] // 2, -1), self.sin
        if torch.is_grad_enabled():
            return torch.cat([torch.addcmul(*terms), values], 1)
        torch.addcmul(*terms, out=place)
        return qkv


def _matrices(cos: Tensor, sin: Tensor) -> Tensor:
    """Return rotation matrices [N, d, d] of cos and sin [N, d]: ``x @ matrix`` is x [d] rotated.

    For d = 4 with angles a and b, where sin holds (-sin a, -sin b, sin a, sin b):

        cos a     0      sin a    0
        0         cos b  0        sin b
        -sin a    0      cos a    0
        0         -sin b 0        cos b
    """
    half = cos.shape[1] // 2
    matrices = cos.new_zeros(*cos.shape, cos.shape[1])
    matrices.diagonal(0, 1, 2).copy_(cos)
    matrices.diagonal(-half, 1, 2).copy_(sin[:, :half])
    matrices.diagonal(half, 1, 2).copy_(sin[:, half:])
    return matrices
