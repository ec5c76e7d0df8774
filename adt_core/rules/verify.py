"""Acceptance: which drafts of a tree are accepted, exactly or relaxed (LANTERN).

The token that the target emits after each node is known, `y = argmax(z + g)`, so both rules are comparisons.

- Exact acceptance: a draft is accepted if it equals y.
- LANTERN (arXiv 2410.03355) and LANTERN++ (arXiv 2502.06352) also accept drafts that look similar: if no draft equals
  y, a draft x is accepted as a substitute for y if y is in A(x), the nearest codebook neighbours of x within a limit on
  their total probability.

The token after the accepted path is always the y of its last node.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .settings import Lantern
from .tree import DraftTree

_ROWS_AT_ONCE = 1024  # of the matrix of distances between codes


@dataclass
class Acceptance:
    """Accepted paths of a batch of trees.

    Attributes:
        accepted: [B], number of accepted drafts.
        path: [B, D + 1], nodes of the path from the root on; entries after `accepted` are arbitrary.
        last: [B], last node of the path; 0, the root, if no draft is accepted.
        next_root: [B], code that the target emits after the path.
    """

    accepted: Tensor
    path: Tensor
    last: Tensor
    next_root: Tensor

    def cut(self, drafts: int) -> Acceptance:
        """Return the acceptance with paths of at most this many drafts, which must not be less than `accepted`."""
        return replace(self, path=self.path[:, : drafts + 1])

    def is_scattered(self) -> Tensor:
        """Return whether each image's path is not 0, 1, 2, ..., bool [B]."""
        steps = torch.arange(self.path.shape[1], device=self.path.device)
        return ((self.path != steps) & (steps <= self.accepted[:, None])).any(1)


def exact_agreement(tree: DraftTree, emitted: Tensor) -> Tensor:
    """Return which nodes have the token that the target emits after their parent; the root always agrees.

    The result does not depend on how the tree was made, so any tree is lossless.

    Args:
        tree: The trees.
        emitted: [B, N + 1], code that the target emits after each node, `argmax(z + g)`.

    Returns:
        [B, N + 1] bool.
    """
    agrees = (tree.tokens == emitted.gather(1, tree.parents)) & tree.valid
    agrees[:, 0] = True
    return agrees


def longest_path(tree: DraftTree, agrees: Tensor, emitted: Tensor) -> Acceptance:
    """Return the longest path of nodes that agree, without waiting for the device.

    Args:
        tree: The trees.
        agrees: [B, N + 1] bool.
        emitted: [B, N + 1], code that the target emits after each node.
    """
    # Example: nodes 0 -> 1 -> 3 and 0 -> 2, all but node 2 agree. depths * on_path = [0, 1, 0, 2], so the last node is
    # 3. Its lineage is [True, True, False, True], so `column` is [0, 1, 3, 2] with the spare column 3, and the path is
    # [0, 1, 3].
    on_path = ~(tree.ancestors & ~agrees[:, None, :]).any(-1)
    accepted, last = (tree.depths * on_path).max(1)
    lineage = tree.ancestors[torch.arange(len(last), device=last.device), last]
    column = torch.where(lineage, tree.depths, tree.height + 1)  # nodes off the path go to a spare column
    path = torch.zeros(len(last), tree.height + 2, dtype=torch.long, device=last.device)
    path.scatter_(1, column, torch.arange(tree.size, device=last.device).expand_as(column))
    return Acceptance(accepted, path[:, : tree.height + 1], last, emitted.gather(1, last[:, None])[:, 0])


