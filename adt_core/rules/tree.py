"""Draft trees: candidate pool, selection of the best nodes, and the tensors that verification needs.

Node 0 of a tree is the root: the last decided token of the image, which the target has not read yet. The other nodes
are up to N drafts. Parents come before their children. Siblings are in descending order of score. If an image
has fewer drafts than others in the batch, its tree is padded with nodes whose `valid` is False.

A code is an image token: an index into the codebook of the image tokenizer.

Dimensions: B images, N drafts per image, n nodes (root included). On one level of a tree, m parents have k children
each.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from .sampling import is_finite


@dataclass
class DraftTree:
    """Draft trees of a batch of images.

    Attributes:
        tokens: [B, N + 1], code of each node; `tokens[:, 0]` are the roots.
        parents: [B, N + 1], index of each node's parent. The root is its own parent.
        depths: [B, N + 1], 0 for the root and for padding.
        ranks: [B, N + 1], rank among siblings; 0 for the sibling that the drafter prefers.
        scores: [B, N + 1], log-probability of the path from the root to each node; 0 for the root.
        valid: [B, N + 1] bool, False for padding.
        ancestors: [B, N + 1, N + 1] bool. Entry [b, i, j] is True if node j is node i or an ancestor of node i.
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
        """Return the depth of each image's tree, [B, 1]."""
        return self.depths.amax(1, keepdim=True)

    def levels(self) -> Tensor:
        """Return the number of drafts on each level of each image's tree, [B, height + 1]; 0 on the root's level."""
        levels = self.depths.new_zeros(self.depths.shape[0], self.height + 1)
        return levels.scatter_add_(1, self.depths, self.depths.clamp_max(1))  # adds 0 for the root and padding


def ancestor_matrix(parents: Tensor, depth: int) -> Tensor:
    """Return a matrix that marks each node and its ancestors, as `DraftTree.ancestors`, [B, n, n] bool.

    The matrix starts with two marks in the row of each node: the node and its parent. Squaring the matrix doubles the
    number of generations that it covers: 1, 2, 4, ...

    Args:
        parents: [B, n], index of each node's parent. The root is its own parent.
        depth: Upper bound of all depths.
    """
    batch, n = parents.shape
    reach = torch.eye(n, device=parents.device).expand(batch, -1, -1).scatter(2, parents[..., None], 1.0)
    for _ in range(max(depth - 1, 0).bit_length()):
        reach = reach.bmm(reach).clamp_max_(1)
    return reach > 0


