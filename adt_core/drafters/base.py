"""Drafters: where draft trees come from. A drafter is what is loaded; its proposer is its state in one decoding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ..models.rows import Rows, Step
from ..models.target import Target
from ..policies.shape import Drafting, TreeShape
from ..rules.sampling import Sampling
from ..rules.tree import DraftTree
from ..rules.verify import Verdict


@dataclass
class Verified:
    """What one target forward over a tree found.

    features: [R, N + 1, h], of every node. perturbed: [B, N + 1, V], z + g after every node (its argmax is what the target
    emits there). starts: cache slots, and positions: raster positions of the roots. accepted: drafts accepted per image.
    contiguous: every accepted path is 0, 1, 2, ...
    """

    tree: DraftTree
    features: Tensor
    perturbed: Tensor
    verdict: Verdict
    starts: list[int]
    positions: list[int]
    accepted: list[int]
    contiguous: bool

    def following(self) -> Tensor:
        """Codes [B, longest + 1] that follow the nodes of every accepted path, the new root at last; padding behind it."""
        path, longest = self.verdict.path, max(self.accepted)
        drafts = (
            self.tree.tokens.narrow(1, 1, longest)
            if self.contiguous
            else self.tree.tokens.gather(1, path[:, 1 : longest + 1])
        )
        codes = torch.cat([drafts, self.verdict.next_root[:, None]], 1)
        if len(set(self.accepted)) > 1:
            codes.scatter_(1, self.verdict.accepted[:, None], self.verdict.next_root[:, None])
        return codes


class Proposer(Protocol):
    """Drafts for a batch of images. ``forwards`` counts the drafter's own network calls."""

    forwards: int

    def begin(self, features: Tensor, ids: Tensor, step: Step, z: Tensor, position: int) -> None:
        """The prompt was read, and what is kept of the images: the target's features [R, n, h] of all these tokens, the ids [R, n] that
        follow each (the first drawn token at last), and processed logits z [B, m, V] of the m image tokens up to that first one, at
        raster ``position``: of a row of the image, or of as many as there are."""

    def propose(self, root: Tensor, starts: list[int], positions: list[int], shapes: list[TreeShape]) -> DraftTree:
        """Grow one tree per image.

        root: codes [B]. starts: committed cache slots. positions: raster position of each root. shapes: depth and
        width asked per image; depth 0 gives a lone root.
        """

    def observe(self, verified: Verified) -> None:
        """Learn what became of the tree."""

    def keep(self, images: Tensor, rows: Rows, noise: Tensor | None) -> None:
        """Go on with these images of the batch alone, whose rows and noise are given."""

    def admit(self, images: Tensor, others: Proposer, rows: Rows) -> None:
        """Put the images of ``others``, which has begun, in the place of these; ``rows`` are then those of the batch. The noise is entered already."""


class Drafter(Protocol):
    """What a decoding needs to know of a drafter. ``default``: how to draft with it when nothing else is asked for."""

    default: Drafting

    def proposer(
        self, target: Target, rows: Rows, images: int, sampling: Sampling, drafting: Drafting, noise: Tensor | None
    ) -> Proposer:
        """A fresh proposer. noise: [B, T, V], the very table the target is sampled with; None at temperature 0."""

    def cache_bytes(self, rows: int, slots: int, itemsize: int) -> int:
        """Memory that a proposer keeps, in bytes."""
