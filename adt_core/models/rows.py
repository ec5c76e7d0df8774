"""Rows of a batch: their cache positions, position ids and attention masks.

A batch of B images has R rows. Without guidance, R = B. With guidance, every image has a conditional and an
unconditional row, in this order: [cond_0 .. cond_B-1, uncond_0 .. uncond_B-1].

Three numbers describe the place of a token:

- The raster position is the index of an image token in the order of generation, from 0.
- The cache position is the index in the KV cache. Prompts are left-padded to a common length, so the token at raster
  position p has the cache position ``cache_offset + p`` in all rows.
- The position id selects the rotation of RoPE. It is the cache position minus the padding of the row. In a model with
  M-RoPE, it is an index into the table of :class:`.rotary.MropePositions`.

Other letters in shapes: n tokens of each row in a forward, h hidden size, w cache positions, and `end` cache positions
that a forward reads. A root is the last token of an image that has already been decided. The next draft tree grows from
it. The tokens before the root are called committed: their keys and values are in the cache.
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
    """Cache positions, position ids and mask of one forward over R rows of n tokens.

    Attributes:
        positions: [R, n] int64 position ids.
        cache_position: [R, n] int64 cache positions, or a slice if they are the same in all rows.
        mask: [R, 1, n, end] mask that is added to the attention scores, in their dtype. If ``near_keys``
            is set, the mask covers only the far keys (:mod:`.batch_invariance` defines near and far).
        near_keys: Near keys of batch-invariant mode, else None.
        mrope_positions: [R, n, 3] int64 M-RoPE positions. None if the model has no M-RoPE, or if ``positions`` already
            select the right entries of the M-RoPE table.
    """

    positions: Tensor
    cache_position: Tensor | slice
    mask: Tensor
    near_keys: NearKeys | None = None
    mrope_positions: Tensor | None = None

    @property
    def end(self) -> int:
        """Number of cache positions that the forward reads, from the beginning of the cache."""
        return self.mask.shape[-1]

    def part(self, first: int, last: int) -> AttentionMetadata:
        """Return the metadata for only the tokens ``first`` to ``last - 1``.

        The metadata must describe a forward whose first token is at cache position 0.
        """
        mrope_positions = None if self.mrope_positions is None else self.mrope_positions[:, first:last]
        mask = self.mask[:, :, first:last, :last]
        positions = self.positions[:, first:last]
        return AttentionMetadata(positions, slice(first, last), mask, mrope_positions=mrope_positions)


@dataclass
class Roots:
    """Root of the draft tree of every image (:mod:`..rules.tree`).

    Attributes:
        codes: [B] int64 codes of the roots.
        at: [B, 1] int64 raster positions of the roots, on the same device as ``codes``.
        kv_length: Fixed number of cache positions that a forward reads, if decoding rounds are replayed as CUDA graphs.
            If 0, the host copies ``at`` from the device, and a forward reads only the filled part of the cache.
    """

    codes: Tensor
    at: Tensor
    kv_length: int = 0

    @classmethod
    def all_at(cls, codes: Tensor, position: int) -> Roots:
        """Return roots of images that are all at the same raster position."""
        return cls(codes, torch.full_like(codes, position)[:, None])

    def advance(self, codes: Tensor, steps: Tensor) -> None:
        """Replace the roots with later ones, in the same memory.

        Args:
            codes: [B] int64 codes of the new roots.
            steps: [B, 1] int64 distance from the old to the new root of each image, in tokens.
        """
        self.codes.copy_(codes)
        self.at.add_(steps)


class BatchRows:
    """Prompt rows of a batch of images, one or two for each image, and their masks over the KV cache.

    Attributes:
        length: Length of the padded prompts, in tokens.
        cache_offset: Cache position of an image's first token.
        count: Number of rows R.
        images: Number of images B.
        ids: [R, length] int64 left-padded token ids for the prefill. ``select`` and ``admit`` do not change them.
        features: [R, length, h] decoder inputs that replace the ids in a model with a text encoder, else None.
        pads: [R] int64 number of padding tokens of each row.
        columns: [cache_length] int64 numbers of all cache positions: 0, 1, 2 and so on.
    """

    _BY_ROW = ("pads", "_shifts", "_hidden_until", "_prompt_mask")

    def __init__(
        self,
        prompts: Sequence[list[int]],
        cache_length: int,
        like: Tensor,
        images: int = 0,
        length: int = 0,
        prefix: int = 0,
        mrope_positions: MropePositions | None = None,
    ):
        """Pad the prompts and build their masks.

        Args:
            prompts: ``EncodedPrompt`` or plain token ids of every row, conditional rows first.
            like: Tensor whose device and dtype the masks get.
            images: Number of images; 0 if there is one row per image.
            length: Minimum length of the padded prompts, in tokens.
            prefix: Number of image tokens at the end of every prompt, if existing images are continued; else 0.
            mrope_positions: Table of M-RoPE positions, in a model with M-RoPE.
        """
        self.length = max(length, *map(len, prompts))
        self.cache_offset = self.length - prefix
        self.count = len(prompts)
        self.images = images or len(prompts)
        self.device = like.device
        pads = [self.length - len(prompt) for prompt in prompts]
        self.ids = torch.tensor([[prompt[0]] * pad + prompt for prompt, pad in zip(prompts, pads)], device=self.device)
        self.pads = torch.tensor(pads, device=self.device)
        self.features = _left_padded([getattr(prompt, "features", None) for prompt in prompts], self.length, like)
        self._set_position_ids(prompts, pads, mrope_positions)
        hidden = [pad + getattr(prompt, "hidden", 0) for prompt, pad in zip(prompts, pads)]
        self._hidden_until = torch.tensor(hidden, device=self.device)  # lower cache positions are masked
        self.columns = torch.arange(cache_length, device=self.device)
        self._visible = like.new_zeros(())
        self._masked = like.new_full((), -math.inf)
        self._prompt_mask = self._additive(self.columns >= self._hidden_until[:, None])[:, None, None]

    def _set_position_ids(
        self, prompts: Sequence[list[int]], pads: list[int], mrope_positions: MropePositions | None
    ) -> None:
        """Set the differences between cache positions and position ids, and the M-RoPE positions of prompts."""
        self._shifts = self.pads[:, None]  # [R, 1]
        self._mrope_table = None
        if mrope_positions is not None:
            self._shifts = torch.full_like(self._shifts, self.cache_offset - mrope_positions.origin)
            self._mrope_table = mrope_positions.table
        own = [getattr(prompt, "mrope_positions", None) for prompt in prompts]
        self._own_mrope = [(row, pads[row], positions) for row, positions in enumerate(own) if positions is not None]

    def _additive(self, visible: Tensor) -> Tensor:
        """Convert a bool mask (True for visible keys) to a mask for attention scores: 0 if visible, else -inf."""
        return torch.where(visible, self._visible, self._masked)

    # ---- selection of rows ------------------------------------------------------------------

    def of(self, slots: Tensor) -> Tensor:
        """Return the indices of all rows that belong to some batch slots [b]. An image occupies one slot."""
        # 4 images with guidance have 8 rows. Slots [1, 3] have conditional rows [1, 3] and unconditional rows [5, 7].
        return (torch.arange(0, self.count, self.images, device=self.device)[:, None] + slots).flatten()

    def select(self, slots: Tensor) -> BatchRows:
        """Return the rows of these batch slots [b] as a new object."""
        selected = copy(self)
        indices = self.of(slots)
        selected.count = len(indices)
        selected.images = len(slots)
        for name in self._BY_ROW:
            setattr(selected, name, getattr(self, name)[indices])
        return selected

    def admit(self, slots: Tensor, others: BatchRows) -> None:
        """Overwrite the rows of some batch slots, in the same memory.

        Args:
            slots: [b] int64 batch slots.
            others: Rows of b other images, with the same padded length and cache length.
        """
        for name in self._BY_ROW:
            getattr(self, name).index_copy_(0, self.of(slots), getattr(others, name))

    def unhidden(self) -> BatchRows:
        """Return the same rows with all prompt tokens visible, including those that ``EncodedPrompt.hidden`` counts."""
        rows = copy(self)
        rows._hidden_until = self.pads
        rows._prompt_mask = rows._additive(self.columns >= self.pads[:, None])[:, None, None]
        return rows

    def spread(self, values: Tensor) -> Tensor:
        """Repeat the values of each image [B, ...] for its rows [R, ...]. For one image, the result is a view."""
        repeat = self.count // len(values)
        if len(values) == 1:
            return values.expand(repeat, *values.shape[1:])
        return values.repeat(repeat, *[1] * (values.ndim - 1))

    def broadcast(self, values: Tensor) -> Tensor:
        """Return the values of each image [B, ...] in a shape that broadcasts over its rows: [R, ...] or [1, ...]."""
        return values if values.shape[0] == 1 else self.spread(values)

    def feature_index(self, nodes: Tensor, features: Tensor) -> Tensor:
        """Return the index [R, m, h] of some nodes or positions [B, m] in dimension 1 of features [R, n, h]."""
        return self.spread(nodes)[..., None].expand(-1, -1, features.shape[-1])

    def gather(self, features: Tensor, nodes: Tensor) -> Tensor:
        """Return the features [R, m, h] of m nodes of each image's draft tree; see ``feature_index``."""
        return features.gather(1, self.feature_index(nodes, features))

    # ---- forwards ---------------------------------------------------------------------------

    def prefill(self) -> AttentionMetadata:
        """Return the metadata of a forward over all prompt tokens.

        Padding and hidden tokens (``EncodedPrompt.hidden``) are visible only to each other: such a token attends to
        itself and to all tokens before it, as in LANTERN's code. If it attended to no token, its row of the mask would
        contain only -inf, and softmax would return NaN.
        """
        # A prompt of length 4 whose first token is padding (1: visible):
        #   query 0 (padding)  1 0 0 0
        #   query 1            0 1 0 0
        #   query 2            0 1 1 0
        #   query 3            0 1 1 1
        at = self.columns[: self.length]
        real = at >= self._hidden_until[:, None]
        visible = (at[:, None] >= at) & (real[:, None] | ~real[..., None])
        positions = (at - self._shifts).clamp_min(0)
        mask = align_mask(self._additive(visible))[:, None]
        mrope_positions = self._prompt_mrope(positions)
        return AttentionMetadata(positions, slice(0, self.length), mask, mrope_positions=mrope_positions)

    def _prompt_mrope(self, positions: Tensor) -> Tensor | None:
        """Return M-RoPE positions [R, n, 3] if a prompt has ``mrope_positions``, as with source images; else None."""
        if self._mrope_table is None or not self._own_mrope:
            return None
        mrope_positions = self._mrope_table[positions.cpu()]
        for row, pad, own in self._own_mrope:
            mrope_positions[row, pad : pad + len(own)] = own
        return mrope_positions

    def metadata(self, roots: Roots, first: int, offsets: Tensor | int, own: Tensor | None) -> AttentionMetadata:
        """Return the metadata of a forward of n tokens for each image, after the image's committed tokens.

        Args:
            roots: Root of each image. All tokens before the root are committed.
            first: Cache position of the first of the n tokens, relative to the root.
            offsets: [B, n] int64 raster position of each token relative to the root, or one number for all tokens.
            own: [B, n, w] bool: whether each token sees each of w cache positions, the first of which is the root's.
                Every token sees itself. None for a single token that sees all these positions.
        """
        # One row with 1 padding token, cache_offset 4, root at raster position 2. The tree: the root and two children.
        #   start = 4 + 2 = 6, cache_position = slice(6, 9)
        #   offsets [0, 1, 1] (depths in the tree) -> position ids [6, 7, 7] - 1 = [5, 6, 6]
        #   In the mask, 1 is visible. Cache position 0 is padding, 1 to 5 are committed, and `own` covers 6 to 8.
        #   cache position   0 1 2 3 4 5 | 6 7 8
        #   root             0 1 1 1 1 1 | 1 0 0
        #   first child      0 1 1 1 1 1 | 1 1 0
        #   second child     0 1 1 1 1 1 | 1 0 1
        positions = [] if roots.kv_length else [at for (at,) in roots.at.tolist()]
        if len(set(positions)) != 1:
            return self._ragged_metadata(roots, max(positions, default=0), first, offsets, own)
        start = self.cache_offset + positions[0]
        n = 1 if own is None else own.shape[1]
        cache_position = slice(start + first, start + first + n)
        if isinstance(offsets, Tensor):
            position_ids = self.broadcast(offsets + start) - self._shifts
        else:
            position_ids = (offsets + start - self._shifts).expand(-1, n)
        if own is None:
            return AttentionMetadata(position_ids, cache_position, self._prompt_mask[..., : cache_position.stop])
        mask = self._prompt_mask[..., : start + own.shape[2]].expand(-1, -1, n, -1).clone()
        mask[..., start:].masked_fill_(self.broadcast(~own[:, None]), -math.inf)
        return AttentionMetadata(position_ids, cache_position, mask)

    def causal_metadata(self, roots: Roots, n: int) -> AttentionMetadata:
        """Return the metadata of a forward of n consecutive tokens for each image, beginning with the root."""
        if n == 1:
            return self.metadata(roots, 0, 0, None)
        at = self.columns[:n].expand(len(roots.at), -1)
        return self.metadata(roots, 0, at, at[..., None] >= at[:, None])

    def split_near_keys(self, metadata: AttentionMetadata, start: Tensor | int, near: int | None) -> AttentionMetadata:
        """Return the metadata with near and far keys separated, for batch-invariant mode.

        Args:
            start: First cache position that may hold another token than in plain decoding: an int64 tensor [R, 1], or
                one number for all rows.
            near: Number of image positions directly before a token that have near keys; keys of the prompt are far.
                None if all keys are near, including the keys of the prompt.
        """
        if near is None:
            return replace(metadata, near_keys=NearKeys(None, metadata.mask.double()))
        # Example: near = 2, cache_offset = 4, start = 6, and the tree in the comment in `metadata`. Its tokens are at
        # cache positions 6, 7, 8. In plain decoding, either child would be at cache position 7.
        #   far_until [4, 5, 5]: the token's position minus `near`, but not before the image
        #   columns   [4, 5, 6, 7, 8]: cache positions that are near for at least one token
        #   is_near   root 1 1 1 1 1, children 0 1 1 1 1 (`mask` also masks what `metadata.mask` masks)
        #   far       root sees 1 to 3, children see 1 to 4
        seen = metadata.mask[:, 0]
        end = metadata.end
        far_until = (metadata.positions + self._shifts - near).clamp_min(self.cache_offset)[..., None]  # [R, n, 1]
        columns = start - near + torch.arange(near + seen.shape[1], device=self.device)
        columns = columns.expand(self.count, -1)  # [R, w]
        exists = (columns >= 0) & (columns < end)
        columns = columns.clamp(0, end - 1)
        is_near = exists[:, None] & (columns[:, None] >= far_until)
        mask = torch.where(is_near, seen.gather(2, columns[:, None].expand_as(is_near)), self._masked)[:, None]
        far = torch.where(self.columns[:end] < far_until, seen, self._masked)[:, None]
        bounds = torch.stack(torch.broadcast_tensors(self._hidden_until[:, None], far_until[..., 0]), -1)
        return replace(metadata, mask=align_mask(far), near_keys=NearKeys(columns, mask.double(), bounds))

    def _ragged_metadata(
        self, roots: Roots, last: int, first: int, offsets: Tensor | int, own: Tensor | None
    ) -> AttentionMetadata:
        """Return the result of `metadata` for images at different positions, or at positions unknown to the host.

        Building the metadata takes several times as long as for equal positions. ``last`` is the largest raster
        position of a root. The other arguments are as in `metadata`.
        """
        if own is None:
            own = self.columns.new_ones(len(roots.at), 1, first + 1, dtype=torch.bool)
        n, width = own.shape[1:]
        start = self.spread(roots.at) + self.cache_offset  # [R, 1]
        positions = start + (self.spread(offsets) if isinstance(offsets, Tensor) else offsets) - self._shifts
        columns = self.columns[: roots.kv_length or last + self.cache_offset + width]
        distance = columns - start
        committed = (distance < 0) & (columns >= self._hidden_until[:, None])
        # Example: start = 3, and `own` has 2 columns. Padding adds a column of False on both sides: columns 0 and 3.
        #   cache position   0  1  2  3  4  5
        #   distance        -3 -2 -1  0  1  2
        #   index            0  0  0  1  2  3     column of the padded `own`
        index = (distance.clamp(-1, width) + 1)[:, None].expand(-1, n, -1)
        uncommitted = self.spread(F.pad(own, (1, 1))).gather(2, index)
        mask = self._additive(uncommitted | committed[:, None])[:, None]
        return AttentionMetadata(positions.expand(-1, n), start + first + self.columns[:n], mask)


def _left_padded(features: list[Tensor | None], length: int, like: Tensor) -> Tensor | None:
    """Stack the features [n, h] of all rows to [R, length, h], left-padded with zeros; None if a row has only ids."""
    given = [row for row in features if row is not None]
    if len(given) < len(features):
        return None
    return torch.stack([F.pad(row.to(like), (0, 0, length - len(row), 0)) for row in given])
