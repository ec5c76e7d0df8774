"""Draft trees: candidate pool, selection of the best nodes, and the tensors that verification needs.

A tree has a root (node 0: a decided token whose keys and values are not cached yet) and up to N drafts. Parents come
before their children, and siblings are in descending order of score. If an image's tree has fewer drafts than others,
it is padded with nodes whose `valid` is False.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass
class DraftTree:
    """Draft trees of a batch of images.

    Attributes:
        tokens: [B, N + 1], code of each node; `tokens[:, 0]` are the roots.
        parents: [B, N + 1], index of each node's parent; the root's is itself.
        depths: [B, N + 1], 0 for the root.
        ranks: [B, N + 1], rank among siblings, 0 for the drafter's favourite.
        scores: [B, N + 1], cumulative log-probabilities.
        valid: [B, N + 1] bool, False for padding.
        ancestors: [B, N + 1, N + 1] bool, whether node j is node i or an ancestor of it, at [b, i, j].
        height: Upper bound of all depths.
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
        """Number of nodes, root and padding included."""
        return self.tokens.shape[1]

    def realised_depth(self) -> Tensor:
        """Return the depth of each image's tree, [B]."""
        return (self.depths * self.valid).amax(1)

    def levels(self) -> Tensor:
        """Return the number of drafts on each level of each image's tree, [B, height + 1]; 0 on the root's level."""
        levels = torch.zeros(len(self.depths), self.height + 1, dtype=torch.long, device=self.depths.device)
        levels.scatter_add_(1, self.depths * self.valid, self.valid.long())
        levels[:, 0] = 0  # the root and padding are not drafts
        return levels


def ancestor_matrix(parents: Tensor, depth: int) -> Tensor:
    """Return which nodes are ancestors of which.

    Squaring the relation "self or parent" doubles the number of generations that it covers.

    Args:
        parents: [B, n], index of each node's parent; the root's is itself.
        depth: Upper bound of the longest path.

    Returns:
        [B, n, n] bool, whether node j is node i or an ancestor of it, at [b, i, j].
    """
    batch, n = parents.shape
    reach = torch.eye(n, device=parents.device).repeat(batch, 1, 1).scatter_(2, parents[..., None], 1.0)
    for _ in range(max(depth - 1, 0).bit_length()):
        reach = (reach @ reach).clamp_max_(1)
    return reach > 0


@cache
def _arange(n: int, device: torch.device) -> Tensor:
    return torch.arange(n, device=device)


