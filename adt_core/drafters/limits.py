"""Which candidates of a growing tree may be used, and which of them get children."""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Tensor

from ..policies import Context
from ..policies.fixed import STATIC_TREES
from ..rules.tree import CandidatePool
from .base import Shapes


class Limits:
    """The shape of each image's tree, and confidence pruning."""

    def __init__(self, shapes: Shapes, context: Context):
        self._shapes = shapes
        self._context = context
        self._keep = _log(context.settings.keep_above)
        self._expand = _log(context.settings.expand_above)

    def candidates(self, scores: Tensor, level: int) -> Tensor:
        """scores [B, m, k] of one level, with -inf where a candidate may not be used."""
        if not self._shapes.alike:
            rank = torch.arange(scores.shape[-1], device=scores.device)
            beyond = (rank >= self._shapes.widths[..., None]) | (level > self._shapes.lengths[..., None])
            scores = scores.masked_fill(beyond, -math.inf)
        return scores if self._keep == -math.inf else scores.masked_fill(scores < self._keep, -math.inf)

    def end(self, scores: Tensor) -> bool:
        """Do all chains end with the candidates that have these scores?"""
        can_end = self._keep > -math.inf or self._expand > -math.inf
        return can_end and self._context.size(lambda: scores > self._expand, 1) == 0

    def beam(self, scores: Tensor, level: int, pool: CandidatePool) -> tuple[Tensor, Tensor]:
        """The candidates of a level, flattened to [B, n], that get children: their scores and indices, [B, m] each.

        What can no longer change the tree may be left out: its children would all be below the last node that is kept.
        """
        best, beam = scores.topk(min(self._shapes.width, scores.shape[1]), 1)
        if not self._shapes.alike:
            rank = torch.arange(best.shape[1], device=scores.device)
            best = best.masked_fill(rank >= self._shapes.widths, -math.inf)
        if self._expand > -math.inf:
            best = best.masked_fill(best < self._expand, -math.inf)
        nodes = self._shapes.nodes
        count = self._context.size(lambda: (best > pool.threshold(nodes)).sum(1), best.shape[1])
        return best[:, :count], beam[:, :count]


class PublishedTree(Limits):
    """A published tree: the places of its nodes are known beforehand, and nothing is pruned."""

    def __init__(self, shapes: Shapes, context: Context):
        super().__init__(shapes, context)
        self._levels = _levels(shapes.tree, context.target.decoder.embedding.device)

    def candidates(self, scores: Tensor, level: int) -> Tensor:
        absent, _ = self._levels[level - 1]
        return scores.masked_fill(absent | (level > self._shapes.lengths[..., None]), -math.inf)

    def beam(self, scores: Tensor, level: int, pool: CandidatePool) -> tuple[Tensor, Tensor]:
        _, parents = self._levels[level - 1]
        return scores[:, parents], parents.expand(len(scores), -1)


def _log(probability: float) -> float:
    return math.log(probability) if probability > 0 else -math.inf


@cache
def _levels(name: str, device: torch.device) -> list[tuple[Tensor, Tensor]]:
    """For each level, whose m parents get k candidates each: [m, k] bool, which of these are no nodes; and the
    flattened indices of those that get children."""
    levels, parents = [], [""]
    children = STATIC_TREES[name]
    width = children[""]
    while parents:
        absent = [[rank >= children[parent] for rank in range(width)] for parent in parents]
        places = [parent + str(rank) for parent in parents for rank in range(width)]
        parents = [place for place in places if place in children]
        indices = [places.index(place) for place in parents]
        levels.append((torch.tensor(absent, device=device), torch.tensor(indices, device=device)))
    return levels
