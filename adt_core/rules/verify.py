"""Acceptance: which drafts of a tree are accepted, exactly or relaxed (LANTERN).

The target has processed all nodes of a tree in one forward pass. So for each node, the token y that follows the node is
known: y = argmax(z + g), where z are the processed logits and g is the noise (see :mod:`.sampling`). A draft is
compared with the y of its parent. There are two rules:

- Exact acceptance: a draft is accepted if it equals y.
- Relaxed acceptance, LANTERN (arXiv 2410.03355) or LANTERN++ (arXiv 2502.06352): drafts that look similar to y are
  accepted too. A(x) is a set of nearest codebook neighbours of a draft x. The total probability of this set is limited:
  by `delta` (LANTERN) or by (factor - 1) * p(x) (LANTERN++), where p(v) is the probability of token v at the position
  of x. If neither x nor a sibling of x equals y, and y is in A(x), then x is accepted as a substitute for y.

At temperature 0, relaxed acceptance uses the rule of section 4 of the LANTERN paper instead. s(x) is p(x) plus the
probabilities of the nearest neighbours of x, as many as the same limit allows. x is a substitute if s(x) exceeds p(v)
for every token v.

At most one substitute among siblings is accepted: the one nearest to y, or at temperature 0 the one with the largest s.

Accepted drafts form a path from the root. The token after this path is the y of the last node of the path.

Dimensions: B images, N drafts per image (N + 1 nodes with the root), D maximum depth, V tokens, k neighbours, C numbers
per codebook vector.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from ..settings import Lantern
from .tree import DraftTree

_ROWS_AT_ONCE = 1024  # rows of the distance matrix [V, V] that are computed in one step


@dataclass
class Acceptance:
    """Accepted paths of a batch of trees.

    Attributes:
        accepted: [B, 1], number of accepted drafts.
        nodes: [B, D + 2], indices of the nodes on the path, beginning with the root. Entries after index `accepted` are
            indices of arbitrary nodes.
        last: [B, 1], index of the path's last node, 0 (the root) if no draft is accepted.
        next_root: [B, 1], token y of the path's last node. It is the root of the image's next tree.
    """

    accepted: Tensor
    nodes: Tensor
    last: Tensor
    next_root: Tensor

    @cached_property
    def path(self) -> Tensor:
        """Indices of the nodes on the path, beginning with the root, [B, D + 1]."""
        return self.nodes[:, :-1]

    @cached_property
    def drafts(self) -> Tensor:
        """Indices of the nodes on the path after the root, [B, D + 1]. At least the last one is an arbitrary node."""
        return self.nodes[:, 1:]

    def cut(self, drafts: int) -> Acceptance:
        """Return a copy whose `path` has entries for only `drafts` drafts. No image may have more accepted drafts."""
        return replace(self, nodes=self.nodes[:, : drafts + 2])

    def is_scattered(self) -> Tensor:
        """Return whether each image's path skips nodes, bool [B, 1]: 0, 1, 3 skips node 2."""
        # The path is in ascending order. So it skips no node if the last node has the number `accepted`.
        return self.last != self.accepted


def exact_agreement(tree: DraftTree, emitted: Tensor) -> Tensor:
    """Return which nodes agree, bool [B, N + 1]: the root, and nodes that equal the y of their parent.

    y does not depend on the tree. So every tree gives the same image as decoding without drafts.

    Args:
        emitted: [B, N + 1], token y of each node.
    """
    agrees = (tree.tokens == emitted.gather(1, tree.parents)) & tree.valid
    agrees[:, :1].fill_(True)
    return agrees


def longest_path(tree: DraftTree, agrees: Tensor, emitted: Tensor) -> Acceptance:
    """Return the longest path from the root on which all nodes agree. The host does not wait for the device.

    Args:
        agrees: [B, N + 1] bool, whether each node agrees with the y of its parent.
        emitted: [B, N + 1], token y of each node.
    """
    # Example: a tree has the branches 0 -> 1 -> 3 and 0 -> 2. All nodes except 2 agree. depths * on_path is
    # [0, 1, 0, 2], so the last node of the path is 3. The lineage of node 3 (its ancestors and itself) is
    # [True, True, False, True]. `column` gives each node its column in the path: [0, 1, 3, 2]. Node 2 is not on the
    # path and gets the spare column 3. The path is [0, 1, 3].
    on_path = (tree.ancestors <= agrees[:, None]).all(2)  # all ancestors of the node agree, and the node itself
    accepted, last = (tree.depths * on_path).max(1, keepdim=True)
    lineage = tree.ancestors.gather(1, last[..., None].expand(-1, 1, tree.size))[:, 0]
    column = torch.where(lineage, tree.depths, tree.height + 1)  # nodes off the path go to a spare column
    nodes = torch.arange(tree.size, device=last.device).expand_as(column)
    path = nodes.new_zeros(nodes.shape[0], tree.height + 2).scatter_(1, column, nodes)
    return Acceptance(accepted, path, last, emitted.gather(1, last))


