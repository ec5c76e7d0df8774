"""Acceptance: which drafts of a tree the target itself would have emitted."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .tree import DraftTree


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
