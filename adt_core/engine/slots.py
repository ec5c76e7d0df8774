"""Batch slots: the state of the images that are being decoded, one slot per image.

Dimensions: B is the number of slots. R is the number of rows of the transformer's batch: 2 * B with guidance, else B.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..drafters import Proposer
from ..models.cache import KVCache
from ..models.rotary import Rope
from ..models.rows import BatchRows, Roots
from ..policies import Shape
from ..rules.noise import Noise
from ..rules.verify import Neighbours
from .device.memory import state_bytes
from .graphs import Graphs
from .request import ATTENDED_MULTIPLE, Request


@dataclass(frozen=True)
class Tables:
    """Lookup tables that all images of a request share, on the device of the weights.

    Attributes:
        rope: Tables of the decoder's rotary position embedding.
        guidance: Guidance scale at each raster position, or one scale for all positions.
        grammar: Vocabulary mask at each raster position; None if every token is allowed at every position.
        neighbours: For every token, the tokens whose codebook vectors are nearest; None without LANTERN.
    """

    rope: Rope
    guidance: Tensor | float
    grammar: Tensor | None
    neighbours: Neighbours | None

    @classmethod
    def of(cls, request: Request) -> Tables:
        target = request.target
        decoder = request.target.decoder
        like = torch.empty(0, dtype=decoder.wide_dtype, device=decoder.embedding.device)
        neighbours = None
        if request.lantern is not None:
            nearest = target.codec.neighbours(request.lantern.neighbours).padded(target.num_tokens)
            neighbours = nearest.to(decoder.embedding.device)
        guidance = target.guidance(request.sampling.guidance_scale, like)
        return cls(target.rope, guidance, target.grammar(like), neighbours)


@dataclass
class Slots:
    """State of the images that are being decoded. Its tensors follow the rules of captured code (:mod:`.round`).

    Attributes:
        request: Batch to which the images belong.
        images: For each slot, the index of its image in the request.
        rows: Prompt rows of the images: padding, position ids and attention masks.
        noise: Noise of the images; None at temperature 0.
        roots: Root of each image, on the device.
        positions: Raster position of each root, on the host.
        proposer: State of the drafter; None in plain decoding.
        kept: [B, T] int64, kept token at each position, -1 for positions to generate; None if no round reads any.
        layout: Key of these slots in the pool (`pool.layout_of`); None if the slots can't be reused.
        active: For each slot, whether its image is still being decoded. A finished image may stay in its slot.
        controls: Values that the host sets for each round, [B, 6] int64. The columns are: maximum depth, width and
            number of drafts of the tree; 1 if the image advances, else 0; number of tokens that LANTERN may still
            substitute; number of kept tokens after the root (`run_lengths`).
    """

    request: Request
    images: list[int]
    rows: BatchRows
    cache: KVCache
    tables: Tables
    noise: Noise | None
    roots: Roots
    positions: list[int]
    graphs: Graphs
    proposer: Proposer | None = None
    kept: Tensor | None = None
    layout: Hashable = None

    def __post_init__(self) -> None:
        self.active: list[bool] = [True] * len(self)
        self.controls = torch.zeros(len(self), 6, dtype=torch.long, device=self.rows.device)
        self._uploaded: list[list[int]] = []

    @property
    def num_bytes(self) -> int:
        """Estimated bytes of device memory that the slots and their graphs occupy."""
        return state_bytes(self.request, len(self)) + self.graphs.num_bytes

    def __len__(self) -> int:
        return len(self.images)

    # ---- images enter and leave -------------------------------------------------------------

    def finished(self) -> list[int]:
        """Return the indices of the active slots whose image is complete."""
        is_finished = map(self.request.kept.is_finished, self.images, self.positions)
        return [slot for slot, finished in enumerate(is_finished) if finished and self.active[slot]]

    def select(self, slots: list[int]) -> None:
        """Keep only the given slots. This changes tensor sizes. Don't call it if rounds are replayed as CUDA graphs."""
        index = torch.tensor(slots, device=self.rows.device)
        self.cache.select(self.rows.of(index))
        self.rows = self.rows.select(index)
        if self.noise is not None:
            self.noise.select(index)
        self.roots = Roots(self.roots.codes[index], self.roots.at[index])
        if self.kept is not None:
            self.kept = self.kept[index]
        self.images = [self.images[slot] for slot in slots]
        self.positions = [self.positions[slot] for slot in slots]
        self.active = [self.active[slot] for slot in slots]
        self.controls = self.controls[index]
        self._uploaded = []
        self.layout = None
        if self.proposer is not None:
            self.proposer.select(index, self.rows)

    def deactivate(self, slots: list[int]) -> None:
        """Mark slots as inactive. Rounds still compute them, because other tensor sizes would need new graphs."""
        for slot in slots:
            self.active[slot] = False

    def stop_drafting(self) -> None:
        """Switch to plain decoding and free the proposer."""
        self.proposer = None
        self.layout = None

    def admit(self, slots: list[int], others: Slots) -> None:
        """Replace the images of some slots.

        Args:
            others: State of the new images, in the order of `slots`. Their first tokens have already been decided.
        """
        index = torch.tensor(slots, device=self.rows.device)
        self.rows.admit(index, others.rows)
        self.cache.admit(self.rows.of(index), others.cache)
        if self.noise is not None and others.noise is not None:
            self.noise.admit(index, others.noise)
        self.roots.codes.index_copy_(0, index, others.roots.codes)
        self.roots.at.index_copy_(0, index, others.roots.at)
        if self.kept is not None and others.kept is not None:
            self.kept.index_copy_(0, index, others.kept)
        for slot, image, position in zip(slots, others.images, others.positions, strict=True):
            self.images[slot] = image
            self.positions[slot] = position
            self.active[slot] = True
        if self.proposer is not None:
            self.proposer.admit(index, others.proposer, self.rows)

    def restart(self, others: Slots) -> None:
        """Replace all images and their request. `others` must have the same layout as these slots."""
        self.request = others.request
        self.admit(list(range(len(self))), others)

    # ---- one round --------------------------------------------------------------------------

    def upload_controls(
        self, shapes: Sequence[Shape], advances: Sequence[int], max_substitutions: Sequence[int]
    ) -> None:
        """Copy the values that the host sets for a round to `controls` on the device, unless they are unchanged.

        This method also sets `roots.kv_length`, the number of cache positions that a replayed round reads.

        Args:
            shapes: Maximum size of each slot's tree.
            advances: 1 for each slot whose image advances, else 0.
            max_substitutions: For each slot, the number of tokens that LANTERN may still substitute.
        """
        self.roots.kv_length = self._columns() if self.request.replayed else 0
        values = zip(shapes, advances, max_substitutions, self.runs(), strict=True)
        controls = [[*shape[:3], advance, limit, run] for shape, advance, limit, run in values]
        if controls != self._uploaded:
            on_host = torch.tensor(controls)
            is_cuda = self.controls.is_cuda
            self.controls.copy_(on_host.pin_memory() if is_cuda else on_host, non_blocking=is_cuda)
            self._uploaded = controls

    def prepare_noise(self) -> None:
        """Make the noise of the next round. Call this method while the device executes the current round."""
        if self.noise is not None:
            self.noise.prepare([position + run for position, run in zip(self.positions, self.runs())])

    def runs(self) -> list[int]:
        """Return for each slot the number of kept tokens between the root and the next token to generate."""
        return [self.request.kept.run(image, position) for image, position in zip(self.images, self.positions)]

    def state(self) -> list[Tensor]:
        """Return all tensors, except KV caches, that a round changes and the next round reads."""
        return [self.roots.codes, self.roots.at, *(self.proposer.state() if self.proposer is not None else [])]

    def _columns(self) -> int:
        """Return the number of cache positions that a replayed round reads.

        It is `ATTENDED_MULTIPLE` times a power of 2, but at most the length of the cache, so that few graphs must be
        captured. Example: with 512, a round that uses 300, 700 or 1,500 positions reads 512, 1,024 or 2,048.
        """
        used = max(self.positions) + self.rows.cache_offset + self.request.uncommitted
        return min(ATTENDED_MULTIPLE << (-(-used // ATTENDED_MULTIPLE) - 1).bit_length(), len(self.rows.columns))

    @property
    def tree_limits(self) -> Tensor:
        """Maximum depth, width and number of drafts of each image's tree, [B, 3]."""
        return self.controls[:, :3]

    @property
    def advances(self) -> Tensor:
        """1 for each image that advances in this round, else 0, [B, 1]."""
        return self.controls[:, 3:4]

    @property
    def max_substitutions(self) -> Tensor:
        """Number of tokens of each image that LANTERN may still substitute, [B]."""
        return self.controls[:, 4]

    @property
    def run_lengths(self) -> Tensor:
        """Number of kept tokens of each image between its root and the next token to generate, [B, 1]."""
        return self.controls[:, 5:6]
