"""Rotary positions (RoPE, arXiv 2104.09864)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .config import DecoderConfig

Rope = tuple[Tensor, Tensor]
"""What :func:`rope_tables` makes."""

SPARE_POSITIONS = 512
"""Positions behind the last one that drafts may have where their number is fixed."""


class MropePositions(NamedTuple):
    """Where the tokens of a model with ``axes`` are. table: [max_positions + SPARE_POSITIONS, 3], time, row and column.

    origin: the entry of an image's first token. Texts stand right before it, so they are counted back from there.
    """

    table: Tensor
    origin: int

    @classmethod
    def of(cls, config: DecoderConfig, grids: Sequence[tuple[int, int]]) -> MropePositions:
        """grids: rows and columns of the pictures that an image's tokens are, one behind the other.

        A picture's time, first row and first column are one number; the next picture begins behind its longer side.
        """
        begin, parts = 0, []
        for rows, columns in grids:
            parts.append(grid_places(begin, rows, columns))
            begin += max(rows, columns)
        image = torch.cat(parts)
        origin = config.max_positions - len(image)
        before, behind = torch.arange(-origin, 0), torch.arange(begin, begin + SPARE_POSITIONS)
        return cls(torch.cat([before[:, None].expand(-1, 3), image, behind[:, None].expand(-1, 3)]), origin)


def grid_places(begin: int, rows: int, columns: int) -> Tensor:
    """Time, row and column of every cell of a picture, [rows * columns, 3]; those of its first cell are ``begin``."""
    cells = torch.cartesian_prod(torch.zeros(1, dtype=torch.long), torch.arange(rows), torch.arange(columns))
    return cells + begin


def rope_tables(config: DecoderConfig, like: Tensor, places: Tensor | None = None) -> Rope:
    """cos and sign-folded sin, [max_positions + SPARE_POSITIONS, head_dim] each: NeoX half-rotation.

    With the sign folded in, the rotation is ``x * cos + roll(x, head_dim / 2) * sin``. With a ``grid_rope`` one half of
    the pairs turns with the row and the other with the column. Both tables are 0 before the grid, which blanks queries
    and keys out. places: [n, 3], of a model with ``axes``, in the place of the numbers from 0 on; tables are [n,
    head_dim] then.
    """
    half = config.head_dim // 2
    position = torch.arange(config.max_positions + SPARE_POSITIONS, dtype=torch.float64)[:, None]
    if config.axes is not None:
        turning = sum(config.axes)
        axis = torch.arange(3).repeat_interleave(torch.tensor(config.axes))
        at = position.expand(-1, 3) if places is None else places.cpu()
        angle = at[:, axis] * config.rope_theta ** (-torch.arange(turning, dtype=torch.float64) / turning)
        return _tables(F.pad(angle, (0, half - turning)), like)
    if config.grid_rope is None:
        angle = position * config.rope_theta ** (-torch.arange(half, dtype=torch.float64) / half)
        shown = torch.ones_like(position)
    else:
        blank, columns = config.grid_rope
        frequency = config.rope_theta ** (-torch.arange(half // 2, dtype=torch.float64) / (half // 2))
        cell = (position - blank).clamp_min(0)
        angle, shown = torch.cat([cell // columns * frequency, cell % columns * frequency], -1), position >= blank
    cos, sin = _tables(angle, position)
    return (cos * shown).to(like), (sin * shown).to(like)


def _tables(angle: Tensor, like: Tensor) -> Rope:
    """The tables of the angles [n, head_dim / 2], like those of :func:`rope_tables`."""
    return torch.cat([angle.cos()] * 2, -1).to(like), torch.cat([-angle.sin(), angle.sin()], -1).to(like)


MATRICES_PAY_UP_TO = {"cuda": 512}
"""Tokens of a forward whose rotations are made matrices, by type of device: one launch a layer instead of three."""


class Rotation(NamedTuple):
    """The rotations of N tokens. cos, sin: [N, 1, d]. matrices: the same of every tile, [n, d, d], where that pays."""

    cos: Tensor
    sin: Tensor
    matrices: Sequence[Tensor] | None

    @classmethod
    def of(cls, positions: Tensor, rope: Rope, layers: int, tile: int = 0) -> Rotation:
        """positions: [N]. layers: how many share it. tile: tokens that are rotated at once; 0 for all."""
        cos, sin = (table[positions] for table in rope)
        tile = tile or len(cos)
        pays = tile <= MATRICES_PAY_UP_TO.get(cos.device.type, 0) and layers > 2
        matrices = _matrices(cos, sin).split(tile) if pays and not torch.is_grad_enabled() else None
        return cls(cos[:, None], sin[:, None], matrices)

    def rotated(self, qk: Tensor, qkv: Tensor) -> Tensor:
        """Queries and keys [N, heads, d], rotated, and behind them the values, which are the last of ``qkv``'s heads.

        It has the memory of ``qkv``, unless gradients are asked for.
        """
        place, values = qkv.tensor_split([qk.shape[1]], 1)
        if self.matrices is not None:
            tile = len(self.matrices[0])
            for part, turned, matrices in zip(qk.split(tile), place.split(tile), self.matrices):
                torch.bmm(part, matrices, out=turned)
            return qkv
        terms = qk * self.cos, qk.roll(qk.shape[-1] // 2, -1), self.sin
        if torch.is_grad_enabled():
            return torch.cat([torch.addcmul(*terms), values], 1)
        torch.addcmul(*terms, out=place)
        return qkv


def _matrices(cos: Tensor, sin: Tensor) -> Tensor:
    """Rotations [N, d, d], such that ``x @ rotation`` is x [d] rotated. cos, sin: [N, d]."""
    half = cos.shape[1] // 2
    made = cos.new_zeros(*cos.shape, cos.shape[1])
    made.diagonal(0, 1, 2).copy_(cos)
    made.diagonal(-half, 1, 2).copy_(sin[:, :half])
    made.diagonal(half, 1, 2).copy_(sin[:, half:])
    return made