def _depths_and_ranks(sizes: list[tuple[int, int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return depth and sibling rank of all candidates.

    Args:
        sizes: For each level, its number of parents and the number of children of each.
        device: Device of the tensors.
    """
    # Example: [(1, 2), (2, 3)] has depths [1, 1, 2, 2, 2, 2, 2, 2] and ranks [0, 1, 0, 1, 2, 0, 1, 2]. The result is
    # not cached by sizes, because on a CPU every tree may have others, and the cache would grow without limit.
    depths = _arange(len(sizes) + 1, device)
    depth = [depths[level].expand(m * k) for level, (m, k) in enumerate(sizes, 1)]
    return torch.cat(depth), torch.cat([_arange(k, device).repeat(m) for m, k in sizes])


@cache
def _chain_shape(n: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Return parents and depths [1, n] and ancestors [1, n, n] of a chain of n nodes, root included."""
    depths = torch.arange(n, device=device)[None]
    return (depths - 1).clamp_min(0), depths, torch.ones(1, n, n, dtype=torch.bool, device=device).tril()


def chain(tokens: Tensor, scores: Tensor) -> DraftTree:
    """Return a tree without branches.

    Args:
        tokens: [B, n] codes, root first.
        scores: [B, n - 1], cumulative log-probabilities of the drafts; -inf for padding.
    """
    batch, n = tokens.shape
    parents, depths, ancestors = (part.expand(batch, *part.shape[1:]) for part in _chain_shape(n, tokens.device))
    valid = F.pad(scores.isfinite(), (1, 0), value=True)
    ranks = torch.zeros_like(tokens)
    return DraftTree(tokens, parents, depths * valid, ranks, F.pad(scores, (1, 0)), valid, ancestors, n - 1)


class CandidatePool:
    """Candidates of growing trees, and the selection of the best of them (EAGLE-2, arXiv 2406.16858, section 4.2).

    Candidates are numbered from 1 in the order in which they are added; 0 is the root.
    """

    def __init__(self) -> None:
        self._levels: list[tuple[Tensor, Tensor, Tensor]] = []  # tokens, scores and parents
        self._sizes: list[tuple[int, int]] = []
        self.count = 0

    def add(self, tokens: Tensor, scores: Tensor, parents: Tensor) -> int:
        """Add one level of candidates.

        Args:
            tokens: [B, m, k], codes of k children for each of m parents.
            scores: [B, m, k], their cumulative log-probabilities; -inf for candidates that must not be used.
            parents: [B, m], numbers of the parents.

        Returns:
            Number of the level's first candidate; the others follow in flattened order.
        """
        _, m, k = tokens.shape
        parents = parents[..., None].expand(-1, -1, k)
        self._levels.append((tokens.flatten(1), scores.flatten(1), parents.flatten(1)))
        self._sizes.append((m, k))
        self.count += m * k
        return self.count - m * k + 1

    def threshold(self, nodes: int, budgets: Tensor | None = None) -> Tensor:
        """Return the score of the last candidate that each image would keep now, [B, 1]; -inf if it would keep all.

        Args:
            nodes: Maximum number of candidates to keep.
            budgets: [B, 1], number of candidates to keep of each image, if some keep fewer.
        """
        # Example: scores [0.3, 0.5] and nodes 3 have the best scores [0.5, 0.3, -inf, -inf]; the third is -inf.
        best = self._scores().topk(min(nodes, self.count), 1).values
        best = F.pad(best, (0, nodes - best.shape[1]), value=-torch.inf)
        return best[:, -1:] if budgets is None else best.gather(1, (budgets - 1).clamp_min(0))

    def usable(self) -> Tensor:
        """Return the number of usable candidates of each image, [B]."""
        return self._scores().isfinite().sum(1)

    def _scores(self) -> Tensor:
        return torch.cat([scores for _, scores, _ in self._levels], 1)

    def rerank(self, root: Tensor, nodes: int, budgets: Tensor | None = None) -> DraftTree:
        """Return the tree of each image's best candidates; ties go to the earlier one.

        A child never has a higher score than its parent and comes after it, so all ancestors of a kept node are kept.

        Args:
            root: [B], codes of the roots.
            nodes: Number of candidates to keep.
            budgets: [B, 1], number of candidates to keep of each image, if some keep fewer.
        """
        tokens, scores, parents = (torch.cat(parts, 1) for parts in zip(*self._levels))
        depth, rank = _depths_and_ranks(self._sizes, root.device)
        scores = keep_best(scores, budgets)
        nodes = min(nodes, self.count)
        if nodes < self.count:
            # Example: the kept candidates 0, 2 and 3 (numbers 1, 3 and 4) become nodes 1, 2 and 3, so `node` maps the
            # numbers 0 to 4 to [0, 1, 0, 2, 3]. The parent number 3 becomes node 2.
            kept = scores.sort(dim=1, descending=True, stable=True).indices[:, :nodes].sort(1).values
            node = torch.zeros(len(root), self.count + 1, dtype=torch.long, device=root.device)
            node.scatter_(1, kept + 1, torch.arange(1, nodes + 1, device=root.device).expand(len(root), -1))
            tokens = tokens.gather(1, kept)
            scores = scores.gather(1, kept)
            parents = node.gather(1, parents.gather(1, kept))
            depth = depth[kept]
            rank = rank[kept]
        else:
            depth = depth.expand_as(tokens)
            rank = rank.expand_as(tokens)
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


def keep_best(scores: Tensor, budgets: Tensor | None) -> Tensor:
    """Set all but each image's best scores to -inf; ties go to the earlier one.

    Args:
        scores: [B, n].
        budgets: [B, 1], number of scores to keep of each image; None keeps all.

    Returns:
        [B, n].
    """
    if budgets is None:
        return scores
    # Example: scores [0.3, 0.5, 0.4] have the order [1, 2, 0], so their places are [2, 0, 1].
    order = scores.sort(dim=1, descending=True, stable=True).indices
    indices = torch.arange(scores.shape[1], device=scores.device).expand_as(order)
    places = torch.empty_like(order).scatter_(1, order, indices)
    return scores.masked_fill(places >= budgets, -torch.inf)
