"""The images that are decoded together: each has a lane, leaves it when it is finished, and another may enter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..drafters.base import Proposer
from ..models.cache import KVCache
from ..models.rows import Rows
from ..policies.auto import CostAware
from ..policies.shape import AdtTree, FixedShape


@dataclass
class Lanes:
    """State of the images at work, by lane.

    images: number of each lane's image. rows, cache: of the target, and read: its forward over them. noise: [B, T, V]; None at temperature 0.
    root: codes [B] of the last decided tokens, which the target has not read yet, and positions: where they are in the raster. proposer: None
    where nothing is drafted.
    """

    images: list[int]
    rows: Rows
    read: Callable[..., Tensor]
    cache: KVCache
    noise: Tensor | None
    root: Tensor
    positions: list[int]
    proposer: Proposer | None = None
    policies: list[FixedShape | AdtTree | CostAware] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.images)

    def keep(self, lanes: list[int]) -> None:
        """Go on with these lanes alone."""
        index = torch.tensor(lanes, device=self.root.device)
        numbers = self.rows.of(index, len(self))
        self.rows = self.rows.select(numbers)
        self.cache.keep(numbers)
        self.noise = None if self.noise is None else self.noise[index]
        self.root = self.root[index]
        self.images, self.positions, self.policies = (
            [values[lane] for lane in lanes] for values in (self.images, self.positions, self.policies)
        )
        if self.proposer is not None:
            self.proposer.keep(index, self.rows, self.noise)

    def admit(self, lanes: list[int], others: Lanes) -> None:
        """Put the images of ``others``, which have their first token, in the place of those of ``lanes``, one for each."""
        index = torch.tensor(lanes, device=self.root.device)
        numbers = self.rows.of(index, len(self))
        self.rows = self.rows.with_rows(numbers, others.rows)
        self.cache.admit(numbers, others.cache)
        if self.noise is not None:
            self.noise[index] = others.noise
        self.root[index] = others.root
        for mine, theirs in (
            (self.images, others.images),
            (self.positions, others.positions),
            (self.policies, others.policies),
        ):
            for lane, value in zip(lanes, theirs, strict=True):
                mine[lane] = value
        if self.proposer is not None:
            self.proposer.admit(index, others.proposer, self.rows)
