"""Draft trees: candidate scores, rerank to the verification budget, parents, depths, ancestor mask.

A tree has a root (node 0, an emitted token whose keys and values are not cached yet) and up to N drafts.
Nodes are numbered so that parents come before children and siblings stand in descending score.
Everything is batch-first over images; a tree with fewer drafts than its neighbours is padded with
nodes whose ``valid`` is False.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class DraftTree:
    """tokens, parents, depths, ranks, scores, valid: [B, N + 1]; ancestors: [B, N + 1, N + 1] bool.

    ``tokens[:, 0]`` is the root's code. ``ancestors[b, i, j]``: j is i or an ancestor of i. ``ranks`` counts
    siblings from 0 (the drafter's favourite). ``scores`` are cumulative log-probabilities.
    """

    tokens: Tensor
    parents: Tensor
    depths: Tensor
    ranks: Tensor
    scores: Tensor
    valid: Tensor
    ancestors: Tensor

    @property
    def size(self) -> int:
        """Nodes, root and padding included."""
        return self.tokens.shape[1]

    def realised_depth(self) -> Tensor:
        """Depth of each image's tree, [B]."""
        return (self.depths * self.valid).amax(1)


def ancestor_matrix(parents: Tensor, depth: int) -> Tensor:
    """parents [B, n], root pointing at itself -> bool [B, n, n]; ``depth`` bounds the longest path."""
    batch, n = parents.shape
    ancestors = torch.eye(n, dtype=torch.bool, device=parents.device).repeat(batch, 1, 1)
    pointer = parents
    for _ in range(depth):
        ancestors.scatter_(2, pointer[..., None], True)
        pointer = parents.gather(1, pointer)
    return ancestors


class CandidatePool:
    """Candidates of all levels, and the choice of the N best (EAGLE-2, arXiv 2406.16858, section 4.2)."""

    def __init__(self) -> None:
        self._levels: list[tuple[Tensor, Tensor, Tensor, int]] = []
        self.count = 0

    def add(self, tokens: Tensor, scores: Tensor, parents: Tensor) -> Tensor:
        """Append one level: tokens and scores [B, m, k] (k children of each of m nodes), parents [B, m].

        ``parents`` holds what this method returned for the parents' level: pool numbers, [B, m * k], with 0
        for the root. Scores are cumulative; -inf marks a candidate that must not be used.
        """
        batch, m, k = tokens.shape
        numbers = torch.arange(self.count + 1, self.count + 1 + m * k, device=tokens.device).expand(batch, -1)
        self._levels.append((tokens.flatten(1), scores.flatten(1), parents.repeat_interleave(k, 1), k))
        self.count += m * k
        return numbers

    def nth_best(self, n: int) -> Tensor:
        """Score of each image's n-th best candidate so far, [B]; -inf while there are fewer."""
        scores = torch.cat([level[1] for level in self._levels], 1)
        if scores.shape[1] < n:
            return scores.new_full((len(scores),), -math.inf)
        return scores.topk(n, 1).values[:, -1]

    def rerank(self, root: Tensor, nodes: int) -> DraftTree:
        """Keep the ``nodes`` best candidates of each image (ties to the earlier one). root: codes [B].

        A child never scores above its parent and stands behind it, so the kept set is ancestor-closed.
        """
        tokens, scores, parents = (torch.cat([level[i] for level in self._levels], 1) for i in range(3))
        nodes = min(nodes, self.count)
        if scores.device.type == "cpu":  # no synchronisation to fear: verify live candidates only
            nodes = min(nodes, int(scores.isfinite().sum(1).max()))
        kept = scores.sort(dim=1, descending=True, stable=True).indices[:, :nodes].sort(1).values
        batch = len(root)
        number = torch.zeros(batch, self.count + 1, dtype=torch.long, device=root.device)  # pool number -> node
        number.scatter_(1, kept + 1, torch.arange(1, nodes + 1, device=root.device).expand(batch, -1))
        per_level = [(torch.full((len(level[0][0]),), i + 1), torch.arange(len(level[0][0])) % level[3]) for i, level in enumerate(self._levels)]
        depth, rank = (torch.cat(parts).to(root.device) for parts in zip(*per_level))

        def with_root(values: Tensor, at_root: Tensor) -> Tensor:
            return torch.cat([at_root[:, None], values], 1)

        zero = torch.zeros_like(root)
        kept_scores = scores.gather(1, kept)
        valid = with_root(kept_scores.isfinite(), torch.ones_like(root, dtype=torch.bool))
        parent_nodes = number.gather(1, parents.gather(1, kept)) * valid[:, 1:]
        all_parents = with_root(parent_nodes, zero)
        return DraftTree(
            tokens=with_root(tokens.gather(1, kept), root),
            parents=all_parents,
            depths=with_root(depth[kept], zero) * valid,
            ranks=with_root(rank[kept], zero),
            scores=with_root(kept_scores, zero.to(kept_scores)),
            valid=valid,
            ancestors=ancestor_matrix(all_parents, len(self._levels)),
        )
