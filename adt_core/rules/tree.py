"""Draft trees: candidate scores, rerank to the verification budget, parents, depths, ancestor mask.

A tree has a root (node 0, an emitted token whose keys and values are not cached yet) and up to N drafts. Parents come
before their children, and siblings stand in descending score. An image's tree with fewer drafts than others is padded
with nodes whose ``valid`` is False.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass
class DraftTree:
    """tokens, parents, depths, ranks, scores, valid: [B, N + 1]; ancestors: [B, N + 1, N + 1] bool.

    ``tokens[:, 0]`` is the root's code. ``ancestors[b, i, j]``: j is i or an ancestor of i. ``ranks`` counts siblings
    from 0 (the drafter's favourite). ``scores`` are cumulative log-probabilities. ``height`` bounds all depths.
    """

    tokens: Tensor
    parents: Tensor
    depths: Tensor
    ranks: Tensor
    scores: Tensor
    valid: Tensor
    ancestors: Tensor
    height: int

    @property
    def size(self) -> int:
        """Nodes, root and padding included."""
        return self.tokens.shape[1]

    def realised_depth(self) -> Tensor:
        """Depth of each image's tree, [B]."""
        return (self.depths * self.valid).amax(1)

    def levels(self) -> Tensor:
        """Drafts on each level of each image's tree, [B, height + 1]; the root's own level has none."""
        levels = torch.zeros(len(self.depths), self.height + 1, dtype=torch.long, device=self.depths.device)
        levels.scatter_add_(1, self.depths * self.valid, self.valid.long())
        levels[:, 0] = 0  # the root and padding are no drafts
        return levels


def ancestor_matrix(parents: Tensor, depth: int) -> Tensor:
    """parents [B, n], root pointing at itself -> bool [B, n, n]; ``depth`` bounds the longest path.

    Squaring the relation "self or parent" reaches twice as far each time.
    """
    batch, n = parents.shape
    reach = torch.eye(n, device=parents.device).repeat(batch, 1, 1).scatter_(2, parents[..., None], 1.0)
    for _ in range(max(depth - 1, 0).bit_length()):
        reach = (reach @ reach).clamp_max_(1)
    return reach > 0


@cache
def _counting(n: int, device: torch.device) -> Tensor:
    return torch.arange(n, device=device)


def _depths_and_ranks(sizes: list[tuple[int, int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Depth and sibling rank of every candidate of levels with ``m`` parents and ``k`` children each.

    They are not remembered by these sizes: on a CPU every tree may have others, and all would stay for good.
    """
    depths = _counting(len(sizes) + 1, device)
    depth = [depths[level].expand(m * k) for level, (m, k) in enumerate(sizes, 1)]
    return torch.cat(depth), torch.cat([_counting(k, device).repeat(m) for m, k in sizes])


@cache
def _chain_shape(n: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Parents and depths [1, n] and ancestors [1, n, n] of a chain of n nodes, root included."""
    depths = torch.arange(n, device=device)[None]
    return (depths - 1).clamp_min(0), depths, torch.ones(1, n, n, dtype=torch.bool, device=device).tril()


def chain(tokens: Tensor, scores: Tensor) -> DraftTree:
    """The tree without branches: tokens [B, n], root first; cumulative scores [B, n - 1], -inf for padding."""
    batch, n = tokens.shape
    parents, depths, ancestors = (part.expand(batch, *part.shape[1:]) for part in _chain_shape(n, tokens.device))
    valid, ranks = F.pad(scores.isfinite(), (1, 0), value=True), torch.zeros_like(tokens)
    return DraftTree(tokens, parents, depths * valid, ranks, F.pad(scores, (1, 0)), valid, ancestors, n - 1)


class CandidatePool:
    """Candidates of all levels, and the choice of the N best (EAGLE-2, arXiv 2406.16858, section 4.2).

    Candidates are numbered from 1 in the order they come; 0 is the root.
    """

    def __init__(self) -> None:
        self._levels: list[tuple[Tensor, Tensor, Tensor]] = []  # tokens, scores and parents
        self._sizes: list[tuple[int, int]] = []
        self.count = 0

    def add(self, tokens: Tensor, scores: Tensor, parents: Tensor) -> int:
        """Append one level: tokens and scores [B, m, k], k children for each of the candidates ``parents`` [B, m].

        Scores are cumulative; -inf marks a candidate that must not be used. Returns the number of the level's first
        candidate; the others follow in flattened order.
        """
        _, m, k = tokens.shape
        parents = parents[..., None].expand(-1, -1, k)
        self._levels.append((tokens.flatten(1), scores.flatten(1), parents.flatten(1)))
        self._sizes.append((m, k))
        self.count += m * k
        return self.count - m * k + 1

    def threshold(self, n: int) -> Tensor | float:
        """Score of each image's n-th best candidate so far, [B, 1]; -inf while there are fewer."""
        return self._scores().topk(n, 1).values[:, -1:] if self.count >= n else -torch.inf

    def usable(self) -> Tensor:
        """Candidates of each image that may be used, [B]."""
        return self._scores().isfinite().sum(1)

    def _scores(self) -> Tensor:
        return torch.cat([scores for _, scores, _ in self._levels], 1)

    def rerank(self, root: Tensor, nodes: int, budgets: Tensor | None = None) -> DraftTree:
        """Keep the ``nodes`` best candidates of each image, ties to the earlier one.

        root: codes [B]. budgets: [B, 1], where images may keep fewer than ``nodes``. A child never scores above its
        parent and stands behind it, so the kept nodes have all their ancestors.
        """
        tokens, scores, parents = (torch.cat(parts, 1) for parts in zip(*self._levels))
        depth, rank = _depths_and_ranks(self._sizes, root.device)
        scores = best_only(scores, budgets)
        nodes = min(nodes, self.count)
        if nodes < self.count:
            kept = scores.sort(dim=1, descending=True, stable=True).indices[:, :nodes].sort(1).values
            node = torch.zeros(len(root), self.count + 1, dtype=torch.long, device=root.device)  # candidate -> node
            node.scatter_(1, kept + 1, torch.arange(1, nodes + 1, device=root.device).expand(len(root), -1))
            tokens, scores = tokens.gather(1, kept), scores.gather(1, kept)
            parents = node.gather(1, parents.gather(1, kept))
            depth, rank = depth[kept], rank[kept]
        else:
            depth, rank = depth.expand_as(tokens), rank.expand_as(tokens)
        valid = F.pad(scores.isfinite(), (1, 0), value=True)
        parents = F.pad(parents, (1, 0)) * valid
        return DraftTree(
            tokens=torch.cat([root[:, None], tokens], 1),
            parents=parents,
            depths=F.pad(depth, (1, 0)) * valid,
            ranks=F.pad(rank, (1, 0)),
            scores=F.pad(scores, (1, 0)),
            valid=valid,
            ancestors=ancestor_matrix(parents, len(self._sizes)),
            height=len(self._sizes),
        )


def best_only(scores: Tensor, budgets: Tensor | None) -> Tensor:
    """Scores [B, n] with -inf for all but each image's best ``budgets`` [B, 1], if given; ties to the earlier one."""
    if budgets is None:
        return scores
    order = scores.sort(dim=1, descending=True, stable=True).indices
    places = torch.arange(scores.shape[1], device=scores.device).expand_as(order)
    return scores.masked_fill(torch.empty_like(order).scatter_(1, order, places) >= budgets, -torch.inf)
