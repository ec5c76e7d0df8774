"""Geometry of a batch: where its tokens are in the KV cache and what they may attend to.

Guidance gives every image two rows: [cond_0 .. cond_B-1, uncond_0 .. uncond_B-1]. Prompts are left-padded to a common
length, so the token at raster position p is at cache position
``cache_offset + p`` in all rows. A row's position id is its cache position - pad;
where tokens have places (:class:`.rotary.Places`), it is the number of theirs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from .batch_invariance import NearKeys, align_mask
from .rotary import MropePositions


@dataclass
class AttentionMetadata:
    """Where one forward's tokens go and what they may attend to.

    positions: [R, n] position ids. cache_length: [R, n] cache cache_length, or a slice when all rows agree.
    mask: [R, 1, n, end], added to attention scores, in the compute dtype; ``end`` cache positions are read.
    near_keys: in the exact mode (:mod:`.batch_invariance`); ``mask`` is that of the far ones then. places: [R, n, 3],
    where a prompt's tokens are in others than those of their position ids.
    """

    positions: Tensor
    cache_position: Tensor | slice
    mask: Tensor
    near_keys: NearKeys | None = None
    places: Tensor | None = None

    @property
    def end(self) -> int:
        return self.mask.shape[-1]

    def part(self, first: int, last: int) -> AttentionMetadata:
        """The tokens from ``first`` to before ``last`` of a forward whose slots begin at 0."""
        places = None if self.places is None else self.places[:, first:last]
        mask = self.mask[:, :, first:last, :last]
        return AttentionMetadata(self.positions[:, first:last], slice(first, last), mask, places=places)


@dataclass
class Roots:
    """The last decided token of every image: the root of its next tree, which the target has not read yet.

    codes: [B] int64. at: [B, 1] int64 raster positions, on the same device. columns: of the KV cache, that a forward
    reads in a round which is replayed. Where it is 0, the host asks where the roots are, and a forward reads the filled
    part alone.
    """

    codes: Tensor
    at: Tensor
    columns: int = 0

    @classmethod
    def all_at(cls, codes: Tensor, position: int) -> Roots:
        """All images at the same position. codes: [B]."""
        return cls(codes, torch.full_like(codes, position)[:, None])

    def advance(self, codes: Tensor, steps: Tensor) -> None:
        """Go on to roots with the codes [B], ``steps`` [B, 1] tokens further on, in the same memory."""
        self.codes.copy_(codes)
        self.at.add_(steps)


class BatchRows:
    """One or two rows for every image of a batch, and ``cache_length`` positions of the KV cache.

    ``ids`` and ``features`` are those that a prefill reads, of the rows that the batch began with.
    """

    _BY_ROW = ("pads", "_shifts", "_blind", "_prompt_mask")

    def __init__(
        self,
        prompts: Sequence[list[int]],
        cache_length: int,
        like: Tensor,
        images: int = 0,
        length: int = 0,
        prefix: int = 0,
        places: MropePositions | None = None,
    ):
        """prompts: of every row (``models.target.Prompt``, or plain token ids), conditional rows first.

        like: gives dtype and device. images: how many; if 0, as many as rows. length: that prompts are padded
        to, if none is longer. prefix: image tokens at the end of every prompt. places: of a model that has some.
        """
        self.length = max(length, *map(len, prompts))
        self.cache_offset = self.length - prefix
        self.count, self.images = len(prompts), images or len(prompts)
        self.device = like.device
        pads = [self.length - len(prompt) for prompt in prompts]
        ids = [[prompt[0]] * pad + prompt for prompt, pad in zip(prompts, pads)]
        self.ids, self.pads = torch.tensor(ids, device=self.device), torch.tensor(pads, device=self.device)
        self._shifts = self.pads if places is None else torch.full_like(self.pads, self.cache_offset - places.origin)
        self._table = None if places is None else places.table
        own = [(row, pad, getattr(prompt, "places", None)) for row, (prompt, pad) in enumerate(zip(prompts, pads))]
        self._own_places = [(row, pad, places) for row, pad, places in own if places is not None]
        self.features = _left_padded([getattr(prompt, "features", None) for prompt in prompts], self.length, like)
        hidden = [pad + getattr(prompt, "hidden", 0) for prompt, pad in zip(prompts, pads)]
        self._blind = torch.tensor(hidden, device=self.device)  # columns before these are never seen
        self.columns = torch.arange(cache_length, device=self.device)
        self._open, self._shut = like.new_zeros(()), like.new_full((), -math.inf)
        self._prompt_mask = self._additive(self.columns >= self._blind[:, None])[:, None, None]

    def _additive(self, visible: Tensor) -> Tensor:
        return torch.where(visible, self._open, self._shut)

    # ---- which rows -------------------------------------------------------------------------

    def of(self, slots: Tensor) -> Tensor:
        """Numbers of the rows of some slots."""
        return (torch.arange(0, self.count, self.images, device=self.device)[:, None] + slots).flatten()

    def select(self, slots: Tensor) -> BatchRows:
        """The rows of these slots alone."""
        chosen, numbers = copy(self), self.of(slots)
        chosen.count, chosen.images = len(numbers), len(slots)
        for name in self._BY_ROW:
            setattr(chosen, name, getattr(self, name)[numbers])
        return chosen

    def admit(self, slots: Tensor, others: BatchRows) -> None:
        """Put ``others``, of the same length and cache length, into these slots, in the same memory."""
        for name in self._BY_ROW:
            getattr(self, name).index_copy_(0, self.of(slots), getattr(others, name))

    def unhidden(self) -> BatchRows:
        """The same rows with every token of the prompts in sight, ``Prompt.hidden`` or not."""
        rows = copy(self)
        rows._blind = self.pads
        rows._prompt_mask = rows._additive(self.columns >= self.pads[:, None])[:, None, None]
        return rows

    def spread(self, values: Tensor) -> Tensor:
        """Per-image values [B, ...] -> per-row values [R, ...]."""
        repeat = self.count // len(values)
        if len(values) == 1:
            return values.expand(repeat, *values.shape[1:])
        return values.repeat(repeat, *[1] * (values.ndim - 1))

    def gather(self, features: Tensor, nodes: Tensor) -> Tensor:
        """Features [R, n, h] at ``nodes`` [B, m] of each image -> [R, m, h]."""
        return features.gather(1, self.spread(nodes)[..., None].expand(-1, -1, features.shape[-1]))

    # ---- forwards ---------------------------------------------------------------------------

    def prefill(self) -> AttentionMetadata:
        """All prompt tokens at once.

        A token that nobody attends to sees what is hidden before it, as in LANTERN's code, so that no row of the mask
        is all -inf.
        """
        at = self.columns[: self.length]
        real = at >= self._blind[:, None]
        visible = (at[:, None] >= at) & (real[:, None] | ~real[..., None])
        positions = (at - self._shifts[:, None]).clamp_min(0)
        mask = align_mask(self._additive(visible))[:, None]
        return AttentionMetadata(positions, slice(0, self.length), mask, places=self._prompt_places(positions))

    def _prompt_places(self, positions: Tensor) -> Tensor | None:
        """Places [R, n, 3] of prompts of which some have places of their own; None if none has."""
        if self._table is None or not self._own_places:
            return None
        places = self._table[positions.cpu()]
        for row, pad, own in self._own_places:
            places[row, pad : pad + len(own)] = own
        return places

    def step(self, roots: Roots, first: int, offsets: Tensor | int, own: Tensor | None) -> AttentionMetadata:
        """A forward of n tokens for each image, after its committed cache positions, which end at its root's.

        first: distance of the first token's slot from the root's. offsets: position of each token relative to the
        root, [B, n], or one number for all. own: [B, n, w] bool, which of the w uncommitted slots each token sees,
        itself included; None for a single token that sees them all.
        """
        positions = [] if roots.columns else roots.at[:, 0].tolist()
        if len(set(positions)) != 1:
            return self._ragged_step(roots, max(positions, default=0), first, offsets, own)
        start, n = self.cache_offset + positions[0], 1 if own is None else own.shape[1]
        offsets = self.spread(offsets + start) if isinstance(offsets, Tensor) else offsets + start
        cache_position = slice(start + first, start + first + n)
        if own is None:
            return AttentionMetadata(
                offsets - self._shifts[:, None], cache_position, self._prompt_mask[..., : cache_position.stop]
            )
        committed = self._prompt_mask[..., :start].expand(-1, -1, n, -1)
        mask = torch.cat([committed, self.spread(self._additive(own)[:, None])], -1)
        return AttentionMetadata((offsets - self._shifts[:, None]).expand(-1, n), cache_position, mask)

    def causal_step(self, roots: Roots, n: int) -> AttentionMetadata:
        """A forward of n successive tokens for each image, the root's slot the first."""
        if n == 1:
            return self.step(roots, 0, 0, None)
        at = self.columns[:n].expand(len(roots.at), -1)
        return self.step(roots, 0, at, at[..., None] >= at[:, None])

    def near_apart(self, step: AttentionMetadata, start: Tensor | int, near: int | None) -> AttentionMetadata:
        """The same forward with near and far keys apart, as the exact mode wants them.

        start: slot of the first token that may be in another slot than its position's, [R, 1] or of all rows. near:
        positions before a token whose keys are near; None for all. The prompt is never near then.
        """
        if near is None:
            return replace(step, near_keys=NearKeys(None, step.mask.double()))
        seen, end = step.mask[:, 0], step.end
        far_until = (step.positions + self._shifts[:, None] - near).clamp_min(self.cache_offset)[..., None]  # [R, n, 1]
        columns = start - near + torch.arange(near + seen.shape[1], device=self.device)
        columns = columns.expand(self.count, -1)  # [R, w]
        there = (columns >= 0) & (columns < end)
        columns = columns.clamp(0, end - 1)
        close = there[:, None] & (columns[:, None] >= far_until)
        mask = torch.where(close, seen.gather(2, columns[:, None].expand_as(close)), self._shut)[:, None]
        far = torch.where(self.columns[:end] < far_until, seen, self._shut)[:, None]
        return replace(step, mask=align_mask(far), near_keys=NearKeys(columns, mask.double()))

    def _ragged_step(
        self, roots: Roots, last: int, first: int, offsets: Tensor | int, own: Tensor | None
    ) -> AttentionMetadata:
        """The same where the device alone knows where its images are, or where these have advanced unequally.

        last: position of the root that is furthest. It takes three times as long to make, 0.1 ms on a CPU.
        """
        if own is None:
            own = self.columns.new_ones(len(roots.at), 1, first + 1, dtype=torch.bool)
        n, width = own.shape[1:]
        start = self.spread(roots.at) + self.cache_offset  # [R, 1]
        positions = start + (self.spread(offsets) if isinstance(offsets, Tensor) else offsets) - self._shifts[:, None]
        columns = self.columns[: roots.columns or last + self.cache_offset + width]
        distance = columns - start
        committed = (distance < 0) & (columns >= self._blind[:, None])
        index = (distance.clamp(-1, width) + 1)[:, None].expand(-1, n, -1)
        uncommitted = self.spread(F.pad(own, (1, 1))).gather(2, index)  # padded: nothing is seen outside of ``own``
        mask = self._additive(uncommitted | committed[:, None])[:, None]
        return AttentionMetadata(positions.expand(-1, n), start + first + self.columns[:n], mask)


def _left_padded(features: list[Tensor | None], length: int, like: Tensor) -> Tensor | None:
    """Features [n, h] of every row as [R, length, h]; None where the rows have token ids alone."""
    given = [row for row in features if row is not None]
    if len(given) < len(features):
        return None
    return torch.stack([F.pad(row.to(like), (0, 0, length - len(row), 0)) for row in given])
