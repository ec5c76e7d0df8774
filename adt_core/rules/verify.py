"""Acceptance: which drafts of a tree pass, exactly or relaxed (LANTERN).

The token that the target emits after every node is known, ``y = argmax(z + g)``, so both rules are comparisons.

Exact: a draft passes if it is y. LANTERN (arXiv 2410.03355) and LANTERN++ (arXiv 2502.06352) also let a draft pass for
the codes that look like it: without an exact match, the draft x is taken in y's place if y is in A(x), the nearest
codebook neighbours of x as far as a bound on their probability reaches. What follows a miss is y itself.
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
    """The path of a tree that is accepted.

    accepted: [B] drafts accepted. path: [B, D + 1] node numbers from the root down, meaningful up to ``accepted``.
    last: [B] the last accepted node (the root, 0, if none). next_root: [B] the code that the target emits after it.
    """

    accepted: Tensor
    path: Tensor
    last: Tensor
    next_root: Tensor

    def cut(self, drafts: int) -> Acceptance:
        """The same with paths of so many drafts, which is enough for ``accepted``."""
        return replace(self, path=self.path[:, : drafts + 1])

    def is_scattered(self) -> Tensor:
        """Images whose accepted path is not 0, 1, 2, ..., bool [B]."""
        steps = torch.arange(self.path.shape[1], device=self.path.device)
        return ((self.path != steps) & (steps <= self.accepted[:, None])).any(1)


def exact_agreement(tree: DraftTree, emitted: Tensor) -> Tensor:
    """Nodes whose token is the one that the target emits at their parent, and the root; bool [B, N + 1].

    emitted: [B, N + 1], for each node the code that the target draws after it, ``argmax(z + g)``. Lossless for any
    tree, because nothing here depends on how the tree was made.
    """
    agrees = (tree.tokens == emitted.gather(1, tree.parents)) & tree.valid
    agrees[:, 0] = True
    return agrees


def longest_path(tree: DraftTree, agrees: Tensor, emitted: Tensor) -> Acceptance:
    """The deepest path of nodes that agree, bool [B, N + 1], and what is emitted after it.

    No loop over candidates, and no wait for the device.
    """
    on_path = ~(tree.ancestors & ~agrees[:, None, :]).any(-1)
    accepted, last = (tree.depths * on_path).max(1)
    lineage = tree.ancestors[torch.arange(len(last), device=last.device), last]
    column = torch.where(lineage, tree.depths, tree.height + 1)  # nodes off the path go to a spare column
    path = torch.zeros(len(last), tree.height + 2, dtype=torch.long, device=last.device)
    path.scatter_(1, column, torch.arange(tree.size, device=last.device).expand_as(column))
    return Acceptance(accepted, path[:, : tree.height + 1], last, emitted.gather(1, last[:, None])[:, 0])


@dataclass
class Neighbours:
    """indices: [V, k], the nearest other codes, nearest first. distances: [V, k], in the codebook's space."""

    indices: Tensor
    distances: Tensor

    @classmethod
    def of(cls, codebook: Tensor, k: int) -> Neighbours:
        """From codebook vectors [V, C]; ``k`` is cut to the V - 1 that there are."""
        k = min(k, len(codebook) - 1)
        nearest = []
        for rows in torch.arange(len(codebook), device=codebook.device).split(_ROWS_AT_ONCE):
            distance = torch.cdist(codebook[rows].float(), codebook.float())
            distance.scatter_(1, rows[:, None], math.inf)  # a code is not its own neighbour
            nearest.append(distance.topk(k, 1, largest=False))
        return cls(torch.cat([n.indices for n in nearest]), torch.cat([n.values for n in nearest]))

    def padded(self, tokens: int) -> Neighbours:
        """With rows for tokens that are no codes: each is its own neighbour, infinitely far."""
        k, device = self.indices.shape[1], self.indices.device
        extra = torch.arange(len(self.indices), tokens, device=device)[:, None].expand(-1, k)
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
    """Nodes that pass and those that pass as substitutes, bool [B, N + 1] each.

    emitted: [B, N + 1], as for :func:`exact_agreement`. z: [B, N + 1, V], processed logits after every node. width:
    most children of a node. allowed: [B], substitutions that an image may still make; a path with more does not pass.

    An exact match wins over relaxed ones, and among those the nearest to y wins. greedy: temperature 0, where y alone
    would make relaxation a no-op. There x passes if p(x) plus its neighbours' mass within the bound exceeds every p(v)
    (LANTERN, section 4), and among several the one with the most mass wins.
    """
    exact = exact_agreement(tree, emitted)
    draft = tree.valid & (torch.arange(tree.size, device=z.device) > 0)
    p = z.softmax(-1).gather(1, tree.parents[..., None].expand(-1, -1, z.shape[-1]))  # of each node's parent
    near, own = neighbours.indices[tree.tokens], p.gather(2, tree.tokens[..., None])
    mass = p.gather(2, near)
    if greedy:
        bound = torch.full_like(own, lantern.delta) if lantern.factor is None else (lantern.factor - 1) * own
        score = own[..., 0] + (mass * (mass.cumsum(-1) <= bound)).sum(-1)
        passes = score > p.amax(-1)
    else:
        if lantern.factor is None:
            within = _within_delta(tree, draft, mass, near, lantern.delta, width, z.shape[-1])
        else:
            within = mass.cumsum(-1) <= (lantern.factor - 1) * own
        stands_for = (near == emitted.gather(1, tree.parents)[..., None]) & within
        passes, score = stands_for.any(-1), -(stands_for * neighbours.distances[tree.tokens]).sum(-1)
    relaxed = _best_sibling(tree, passes & draft, score) & ~_has_sibling(tree, exact & draft)
    relaxed &= (tree.ancestors & relaxed[:, None]).sum(-1) <= allowed[:, None]
    return exact | relaxed, relaxed