@dataclass
class Neighbours:
    """Nearest neighbours of each code in the codebook.

    Attributes:
        indices: [V, k], the nearest other codes, nearest first.
        distances: [V, k], their distances in the codebook's space.
    """

    indices: Tensor
    distances: Tensor

    @classmethod
    def of(cls, codebook: Tensor, k: int) -> Neighbours:
        """Return the neighbours within a codebook.

        Args:
            codebook: [V, C], vectors of the codes.
            k: Number of neighbours, cut to V - 1.
        """
        k = min(k, len(codebook) - 1)
        nearest = []
        for rows in torch.arange(len(codebook), device=codebook.device).split(_ROWS_AT_ONCE):
            distance = torch.cdist(codebook[rows].float(), codebook.float())
            distance.scatter_(1, rows[:, None], math.inf)  # a code is not its own neighbour
            nearest.append(distance.topk(k, 1, largest=False))
        return cls(torch.cat([n.indices for n in nearest]), torch.cat([n.values for n in nearest]))

    def padded(self, tokens: int) -> Neighbours:
        """Add rows for tokens that are not codes: each is its own neighbour at an infinite distance."""
        k = self.indices.shape[1]
        extra = torch.arange(len(self.indices), tokens, device=self.indices.device)[:, None].expand(-1, k)
        far = torch.full_like(extra, math.inf, dtype=self.distances.dtype)
        return Neighbours(torch.cat([self.indices, extra]), torch.cat([self.distances, far]))

    def to(self, device: torch.device) -> Neighbours:
        """Return the neighbours on a device."""
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
    """Return which nodes agree under LANTERN.

    An exact match has priority over substitutes, and the substitute nearest to y over others. At temperature 0 the only
    possible sample is y, so the rule of LANTERN's section 4 is used: x agrees if p(x) plus its neighbours' probability
    within the limit exceeds every p(v), and the substitute with the highest sum has priority.

    Args:
        tree: The trees.
        emitted: [B, N + 1], code that the target emits after each node.
        z: [B, N + 1, V], processed logits after each node.
        neighbours: Nearest neighbours of each token.
        lantern: Settings.
        greedy: Whether the temperature is 0.
        width: Maximum number of children of a node.
        allowed: [B], number of substitutes that each image may still have; paths with more do not agree.

    Returns:
        Nodes that agree, and those that agree as substitutes, bool [B, N + 1] each.
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
    """Return which nodes pass at temperature 0, and their priority, [B, N + 1] each."""
    own = p.gather(2, tree.tokens[..., None])
    mass = p.gather(2, neighbours.indices[tree.tokens])
    bound = torch.full_like(own, lantern.delta) if lantern.factor is None else (lantern.factor - 1) * own
    score = own[..., 0] + (mass * (mass.cumsum(-1) <= bound)).sum(-1)
    return score > p.amax(-1), score


def _substitutes(
    tree: DraftTree,
    draft: Tensor,
    emitted: Tensor,
    p: Tensor,
    neighbours: Neighbours,
    lantern: Lantern,
    width: int,
) -> tuple[Tensor, Tensor]:
    """Return which nodes pass above temperature 0, and their priority, [B, N + 1] each."""
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
    """Return which neighbours are in A(x) by LANTERN: the union of the siblings' A has at most the probability delta.

    Siblings claim their neighbours in the order of their ranks. Codes that are already claimed cost nothing, nor do the
    siblings' own tokens, which are accepted exactly.

    Args:
        tree: The trees.
        draft: [B, N + 1] bool, valid nodes except the root.
        mass: [B, N + 1, k], probability of each neighbour of each node.
        near: [B, N + 1, k], the neighbours.
        delta: Limit.
        width: Maximum number of children of a node.
        vocabulary: Number of tokens V.

    Returns:
        [B, N + 1, k] bool.
    """
    # `claimed` has a flag for each pair (parent, code). Example: delta is 0.1, and node 1 (rank 0) has the neighbours a
    # (0.06) and b (0.05): a is claimed, and 0.04 is left. Its sibling, node 2 (rank 1), has the neighbours a (now free)
    # and c (0.03): both are in A.
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
        # A product, because floating-point atomics are not deterministic on a GPU.
        left -= (children * (price * affordable).sum(-1)[:, None]).sum(-1)
        claimed.scatter_reduce_(1, cell.flatten(1), affordable.flatten(1).to(torch.uint8), "amax")
        within |= affordable
    return within


def _has_sibling(tree: DraftTree, nodes: Tensor) -> Tensor:
    """Return whether each node or one of its siblings is among `nodes`, both bool [B, N + 1]."""
    marks = nodes.to(torch.uint8)  # CUDA does not reduce bool
    of_parent = torch.zeros_like(marks).scatter_reduce_(1, tree.parents, marks, "amax")
    return of_parent.gather(1, tree.parents) > 0


def _best_sibling(tree: DraftTree, passes: Tensor, score: Tensor) -> Tensor:
    """Return, among the passing children of each parent, the one with the highest score; ties go to the first one.

    Args:
        tree: The trees.
        passes: [B, N + 1] bool.
        score: [B, N + 1].

    Returns:
        [B, N + 1] bool.
    """
    score = score.masked_fill(~passes, -math.inf)
    highest = torch.full_like(score, -math.inf).scatter_reduce_(1, tree.parents, score, "amax").gather(1, tree.parents)
    node = torch.arange(tree.size, device=score.device).expand_as(tree.parents)
    tied = torch.where(passes & (score == highest), node, tree.size)
    first = torch.full_like(node, tree.size).scatter_reduce_(1, tree.parents, tied, "amin").gather(1, tree.parents)
    return passes & (node == first)
