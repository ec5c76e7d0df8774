"""Geometry of a batch of rows.

Batch layout: guidance doubles images into *rows* [cond_0 .. cond_B-1, uncond_0 .. uncond_B-1]. Prompts are
left-padded to a common length, so token i of an image sits in cache slot ``prompt + i`` in all of its rows,
and a row's position id is ``slot - pad``.
"""

from __future__ import annotations

import math
from copy import copy
from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass
class Step:
    """Where one forward's tokens go and what they may attend to.

    positions: [R, n] position ids. slots: [R, n] cache slots, or a slice when all rows agree.
    mask: [R, 1, n, end] additive, in the compute dtype; ``end`` is the number of cache columns read.
    """

    positions: Tensor
    slots: Tensor | slice
    mask: Tensor

    @property
    def end(self) -> int:
        return self.mask.shape[-1]


@lru_cache(maxsize=64)
def _lower_triangle(n: int, device: torch.device) -> Tensor:
    return torch.ones(1, n, n, dtype=torch.bool, device=device).tril()


def _left_padded(features: list[Tensor | None], length: int, like: Tensor) -> Tensor | None:
    """Features [n, h] of every row as [R, length, h]; None where the rows have token ids alone."""
    if any(one is None for one in features):
        return None
    return torch.stack([F.pad(one.to(like), (0, 0, length - len(one), 0)) for one in features])


class Rows:
    """Geometry of a batch: left-padded prompts, ``slots`` cache columns, one or two rows per image.

    ``ids`` and ``features`` are those that a prefill reads, of the rows that a batch began with.
    """

    _BY_ROW = ("pads", "_blind", "_prompt_mask")

    def __init__(self, prompts: list[list[int]], slots: int, like: Tensor, length: int = 0):
        """prompts: the prompt of every row (``models.target.Prompt``, or plain token ids), conditional rows first; ``like`` gives dtype and device.
        length: to pad prompts to, if none of them is longer."""
        self.length = max(length, *map(len, prompts))
        self.count = len(prompts)
        self.device = like.device
        pads = [self.length - len(prompt) for prompt in prompts]
        ids = [[prompt[0]] * pad + prompt for prompt, pad in zip(prompts, pads)]
        self.ids, self.pads = torch.tensor(ids, device=self.device), torch.tensor(pads, device=self.device)
        self.features = _left_padded([getattr(prompt, "features", None) for prompt in prompts], self.length, like)
        self._blind = torch.tensor(
            [pad + getattr(prompt, "hidden", 0) for prompt, pad in zip(prompts, pads)], device=self.device
        )
        self.columns = torch.arange(slots, device=self.device)
        self._open = like.new_zeros(())
        self._shut = like.new_full((), -math.inf)
        self._prompt_mask = self._additive(self.columns >= self._blind[:, None])[:, None, None]  # pads are never seen

    def _additive(self, visible: Tensor) -> Tensor:
        return torch.where(visible, self._open, self._shut)

    def prefill(self) -> Step:
        """All prompt tokens at once. What nobody attends to sees what is hidden before it, as in LANTERN's code, and so is never a row of -inf."""
        at = self.columns[: self.length]
        real = at >= self._blind[:, None]
        visible = (at[:, None] >= at) & (real[:, None] | ~real[..., None])
        return Step((at - self.pads[:, None]).clamp_min(0), slice(0, self.length), self._additive(visible)[:, None])

    def of(self, images: Tensor, count: int) -> Tensor:
        """Numbers of the rows of some of the ``count`` images."""
        return (torch.arange(0, self.count, count, device=self.device)[:, None] + images).flatten()

    def select(self, rows: Tensor) -> Rows:
        """These rows alone."""
        chosen = copy(self)
        chosen.count = len(rows)
        for name in self._BY_ROW:
            setattr(chosen, name, getattr(self, name)[rows])
        return chosen

    def with_rows(self, rows: Tensor, others: Rows) -> Rows:
        """The same with ``others``, of the same length and slots, in the place of ``rows``."""
        changed = copy(self)
        for name in self._BY_ROW:
            setattr(changed, name, getattr(self, name).index_copy(0, rows, getattr(others, name)))
        return changed

    def unhidden(self) -> Rows:
        """The same rows with every token of the prompts in sight, ``Prompt.hidden`` or not."""
        rows = copy(self)
        rows._blind = self.pads
        rows._prompt_mask = rows._additive(self.columns >= self.pads[:, None])[:, None, None]
        return rows

    def spread(self, values: Tensor) -> Tensor:
        """Per-image values [B, ...] -> per-row values [R, ...]."""
        repeat = self.count // len(values)
        return (
            values.expand(repeat, *values.shape[1:])
            if len(values) == 1
            else values.repeat(repeat, *[1] * (values.ndim - 1))
        )

    def step(self, starts: list[int], first: int, offsets: Tensor | int, own: Tensor | None) -> Step:
        """A forward of n tokens behind each image's committed slots.

        starts: committed slots per image. first: distance of the first token's slot from there. offsets:
        position of each token relative to the start, [B, n] or one number for all. own: [B, n, w] bool, which of
        the w uncommitted slots each token sees (itself included); None for a single token that sees them all.
        """
        if len(set(starts)) > 1:
            return self._ragged_step(
                self.spread(torch.tensor(starts, device=self.device)[:, None]), max(starts), first, offsets, own
            )
        start, n = starts[0], 1 if own is None else own.shape[1]
        offsets = self.spread(offsets + start) if isinstance(offsets, Tensor) else offsets + start
        slots = slice(start + first, start + first + n)
        if own is None:
            return Step(offsets - self.pads[:, None], slots, self._prompt_mask[..., : slots.stop])
        committed = self._prompt_mask[..., :start].expand(-1, -1, n, -1)
        mask = torch.cat([committed, self.spread(self._additive(own)[:, None])], -1)
        return Step((offsets - self.pads[:, None]).expand(-1, n), slots, mask)

    def causal_step(self, starts: list[int], n: int) -> Step:
        """A forward of n successive tokens right behind each image's committed slots."""
        if n == 1:
            return self.step(starts, 0, 0, None)
        return self.step(
            starts,
            0,
            self.columns[:n].expand(len(starts), -1),
            _lower_triangle(n, self.device).expand(len(starts), -1, -1),
        )

    def _ragged_step(self, start: Tensor, last: int, first: int, offsets: Tensor | int, own: Tensor | None) -> Step:
        """The same when images have advanced unequally. start: [R, 1]; last: the greatest of them."""
        offsets = self.spread(offsets) if isinstance(offsets, Tensor) else offsets
        if own is None:
            columns, slots = self.columns[: last + first + 1], start + first
            mask = torch.where((columns <= slots)[:, None, None], self._prompt_mask[..., : len(columns)], self._shut)
            return Step(start + offsets - self.pads[:, None], slots, mask)
        n, width = own.shape[1:]
        positions = (start + offsets - self.pads[:, None]).expand(-1, n)
        slots = start + first + torch.arange(n, device=self.device)
        columns = self.columns[: last + width]
        distance = columns - start
        inside = (distance >= 0) & (distance < width)
        index = distance.clamp(0, width - 1)[:, None].expand(-1, n, -1)
        uncommitted = self.spread(own).gather(2, index) & inside[:, None]
        committed = (distance < 0) & (columns >= self._blind[:, None])
        return Step(positions, slots, self._additive(uncommitted | committed[:, None])[:, None])