def _within_delta(
    tree: DraftTree, draft: Tensor, mass: Tensor, near: Tensor, delta: float, width: int, vocabulary: int
) -> Tensor:
    """Which neighbours [B, N + 1, k] are in A(x) by LANTERN: the union of the siblings' A has the mass delta at most.

    Siblings take their share in the order of their ranks. What is claimed already costs nothing, nor does another
    sibling's own token, which passes exactly.
    """
    batch, size, _ = mass.shape
    cell = tree.parents[..., None] * vocabulary + near  # (parent, code)
    claimed = torch.zeros(batch, size * vocabulary, dtype=torch.uint8, device=mass.device)
    claimed.scatter_reduce_(1, tree.parents * vocabulary + tree.tokens, draft.to(torch.uint8), "amax")
    left = torch.full((batch, size), delta, dtype=mass.dtype, device=mass.device)
    within = torch.zeros_like(near, dtype=torch.bool)
    children = tree.parents[:, None] == torch.arange(size, device=mass.device)[:, None]  # [B, parent, child]
    for rank in range(width):
        price = mass * (claimed.gather(1, cell.flatten(1)).view_as(cell) == 0)
        turn = (price.cumsum(-1) <= left.gather(1, tree.parents)[..., None]) & (draft & (tree.ranks == rank))[..., None]
        left -= (children * (price * turn).sum(-1)[:, None]).sum(-1)  # float atomics would not repeat on a GPU
        claimed.scatter_reduce_(1, cell.flatten(1), turn.flatten(1).to(torch.uint8), "amax")
        within |= turn
    return within


def _has_sibling(tree: DraftTree, nodes: Tensor) -> Tensor:
    """Is any of these ``nodes`` a child of the node's parent? Both bool [B, N + 1]."""
    marks = nodes.to(torch.uint8)  # CUDA reduces no bool
    of_parent = torch.zeros_like(marks).scatter_reduce_(1, tree.parents, marks, "amax")
    return of_parent.gather(1, tree.parents) > 0


def _best_sibling(tree: DraftTree, passes: Tensor, score: Tensor) -> Tensor:
    """At each parent the passing child of the highest score, ties to the first; bool [B, N + 1]."""
    score = score.masked_fill(~passes, -math.inf)
    highest = torch.full_like(score, -math.inf).scatter_reduce_(1, tree.parents, score, "amax").gather(1, tree.parents)
    node = torch.arange(tree.size, device=score.device).expand_as(tree.parents)
    tied = torch.where(passes & (score == highest), node, tree.size)
    first = torch.full_like(node, tree.size).scatter_reduce_(1, tree.parents, tied, "amin").gather(1, tree.parents)
    return passes & (node == first)
