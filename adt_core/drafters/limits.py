"""Which candidates of a growing tree may be used, and which of them get children."""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Tensor

from ..policies import DraftSettings
from ..policies.fixed import STATIC_TREES
from ..rules.tree import CandidatePool
from .base import Shapes


class Limits:
    """The shape of each image's tree, and confidence pruning.

    A tree is cut where nothing can come of it, unless its size is fixed.
    """

    def __init__(self, shapes: Shapes, settings: DraftSettings):
        self._shapes = shapes
        above = settings.keep_above, settings.expand_above
        self._keep, self._expand = (math.log(p) if p > 0 else -math.inf for p in above)

    def candidates(self, scores: Tensor, level: int) -> Tensor:
        """scores [B, m, k] of one level, with -inf where a candidate may not be used."""
        if self._shapes.mixed:
            rank = torch.arange(scores.shape[-1], device=scores.device)
            beyond = (rank >= self._shapes.widths[..., None]) | (level > self._shapes.depths[..., None])
            scores = scores.masked_fill(beyond, -math.inf)
        return scores if self._keep == -math.inf else scores.masked_fill(scores < self._keep, -math.inf)

    def hopeless(self, scores: Tensor) -> bool:
        """Can drafting stop, because no chain of the batch goes on below ``scores``? False where sizes are fixed."""
        pruned = self._keep > -math.inf or self._expand > -math.inf or self._shapes.mixed
        return pruned and not self._shapes.fixed and not bool((scores > self._expand).any())

    def beam(self, scores: Tensor, level: int, pool: CandidatePool) -> tuple[Tensor, Tensor]:
        """The candidates of a level, flattened to [B, n], that get children: their scores and indices, [B, m] each."""
        best, beam = scores.topk(min(self._shapes.width, scores.shape[1]), 1)
        if self._shapes.mixed:
            rank = torch.arange(best.shape[1], device=scores.device)
            best = best.masked_fill(rank >= self._shapes.widths, -math.inf)
        if self._expand > -math.inf:
            best = best.masked_fill(best < self._expand, -math.inf)
        if self._shapes.fixed:
            return best, beam
        # Leave out what can no longer change the tree: its children would all be below the last one that is kept.
        nodes = self._shapes.nodes
        useful = best > (pool.nth_best(nodes) if pool.count >= nodes else -math.inf)
        count = int(useful.sum(1).max())
        return best[:, :count], beam[:, :count]


class PublishedTree(Limits):
    """A published tree: the places of its nodes are known beforehand, and nothing is pruned."""

    def __init__(self, shapes: Shapes, device: torch.device):
        super().__init__(shapes, DraftSettings())
        self._levels = _levels(shapes.tree, device)

    def candidates(self, scores: Tensor, level: int) -> Tensor:
        absent, _ = self._levels[level - 1]
        return scores.masked_fill(absent | (level > self._shapes.depths[..., None]), -math.inf)

    def beam(self, scores: Tensor, level: int, pool: CandidatePool) -> tuple[Tensor, Tensor]:
        _, parents = self._levels[level - 1]
        return scores[:, parents], parents.expand(len(scores), -1)


@cache
def _levels(name: str, device: torch.device) -> list[tuple[Tensor, Tensor]]:
    """Of each level, whose m parents get k candidates each: which are no nodes, [m, k], and which get children.

    The latter are numbered in flattened order.
    """
    found, parents, children = [], [""], STATIC_TREES[name]
    width = children[""]
    while parents:
        absent = [[rank >= children[parent] for rank in range(width)] for parent in parents]
        places = [parent + str(rank) for parent in parents for rank in range(width)]
        parents = [place for place in places if place in children]
        indices = [places.index(place) for place in parents]
        found.append((torch.tensor(absent, device=device), torch.tensor(indices, device=device)))
    return found
