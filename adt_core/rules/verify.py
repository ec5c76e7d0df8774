"""Acceptance: which drafts of a tree the target itself would have emitted."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import AdtError
from .tree import DraftTree

_ROWS = 1024  # of the distance matrix at a time


@dataclass
class Verdict:
    """accepted [B]: drafts accepted. path [B, D + 1]: node numbers from the root down, meaningful up to
    ``accepted``. last [B]: the last accepted node (the root, 0, if none). next_root [B]: the code the target
    emits after it."""

    accepted: Tensor
    path: Tensor
    last: Tensor
    next_root: Tensor


def exact_agreement(tree: DraftTree, emitted: Tensor) -> Tensor:
    """Nodes whose token is the one that the target emits at their parent, and the root; bool [B, N + 1].

    emitted [B, N + 1]: for each node the code the target draws after it, ``argmax(z + g)``.
    """
    agrees = (tree.tokens == emitted.gather(1, tree.parents)) & tree.valid
    agrees[:, 0] = True
    return agrees


def longest_path(tree: DraftTree, agrees: Tensor, emitted: Tensor) -> Verdict:
    """The deepest path of nodes that agree, [B, N + 1], and what is emitted after it.

    Ancestor reduction and argmax only: no loop over candidates and no host synchronisation.
    """
    on_path = ~(tree.ancestors & ~agrees[:, None, :]).any(-1)
    accepted, last = (tree.depths * on_path).max(1)
    lineage = tree.ancestors[torch.arange(len(last), device=last.device), last]
    column = torch.where(lineage, tree.depths, tree.height + 1)  # everyone off the path goes to a spare column
    path = torch.zeros(len(last), tree.height + 2, dtype=torch.long, device=last.device)
    path.scatter_(1, column, torch.arange(tree.size, device=last.device).expand_as(column))
    return Verdict(accepted, path[:, : tree.height + 1], last, emitted.gather(1, last[:, None])[:, 0])


def verify_exact(tree: DraftTree, emitted: Tensor) -> Verdict:
    """Lossless for any tree, because nothing here depends on how the tree was made."""
    return longest_path(tree, exact_agreement(tree, emitted), emitted)


@dataclass
class Neighbours:
    """indices [V, k]: the nearest other codes, nearest first. distances [V, k]: how far, in the codebook's space."""

    indices: Tensor
    distances: Tensor

    @classmethod
    def of(cls, codebook: Tensor, k: int) -> Neighbours:
        """From codebook vectors [V, C]; ``k`` is cut to the V - 1 that there are."""
        k = min(k, len(codebook) - 1)
        nearest = []
        for rows in torch.arange(len(codebook), device=codebook.device).split(_ROWS):
            distance = torch.cdist(codebook[rows].float(), codebook.float())
            distance.scatter_(1, rows[:, None], math.inf)  # a code is not its own neighbour
            nearest.append(distance.topk(k, 1, largest=False))
        return cls(torch.cat([n.indices for n in nearest]), torch.cat([n.values for n in nearest]))

    def padded(self, tokens: int) -> Neighbours:
        """With rows for tokens that are no codes: each is its own neighbour, infinitely far."""
        extra = torch.arange(len(self.indices), tokens, device=self.indices.device)[:, None].expand(
            -1, self.indices.shape[1]
        )
        return Neighbours(
            torch.cat([self.indices, extra]),
            torch.cat([self.distances, torch.full_like(extra, math.inf, dtype=self.distances.dtype)]),
        )

    def to(self, device: torch.device) -> Neighbours:
        return Neighbours(self.indices.to(device), self.distances.to(device))


