"""The images at work: their state, one slot for each image."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..drafters import Proposer
from ..models.cache import KVCache
from ..models.rows import BatchRows, Roots
from ..policies import Shape
from ..rules.noise import Noise
from .graphs import Graphs
from .request import COLUMNS, Request, Tables


@dataclass
class Slots:
    """State of the images at work, by slot.

    images: number of each slot's image. rows, cache: of the target. tables: what forwards look up. noise: None at
    temperature 0. roots: the last decided tokens. positions: theirs, on the host. graphs: captured rounds. proposer:
    what drafts; None for nothing. plan: what ``Request.plan`` says of these slots; None if their memory can't be used
    again. at_work: False for a slot whose image is finished, and which runs along.

    What is in the device's memory stays in its place.
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
    plan: Hashable = None

    def __post_init__(self) -> None:
        self.at_work: list[bool] = [True] * len(self)
        self.orders = torch.zeros(len(self), 5, dtype=torch.long, device=self.rows.device)
        self._orders: list[list[int]] = []

    @property
    def num_bytes(self) -> int:
        """Bytes of the device's memory that this takes, graphs included."""
        return self.request.state_bytes(len(self)) + self.graphs.num_bytes

    def __len__(self) -> int:
        return len(self.images)

    # ---- who is at work ---------------------------------------------------------------------

    def finished(self) -> list[int]:
        """Slots at work whose image is whole."""
        last = self.request.target.length - 1
        return [slot for slot, at in enumerate(self.positions) if at == last and self.at_work[slot]]

    def select(self, slots: list[int]) -> None:
        """Go on with these slots alone."""
        index = torch.tensor(slots, device=self.rows.device)
        self.cache.select(self.rows.of(index))
        self.rows = self.rows.select(index)
        if self.noise is not None:
            self.noise.select(index)
        self.roots = Roots(self.roots.codes[index], self.roots.at[index])
        self.images, self.positions = ([values[slot] for slot in slots] for values in (self.images, self.positions))
        self.at_work = [self.at_work[slot] for slot in slots]
        self.orders, self._orders, self.plan = self.orders[index], [], None
        if self.proposer is not None:
            self.proposer.select(index, self.rows)

    def retire(self, slots: list[int]) -> None:
        """The images of these slots are finished. The slots stay and run along: with fewer slots, rounds would have
        other sizes, and would have to be captured anew."""
        for slot in slots:
            self.at_work[slot] = False

    def stop_drafting(self) -> None:
        """Decode plainly from now on. The proposer is dropped, so nothing has to keep it up to date."""
        self.proposer = self.plan = None

    def admit(self, slots: list[int], others: Slots) -> None:
        """Put the images of ``others``, whose first token is drawn, in the place of those of ``slots``."""
        index = torch.tensor(slots, device=self.rows.device)
        self.rows.admit(index, others.rows)
        self.cache.admit(self.rows.of(index), others.cache)
        if self.noise is not None and others.noise is not None:
            self.noise.admit(index, others.noise)
        self.roots.codes.index_copy_(0, index, others.roots.codes)
        self.roots.at.index_copy_(0, index, others.roots.at)
        for slot, image, position in zip(slots, others.images, others.positions, strict=True):
            self.images[slot], self.positions[slot], self.at_work[slot] = image, position, True
        if self.proposer is not None:
            self.proposer.admit(index, others.proposer, self.rows)

    def restart(self, others: Slots) -> None:
        """Begin with the images of ``others``, which has the same plan, in the same memory."""
        self.request = others.request
        self.admit(list(range(len(self))), others)

    # ---- a round ----------------------------------------------------------------------------

    def order(self, shapes: Sequence[Shape], moves: Sequence[int], allowed: Sequence[int]) -> None:
        """Say what the host has decided, in one copy: shapes of the trees, steps of plain images, LANTERN's limits.

        It sets ``roots.columns``, too: how many columns of the cache a replayed round reads.
        """
        self.roots.columns = self._columns() if self.request.replayed else 0
        orders = [[*shape[:3], move, most] for shape, move, most in zip(shapes, moves, allowed, strict=True)]
        if orders != self._orders:
            words, on_gpu = torch.tensor(orders), self.orders.is_cuda
            self.orders.copy_(words.pin_memory() if on_gpu else words, non_blocking=on_gpu)
            self._orders = orders

    def prepare_noise(self) -> None:
        """Make noise for the next round; best while the device is at work on this one."""
        if self.noise is not None:
            self.noise.prepare(self.positions)

    def state(self) -> list[Tensor]:
        """What a round changes and the next one reads, but for KV caches."""
        return [self.roots.codes, self.roots.at, *(self.proposer.state() if self.proposer is not None else [])]

    def _columns(self) -> int:
        """How many columns of the KV cache a replayed round reads."""
        used = max(self.positions) + self.rows.cache_offset + self.request.uncommitted
        return min(COLUMNS << (-(-used // COLUMNS) - 1).bit_length(), len(self.rows.columns))

    @property
    def limits(self) -> Tensor:
        """Depth, width and nodes of every image's tree, [B, 3]."""
        return self.orders[:, :3]

    @property
    def moves(self) -> Tensor:
        """Steps of every image in a plain round, 0 or 1; in any round 0 for those that only run along. [B, 1]."""
        return self.orders[:, 3:4]

    @property
    def allowed(self) -> Tensor:
        """Substitutes that every image may still take, [B]."""
        return self.orders[:, 4]
