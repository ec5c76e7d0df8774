"""Draft trees of one image, written by hand."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from adt_core.rules.tree import DraftTree, ancestor_matrix


def tree_of(tokens: Sequence[int], parents: Sequence[int], valid: Sequence[bool] | None = None) -> DraftTree:
    """Return a draft tree whose node 0 is the root.

    Args:
        parents: Index of each node's parent. A parent precedes its children.
        valid: False for padding nodes. Node 0 is always valid.
    """
    valid = valid or [True] * len(tokens)
    depths = [0]
    ranks = [0]
    for node, parent in enumerate(parents[1:], 1):
        depths.append((depths[parent] + 1) if valid[node] else 0)
        ranks.append(list(parents[1:node]).count(parent))
    row = torch.tensor([parents])
    height = max(1, *depths)
    return DraftTree(
        torch.tensor([tokens]),
        row,
        torch.tensor([depths]),
        torch.tensor([ranks]),
        torch.zeros(1, len(tokens)),
        torch.tensor([valid]),
        ancestor_matrix(row, height),
        height,
    )
