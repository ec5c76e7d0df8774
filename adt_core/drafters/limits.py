"""Which candidates of a growing tree may be used."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..policies.table import Proposals
from ..rules.tree import CandidatePool
from .base import Shapes


class Limits:
    """The shape of each image's tree, and confidence pruning.

    On a CPU a tree is cut where nothing can come of it. On a GPU that would have to wait for the device.
    """

    def __init__(self, shapes: Shapes, proposals: Proposals, device: torch.device):
        self._shapes = shapes
        self._keep, self._expand = (
            math.log(p) if p > 0 else -math.inf for p in (proposals.keep_above, proposals.expand_above)
        )
        self._on_cpu = device.type == "cpu"

    def candidates(self, scores: Tensor, level: int) -> Tensor:
        """scores [B, m, k] of one level, with -inf where a candidate may not be used."""
        if self._shapes.mixed:
            rank = torch.arange(scores.shape[-1], device=scores.device)
            beyond = (rank >= self._shapes.widths[..., None]) | (level > self._shapes.depths[..., None])
            scores = scores.masked_fill(beyond, -math.inf)
        return scores if self._keep == -math.inf else scores.masked_fill(scores < self._keep, -math.inf)

    def hopeless(self, scores: Tensor) -> bool:
        """Can drafting stop, because no chain of the batch goes on below ``scores``? Always False on a GPU."""
        pruned = self._keep > -math.inf or self._expand > -math.inf or self._shapes.mixed
        return self._on_cpu and pruned and not bool((scores > self._expand).any())

    def beam(self, scores: Tensor, pool: CandidatePool) -> tuple[Tensor, Tensor]:
        """The candidates of a level, flattened to [B, n], that get children: their scores and indices, [B, m] each."""
        best, beam = scores.topk(min(self._shapes.width, scores.shape[1]), 1)
        if self._shapes.mixed:
            rank = torch.arange(best.shape[1], device=scores.device)
            best = best.masked_fill(rank >= self._shapes.widths, -math.inf)
        if self._expand > -math.inf:
            best = best.masked_fill(best < self._expand, -math.inf)
        if not self._on_cpu:
            return best, beam
        # Leave out what can no longer change the tree: its children would all be below the last one that is kept.
        nodes = self._shapes.nodes
        useful = best > (pool.nth_best(nodes) if pool.count >= nodes else -math.inf)
        count = int(useful.sum(1).max())
        return best[:, :count], beam[:, :count]