@dataclass(frozen=True)
class Lantern:
    """How far acceptance is relaxed.

    neighbours: codebook neighbours looked at. delta: probability that A may hold at a node, all its children together (LANTERN); the
    distribution of a token then moves by at most delta in total variation, if drafts are chosen without the noise (``top-k``).
    factor: LANTERN++'s lambda; A(x) may hold (factor - 1) p(x), and delta is not used. max_substitution: share of an image's tokens
    that may differ from the exact sample; 1 sets no limit.
    """

    neighbours: int = 100
    delta: float = 0.1
    factor: float | None = None
    max_substitution: float = 1.0

    def __post_init__(self) -> None:
        if self.neighbours < 1:
            raise AdtError(f"lantern_k is {self.neighbours}; it must be a whole number from 1.")
        for name, value, low, high in (
            ("lantern_delta", self.delta, 0, 1),
            ("lantern_lambda", self.factor, 1, 1e6),
            ("max_substitution", self.max_substitution, 0, 1),
        ):
            if value is not None and not (math.isfinite(value) and low <= value <= high):
                raise AdtError(f"{name} is {value}; it must be a number from {low} to {high:g}.")

    def allowed(self, emitted: int, substituted: int) -> int:
        """Substitutions that an image may still make when it has ``emitted`` tokens with ``substituted`` among them."""
        return 2**31 if self.max_substitution == 1 else int(self.max_substitution * emitted) - substituted


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
    """Which nodes pass, and which of them only in place of another token; both [B, N + 1] bool.

    emitted [B, N + 1]: the exact next code of every node. z [B, N + 1, V]: processed logits. greedy: temperature 0, where the
    published rule holds: x passes if p(x) and its neighbours' mass together exceed every p(v) (LANTERN, section 4). width: sibling
    ranks are below it. allowed [B]: substitutions per image at most. An exact match wins; among the others the nearest does.
    """
    batch, size, vocabulary = z.shape
    exact = exact_agreement(tree, emitted)
    draft = tree.valid & (torch.arange(size, device=z.device) > 0)
    p = z.softmax(-1).gather(1, tree.parents[..., None].expand(-1, -1, vocabulary))  # of each node's parent
    near, own = neighbours.indices[tree.tokens], p.gather(2, tree.tokens[..., None])
    mass = p.gather(2, near)
    bound = torch.full_like(own, lantern.delta) if lantern.factor is None else (lantern.factor - 1) * own
    if greedy:
        total = mass.cumsum(-1)
        score = own[..., 0] + (mass * (total <= bound)).sum(-1)
        passes = score > p.amax(-1)
    else:
        within = (
            mass.cumsum(-1) <= bound
            if lantern.factor is not None
            else _shared_budget(tree, draft, mass, near, lantern.delta, width, vocabulary)
        )
        stands_for = (near == emitted.gather(1, tree.parents)[..., None]) & within
        passes, score = stands_for.any(-1), -(stands_for * neighbours.distances[tree.tokens]).sum(-1)
    best = _best_sibling(tree, passes & draft, score)
    taken = torch.zeros_like(exact).scatter_reduce_(1, tree.parents, exact & draft, "amax").gather(1, tree.parents)
    relaxed = best & ~taken
    relaxed &= (tree.ancestors & relaxed[:, None]).sum(-1) <= allowed[:, None]
    return exact | relaxed, relaxed


def _shared_budget(
    tree: DraftTree, draft: Tensor, mass: Tensor, near: Tensor, delta: float, width: int, vocabulary: int
) -> Tensor:
    """Which neighbours [B, N + 1, k] are in A(x), when the union of the siblings' A has the mass ``delta`` at most.

    Siblings take their share in the order of their ranks. What is claimed already costs nothing, nor does another
    sibling's own token: it passes exactly.
    """
    batch, size, _ = mass.shape
    cell = tree.parents[..., None] * vocabulary + near  # (parent, code)
    claimed = torch.zeros(batch, size * vocabulary, dtype=torch.uint8, device=mass.device)
    claimed.scatter_reduce_(1, tree.parents * vocabulary + tree.tokens, draft.to(torch.uint8), "amax")
    left = torch.full((batch, size), delta, dtype=mass.dtype, device=mass.device)
    within = torch.zeros_like(near, dtype=torch.bool)
    for rank in range(width):
        price = mass * (claimed.gather(1, cell.flatten(1)).view_as(cell) == 0)
        turn = (price.cumsum(-1) <= left.gather(1, tree.parents)[..., None]) & (draft & (tree.ranks == rank))[..., None]
        left.scatter_add_(1, tree.parents, -(price * turn).sum(-1))
        claimed.scatter_reduce_(1, cell.flatten(1), turn.flatten(1).to(torch.uint8), "amax")
        within |= turn
    return within


def _best_sibling(tree: DraftTree, passes: Tensor, score: Tensor) -> Tensor:
    """At each parent the passing child of the highest score, ties to the first; bool [B, N + 1]."""
    score = score.masked_fill(~passes, -math.inf)
    highest = torch.full_like(score, -math.inf).scatter_reduce_(1, tree.parents, score, "amax").gather(1, tree.parents)
    node = torch.arange(tree.size, device=score.device).expand_as(tree.parents)
    tied = torch.where(passes & (score == highest), node, tree.size)
    first = torch.full_like(node, tree.size).scatter_reduce_(1, tree.parents, tied, "amin").gather(1, tree.parents)
    return passes & (node == first)
