"""Rotary position embeddings (RoPE, arXiv 2104.09864).

RoPE rotates pairs of elements of every query and key by angles that are proportional to the token's position. M-RoPE
(arXiv 2409.12191) gives each token three positions: time, row and column. Each pair uses one of the three.
"""

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
"""Number of positions after ``max_positions`` that the tables contain, for drafts beyond the end of the image."""


class MropePositions(NamedTuple):
    """Table of M-RoPE positions, for a model with ``mrope_section``.

    Attributes:
        table: [max_positions + SPARE_POSITIONS, 3] int64: time, row and column of each position in the sequence.
        origin: Index in the table of the image's first token. The last token of a prompt uses the entry before it, and
            earlier prompt tokens use earlier entries.
    """

    table: Tensor
    origin: int

    @classmethod
    def of(cls, config: DecoderConfig, grids: Sequence[tuple[int, int]]) -> MropePositions:
        """Return the positions for images that consist of one or more grids of tokens.

        All tokens of a grid have the same time. The first token's row and column equal this time. For example, a grid
        of 2 x 3 tokens that begins at 5 has time 5, rows 5 and 6, and columns 5 to 7. The next grid then begins at 8,
        because the longer side has 3 tokens.

        Args:
            grids: (rows, columns) of each grid, in the order of generation.
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
    """Return the M-RoPE positions of a grid, row by row: time, row and column of each token [rows * columns, 3] int64.

    Args:
        begin: Time of all tokens. It is also the row and the column of the first token.
    """
    cells = torch.cartesian_prod(torch.zeros(1, dtype=torch.long), torch.arange(rows), torch.arange(columns))
    return cells + begin


def rope_tables(config: DecoderConfig, like: Tensor, positions: Tensor | None = None) -> Rope:
    """Return tables of cos and sin for NeoX-style rotations: element i forms a pair with element i + head_dim / 2.

    The first half of sin is negated, so the rotated vector is ``x * cos + roll(x, head_dim / 2) * sin``. With
    ``grid_rope``, half of the pairs use the row and half use the column. Both tables are 0 for the tokens before the
    grid, so the rotated queries and keys of these tokens are zero.

    Args:
        like: Tensor whose dtype and device the tables get.
        positions: [n, 3] M-RoPE positions of n tokens, for a model with ``mrope_section``. By default, the token at
            position i has time, row and column i.

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
    """Return cos and sin [n, head_dim] of angles [n, head_dim / 2]. The first half of sin is negated."""
    return torch.cat([angle.cos()] * 2, -1).to(like), torch.cat([-angle.sin(), angle.sin()], -1).to(like)


MATRICES_PAY_UP_TO = {"cuda": 512}
"""Largest number of tokens, by device type, that one kernel rotates if the rotations are stored as matrices. A layer
launches one kernel with matrices, and three with cos and sin."""


class Rotation(NamedTuple):
    """Rotations of N tokens; d is the width of an attention head.

    Attributes:
        cos: [N, 1, d].
        sin: [N, 1, d]. The first half of the last dimension is negated, as in :func:`rope_tables`.
        matrices: The same rotations as rotation matrices: one tensor [tile, d, d] for each tile of tokens. None if
            using cos and sin is faster.
    """

    cos: Tensor
    sin: Tensor
    matrices: Sequence[Tensor] | None

    @classmethod
    def of(cls, positions: Tensor, rope: Rope, layers: int, tile: int = 0) -> Rotation:
        """Return the rotations of the tokens at some positions.

        Args:
            positions: [N] int64 indices into the tables.
            rope: Result of :func:`rope_tables`.
            layers: Number of layers that rotate with torch, not with a kernel of :mod:`..kernels`.
            tile: Number of tokens that one kernel rotates; 0 for all N.
        """
        cos, sin = (table.index_select(0, positions) for table in rope)  # `[]` is three operations more
        tile = tile or len(cos)
        pays = tile <= MATRICES_PAY_UP_TO.get(cos.device.type, 0) and layers > 2
        matrices = _matrices(cos, sin).split(tile) if pays and not torch.is_grad_enabled() else None
        return cls(cos[:, None], sin[:, None], matrices)

    def rotated(self, qk: Tensor, qkv: Tensor) -> Tensor:
        """Return rotated queries and keys, followed by the unchanged values: ``qkv``, unless gradients are enabled.

        Args:
            qk: [N, query and key heads, d] queries and keys to rotate.
            qkv: [N, query, key and value heads, d]. Only its values are read. Its queries and keys are overwritten with
                the result, unless gradients are enabled.
        """
        heads = qk.shape[1]
        place = qkv.as_strided(qk.shape, qkv.stride())  # `qkv[:, :heads]`, which is two operations
        if self.matrices is not None:
            tile = len(self.matrices[0])
            for part, rotated, matrices in zip(qk.split(tile), place.split(tile), self.matrices):
                torch.bmm(part, matrices, out=rotated)
            return qkv
        # The halves of each head are swapped by taking the middle of two copies, because `roll` is 11 operations:
        # (a, b) -> (a, b, a, b) -> (b, a).
        half = qk.shape[-1] // 2
        terms = qk * self.cos, torch.cat([qk, qk], -1)[..., half:-half], self.sin
        if torch.is_grad_enabled():
            return torch.cat([torch.addcmul(*terms), qkv[:, heads:]], 1)
        torch.addcmul(*terms, out=place)
        return qkv


def _matrices(cos: Tensor, sin: Tensor) -> Tensor:
    """Return rotation matrices [N, d, d] for cos and sin [N, d]: ``x @ matrix`` rotates a vector x [d].

    For d = 4 and a token with the angles a and b, ``sin`` contains (-sin a, -sin b, sin a, sin b). The matrix is:

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