@cache
def _chain_shape(n: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Return parents [1, n], depths [1, n] and ancestors [1, n, n] of a chain of n nodes, root included."""
    depths = torch.arange(n, device=device)[None]
    return (depths - 1).clamp_min(0), depths, torch.ones(1, n, n, dtype=torch.bool, device=device).tril()


def chain(tokens: Tensor, scores: Tensor) -> DraftTree:
    """Return a tree without branches.

    Args:
        tokens: [B, n], code of each node, root first.
        scores: [B, n - 1], log-probability of the path from the root to each draft; -inf for padding.
    """
    batch, n = tokens.shape
    parents, depths, ancestors = (part.expand(batch, *part.shape[1:]) for part in _chain_shape(n, tokens.device))
    scores = F.pad(scores, (1, 0))
    valid = is_finite(scores)
    return DraftTree(tokens, parents, depths * valid, torch.zeros_like(tokens), scores, valid, ancestors, n - 1)


class CandidatePool:
    """Candidates for the nodes of growing trees, and selection of the best candidates.

    The selection follows EAGLE-2 (arXiv 2406.16858), section 4.2.

    The root has the number 0. Candidates have the numbers 1, 2, 3, ... in the order in which they are added. All
    parents have the same number k of children.

    Attributes:
        count: Number of candidates of each image.
    """

    def __init__(self) -> None:
        # For each level: tokens and scores [B, m * k], and the numbers of the m parents [B, m].
        self._levels: list[tuple[Tensor, Tensor, Tensor]] = []
        self._children = 0  # k
        self.count = 0

    def add(self, tokens: Tensor, scores: Tensor, parents: Tensor) -> int:
        """Add one level of candidates, and return the number of the first of them.

        Args:
            tokens: [B, m, k], codes of k children for each of m parents, in the order of the parents. k is the same
                on all levels.
            scores: [B, m, k], log-probability of the path from the root to each child; -inf for children that must not
                be used.
            parents: [B, m], number of each parent.
        """
        first = self.count + 1
        _, m, self._children = tokens.shape
        self._levels.append((tokens.flatten(1), scores.flatten(1), parents))
        self.count += m * self._children
        return first

    def threshold(self, drafts: int, budgets: Tensor | None = None) -> Tensor:
        """Return the lowest score that :meth:`rerank`, with these arguments, would keep for each image, [B, 1].

        The result is -inf for an image that has fewer candidates than it may keep.
        """
        # Example: an image has the scores [0.3, 0.5]. With drafts = 3, `best` is [0.5, 0.3, -inf], and the result is
        # -inf. With drafts = 3 and the budget 2, the result is 0.3.
        best = self._scores().topk(min(drafts, self.count), 1).values
        if best.shape[1] < drafts:
            best = F.pad(best, (0, drafts - best.shape[1]), value=-torch.inf)
        return best[:, -1:] if budgets is None else best.gather(1, (budgets - 1).clamp_min(0))

    def usable(self) -> Tensor:
        """Return the number of each image's candidates with a score above -inf, [B]."""
        return is_finite(self._scores()).sum(1)

    def _scores(self) -> Tensor:
        return torch.cat([scores for _, scores, _ in self._levels], 1)

    def rerank(self, root: Tensor, drafts: int, budgets: Tensor | None = None) -> DraftTree:
        """Return a tree of each image's best candidates. Of candidates with equal scores, the earlier one is kept.

        A child has a higher number than its parent, but no higher score. So the ancestors of a kept node are kept too.

        Args:
            root: [B], codes of the roots.
            drafts: Maximum number of candidates to keep for each image.
            budgets: [B, 1], maximum number of candidates of each image; None sets no limit other than `drafts`.
        """
        levels = len(self._levels)
        all_tokens, all_scores, all_parents = zip(*self._levels)
        tokens = torch.cat([root[:, None], *all_tokens], 1)
        scores = keep_best(torch.cat(all_scores, 1), budgets)
        order = scores.sort(dim=1, descending=True, stable=True).indices if drafts < self.count else None
        scores = F.pad(scores, (1, 0))  # with the root's score
        numbers = torch.arange(self.count + 1, device=root.device).expand(root.shape[0], -1)
        kept = numbers
        if order is not None:
            kept = F.pad(order[:, :drafts].sort(1).values + 1, (1, 0))
            tokens = tokens.gather(1, kept)
            scores = scores.gather(1, kept)
        # Example with k = 2: the root has the children 1 and 2, and candidate 2 has the children 3 and 4. So
        # `all_parents` is [0, 2]. The root and the candidates 1, 2 and 4 are kept. The columns of these candidates are
        # [0, 1, 3]. Their parents are all_parents[column // 2], so [0, 0, 2]. Their ranks are column % 2, so [0, 1, 1].
        columns = (kept - 1).clamp_min(0)  # the root gets parent and rank of candidate 1: both are 0
        parents = torch.cat(all_parents, 1).gather(1, columns // self._children)
        if order is not None:
            # The kept candidates 0, 1, 2 and 4 become nodes 0, 1, 2 and 3. So `node` is [0, 1, 2, 0, 3].
            node = torch.zeros_like(numbers).scatter_(1, kept, numbers[:, : drafts + 1])
            parents = node.gather(1, parents)
        valid = is_finite(scores)
        parents = parents * valid
        ancestors = ancestor_matrix(parents, levels)
        depths = (ancestors.sum(2) - 1) * valid
        return DraftTree(tokens, parents, depths, columns % self._children, scores, valid, ancestors, levels)


def keep_best(scores: Tensor, budgets: Tensor | None) -> Tensor:
    """Keep the best scores [B, n] of each image, and set all others to -inf. Of equal scores, the earlier one is kept.

    Args:
        budgets: [B, 1], number of scores to keep for each image; None keeps all.
    """
    if budgets is None:
        return scores
    # Example: the scores [0.3, 0.5, 0.4] have the order [1, 2, 0]. So their places are [2, 0, 1]: the score 0.3 is the
    # last one. With a budget of 2, the score 0.3 is set to -inf.
    order = scores.sort(dim=1, descending=True, stable=True).indices
    indices = torch.arange(scores.shape[1], device=scores.device).expand_as(order)
    places = torch.empty_like(order).scatter_(1, order, indices)
    return scores.masked_fill(places >= budgets, -torch.inf)
