"""Tensors of the published static trees."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from ..policies.fixed import STATIC_TREES
from ..rules.tree import ancestor_matrix


class Level(NamedTuple):
    """How one level of F fed nodes and their n children is drafted.

    A node is fed to the network if it has children. fed: [F], fed nodes of the level above, numbered within that level.
    parent: [n], the place in ``fed`` of each child's parent. rank: [n], its sibling rank. width: most children of a node.
    seen: [F, nodes fed so far], which of them a fed node sees, itself included. from_fed: [F], the place of each fed node's
    parent among the nodes fed one level up.
    """

    fed: Tensor
    parent: Tensor
    rank: Tensor
    seen: Tensor
    from_fed: Tensor
    width: int


class StaticTree(NamedTuple):
    """parents, depths, ranks [1, N + 1] and ancestors [1, N + 1, N + 1] of a whole tree, root first, level by level."""

    levels: list[Level]
    parents: Tensor
    depths: Tensor
    ranks: Tensor
    ancestors: Tensor


@cache
def static_tree(name: str, device: torch.device) -> StaticTree:
    """The tree ``name`` of STATIC_TREES."""
    by_depth = STATIC_TREES[name]
    paths = [path for level in by_depth for path in level]
    number = {path: i for i, path in enumerate(paths)}

    def tensor(values: list) -> Tensor:
        return torch.tensor(values, device=device)

    levels, fed_so_far, above = [], [], [""]
    for level, nodes in zip(by_depth, by_depth[1:]):
        fed = [path for path in level if path + "0" in nodes]
        fed_so_far += [path for path in fed if path]  # the root's own pair is fed by the catch-up
        ranks = [int(path[-1]) for path in nodes]
        levels.append(
            Level(
                fed=tensor([level.index(path) for path in fed]),
                parent=tensor([fed.index(path[:-1]) for path in nodes]),
                rank=tensor(ranks),
                seen=tensor([[path.startswith(other) for other in fed_so_far] for path in fed]),
                from_fed=tensor([above.index(path[:-1]) for path in fed]),
                width=max(ranks) + 1,
            )
        )
        above = fed
    parents = tensor([[number[path[:-1]] for path in paths]])
    depths = tensor([[len(path) for path in paths]])
    all_ranks = tensor([[int(path[-1:] or 0) for path in paths]])
    return StaticTree(levels, parents, depths, all_ranks, ancestor_matrix(parents, len(by_depth) - 1))