@dataclass
class Neighbours:
    """Nearest neighbours of each code in the codebook.

    Attributes:
        indices: [V, k], the k nearest other codes of each code, in ascending order of distance.
        distances: [V, k], Euclidean distance to each neighbour.
    """

    indices: Tensor
    distances: Tensor

    @classmethod
    def of(cls, codebook: Tensor, k: int) -> Neighbours:
        """Return the nearest neighbours of each code of a codebook.

        Args:
            codebook: [V, C], vectors of the codes.
            k: Number of neighbours, at most V - 1.
        """
        k = min(k, len(codebook) - 1)
        nearest = []
        for rows in torch.arange(len(codebook), device=codebook.device).split(_ROWS_AT_ONCE):
            distance = torch.cdist(codebook[rows].float(), codebook.float())
            distance.scatter_(1, rows[:, None], math.inf)  # a code is not its own neighbour
            nearest.append(distance.topk(k, 1, largest=False))
        return cls(torch.cat([n.indices for n in nearest]), torch.cat([n.values for n in nearest]))

    def padded(self, tokens: int) -> Neighbours:
        """Return a copy with `tokens` rows: further rows are for tokens that are not codes, such as the end of a row.

        All k neighbours of such a token are the token itself, at an infinite distance.
        """
        k = self.indices.shape[1]
        extra = torch.arange(len(self.indices), tokens, device=self.indices.device)[:, None].expand(-1, k)
        far = torch.full_like(extra, math.inf, dtype=self.distances.dtype)
        return Neighbours(torch.cat([self.indices, extra]), torch.cat([self.distances, far]))

    def to(self, device: torch.device) -> Neighbours:
        return Neighbours(self.indices.to(device), self.distances.to(device))


