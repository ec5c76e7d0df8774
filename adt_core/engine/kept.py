"""Kept tokens: tokens of an image that are given and not generated.

Example: an image of 10 tokens, of which the tokens 3, 4 and 8 are generated. A dot is a kept token::

    position  0 1 2 3 4 5 6 7 8 9
              . . . x x . . . x .

The tokens 0 to 2 are read with the prompt (prefill). Then every *run* of kept tokens between generated ones is read in
one round: the round whose root is token 4 reads the root and the run 5 to 7, and decides token 8. The kept tokens after
the last generated token are not read. A draft tree ends where the next run begins, so drafts never meet kept tokens.
"""

from __future__ import annotations

from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import AdtError
from ..models.target import Target


class KeptTokens:
    """Kept tokens of the images of a request.

    Attributes:
        tokens: [B, T] int64 on the CPU: the token of each kept position, -1 for positions to generate.
        given: [B, T] bool, True for kept positions.
        start: Raster position of the first token that is generated in any of the images; T if there is none.
    """

    def __init__(self, tokens: Tensor):
        self.tokens = tokens
        self.given = tokens >= 0
        self.start = int(self.given.all(0).long().cumprod(0).sum())
        self._length = tokens.shape[1]

    @classmethod
    def of(cls, codes: Tensor | None, images: int, target: Target) -> KeptTokens:
        """Check the codes of kept cells, and add the tokens that end the rows.

        Args:
            codes: [B, P], codes of the first P cells of each image, -1 for cells to generate. In a model with a small
                image, its cells come first. The cells after these are generated. None keeps nothing.
            images: Number B of images.

        Raises:
            AdtError: If the shape or a code is not valid.
        """
        if codes is None:
            codes = torch.empty(images, 0, dtype=torch.long)
        most = target.num_cells
        if codes.ndim != 2 or len(codes) != images or codes.shape[1] > most:
            shape = list(codes.shape)
            raise AdtError("kept.shape", shape=shape, images=images, most=most)
        low = int(codes.min()) if codes.numel() else 0
        high = int(codes.max()) if codes.numel() else 0
        if low < -1 or high >= target.num_codes:
            last = target.num_codes - 1
            raise AdtError("kept.codes", low=low, high=high, model=target.name, last=last)
        return cls(target.tokens(F.pad(codes.cpu(), (0, most - codes.shape[1]), value=-1)))

    @property
    def has_runs(self) -> bool:
        """True if a round reads kept tokens."""
        return self.longest_run > 0

    @cached_property
    def longest_run(self) -> int:
        """Length of the longest run that a round reads."""
        ends = self._next(~self.given)[:, self.start + 1 :]
        runs = ends - torch.arange(self.start + 1, self._length + 1)
        return int(runs[ends < self._length].max()) if (ends < self._length).any() else 0

    def run(self, image: int, position: int) -> int:
        """Return the number of kept tokens between a position and the next token to generate, or 0."""
        end = self._next_generated[image][position + 1]
        return end - position - 1 if end < self._length else 0

    def end(self, image: int, position: int) -> int:
        """Return the position of the first kept token after a position, or T."""
        return self._next_kept[image][position + 1]

    def is_finished(self, image: int, position: int) -> bool:
        """Return whether no token after a position is generated."""
        return self._next_generated[image][position + 1] == self._length

    def generated(self, image: int, position: int) -> int:
        """Return the number of tokens up to a position, this position included, that are generated."""
        return self._generated[image][position]

    @cached_property
    def _next_kept(self) -> list[list[int]]:
        return self._next(self.given).tolist()

    @cached_property
    def _next_generated(self) -> list[list[int]]:
        return self._next(~self.given).tolist()

    @cached_property
    def _generated(self) -> list[list[int]]:
        return (~self.given).cumsum(1).tolist()

    def _next(self, marked: Tensor) -> Tensor:
        """Return for each position of each image the first marked position from there on, or T, [B, T + 1]."""
        # Example: marked [False, True, False] -> positions [3, 1, 3], padded [3, 1, 3, 3] -> [1, 1, 3, 3]
        positions = torch.where(marked, torch.arange(self._length), self._length)
        padded = F.pad(positions, (0, 1), value=self._length)
        return padded.flip(1).cummin(1).values.flip(1)