def relaxed_agreement(
    tree: DraftTree,
    emitted: Tensor,
    z: Tensor,
    neighbours: Neighbours,
    lantern: Lantern,
    *,
    greedy: bool,
    width: int,
    allowed: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return which nodes agree under relaxed acceptance.

    If a child of a node equals the node's y, only this child agrees. Otherwise, the best substitute among the node's
    children agrees. The docstring of this module describes substitutes.

    Args:
        emitted: [B, N + 1], token y of each node.
        z: [B, N + 1, V], processed logits after each node.
        greedy: Whether the temperature is 0.
        width: Maximum number of children of a node.
        allowed: [B], maximum number of substitutes on the path of each image. A substitute does not agree if the path
            from the root to it would have more.

    Returns:
        Two bool tensors [B, N + 1]: the nodes that agree, and which of these nodes are substitutes.
    """
    exact = exact_agreement(tree, emitted)
    draft = tree.valid & (torch.arange(tree.size, device=z.device) > 0)
    p = z.softmax(-1).gather(1, tree.parents[..., None].expand(-1, -1, z.shape[-1]))  # after each node's parent
    if greedy:
        passes, score = _greedy_substitutes(tree, p, neighbours, lantern)
    else:
        passes, score = _substitutes(tree, draft, emitted, p, neighbours, lantern, width)
    relaxed = _best_sibling(tree, passes & draft, score) & ~_has_sibling(tree, exact & draft)
    relaxed &= (tree.ancestors & relaxed[:, None]).sum(-1) <= allowed[:, None]
    return exact | relaxed, relaxed


def _greedy_substitutes(tree: DraftTree, p: Tensor, neighbours: Neighbours, lantern: Lantern) -> tuple[Tensor, Tensor]:
    """Return which nodes can be substitutes at temperature 0, and s of each node, [B, N + 1] each.

    `p` is [B, N + 1, V]: the probabilities after the parent of each node. The docstring of this module defines s.
    """
    own = p.gather(2, tree.tokens[..., None])
    mass = p.gather(2, neighbours.indices[tree.tokens])
    bound = torch.full_like(own, lantern.delta) if lantern.factor is None else (lantern.factor - 1) * own
    score = own[..., 0] + (mass * (mass.cumsum(-1) <= bound)).sum(-1)
    return score > p.amax(-1), score


def _substitutes(
    tree: DraftTree, draft: Tensor, emitted: Tensor, p: Tensor, neighbours: Neighbours, lantern: Lantern, width: int
) -> tuple[Tensor, Tensor]:
    """Return which nodes can be substitutes above temperature 0, and their scores, [B, N + 1] each.

    The score of a substitute is its negative distance to y. `p` is [B, N + 1, V]: the probabilities after the parent of
    each node.
    """
    near = neighbours.indices[tree.tokens]
    mass = p.gather(2, near)
    if lantern.factor is None:
        within = _within_delta(tree, draft, mass, near, lantern.delta, width, p.shape[-1])
    else:
        within = mass.cumsum(-1) <= (lantern.factor - 1) * p.gather(2, tree.tokens[..., None])
    is_sample = (near == emitted.gather(1, tree.parents)[..., None]) & within
    return is_sample.any(-1), -(is_sample * neighbours.distances[tree.tokens]).sum(-1)


def _within_delta(
    tree: DraftTree, draft: Tensor, mass: Tensor, near: Tensor, delta: float, width: int, vocabulary: int
) -> Tensor:
    """Return which neighbours of each draft x are in A(x) under LANTERN, bool [B, N + 1, k].

    The sets A of all siblings together have at most the total probability delta. Siblings add their nearest neighbours
    in the order of their ranks, until delta is used up. A code counts only once per group of siblings. The tokens of
    the siblings themselves do not count, because they are accepted exactly.

    Args:
        draft: [B, N + 1] bool, True for valid nodes except the root.
        mass: [B, N + 1, k], probability of each neighbour of each node.
        near: [B, N + 1, k], code of each neighbour.
        delta: Maximum total probability.
        width: Maximum number of children of a node.
    """
    # `claimed` has a flag for each pair (parent, code), at index parent * V + code. Example: delta = 0.1. Node 1 (rank
    # 0) has the neighbours a (probability 0.06) and b (0.05). Only a is in A(1), and 0.04 is left. The sibling node 2
    # (rank 1) has the neighbours a and c (0.03). Both are in A(2): a is claimed and does not count, and c fits in 0.04.
    batch, size, _ = mass.shape
    cell = tree.parents[..., None] * vocabulary + near
    claimed = torch.zeros(batch, size * vocabulary, dtype=torch.uint8, device=mass.device)
    claimed.scatter_reduce_(1, tree.parents * vocabulary + tree.tokens, draft.to(torch.uint8), "amax")
    left = torch.full((batch, size), delta, dtype=mass.dtype, device=mass.device)
    within = torch.zeros_like(near, dtype=torch.bool)
    children = tree.parents[:, None] == torch.arange(size, device=mass.device)[:, None]  # [B, parent, child]
    for rank in range(width):
        has_rank = (draft & (tree.ranks == rank))[..., None]
        price = mass * (claimed.gather(1, cell.flatten(1)).view_as(cell) == 0)
        affordable = (price.cumsum(-1) <= left.gather(1, tree.parents)[..., None]) & has_rank
        # A product instead of `scatter_add`, whose floating-point atomics are not deterministic on a GPU.
        left -= (children * (price * affordable).sum(-1)[:, None]).sum(-1)
        claimed.scatter_reduce_(1, cell.flatten(1), affordable.flatten(1).to(torch.uint8), "amax")
        within |= affordable
    return within


def _has_sibling(tree: DraftTree, nodes: Tensor) -> Tensor:
    """Return whether each node itself or one of its siblings is marked in `nodes`. Both are bool [B, N + 1]."""
    marks = nodes.to(torch.uint8)  # CUDA does not reduce bool
    of_parent = torch.zeros_like(marks).scatter_reduce_(1, tree.parents, marks, "amax")
    return of_parent.gather(1, tree.parents) > 0


def _best_sibling(tree: DraftTree, passes: Tensor, score: Tensor) -> Tensor:
    """Mark one child of each parent, bool [B, N + 1]: of those that pass, the first with the highest score.

    Args:
        passes: [B, N + 1] bool, nodes that can be marked.
        score: [B, N + 1], score of each node.
    """
    score = score.masked_fill(~passes, -math.inf)
    highest = torch.full_like(score, -math.inf).scatter_reduce_(1, tree.parents, score, "amax").gather(1, tree.parents)
    node = torch.arange(tree.size, device=score.device).expand_as(tree.parents)
    tied = torch.where(passes & (score == highest), node, tree.size)
    first = torch.full_like(node, tree.size).scatter_reduce_(1, tree.parents, tied, "amin").gather(1, tree.parents)
    return passes & (node == first)
