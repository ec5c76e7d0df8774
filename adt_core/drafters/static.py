"""Tensors of the static draft trees."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from ..policies.static_trees import STATIC_TREES
from ..rules.tree import ancestor_matrix


class Level(NamedTuple):
    """How one level is drafted. fed: those nodes of the level above that have children, numbered within their level. parent: for
    each node of this level its parent's place in ``fed``. rank: its sibling rank. seen [F, all fed so far]: which fed nodes a fed
    node sees, itself included. from_fed: place of each fed node's parent among the nodes fed one level up."""

    fed: Tensor
    parent: Tensor
    rank: Tensor
    seen: Tensor
    from_fed: Tensor

    @property
    def width(self) -> int:
        return int(self.rank.max()) + 1


class StaticTree(NamedTuple):
    """parents, depths, ranks [1, N + 1] and ancestors [1, N + 1, N + 1] of the whole tree, root first, level by level."""

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
    levels, fed_so_far, above = [], [], [""]
    for level, nodes in zip(by_depth, by_depth[1:]):
        fed = [path for path in level if path + "0" in nodes]
        fed_so_far += [path for path in fed if path]  # the root's own pair is fed by the catch-up
        seen = [[path.startswith(other) for other in fed_so_far] for path in fed]
        levels.append(
            Level(
                *(
                    torch.tensor(values, device=device)
                    for values in (
                        [level.index(path) for path in fed],
                        [fed.index(path[:-1]) for path in nodes],
                        [int(path[-1]) for path in nodes],
                        seen,
                        [above.index(path[:-1]) for path in fed],
                    )
                )
            )
        )
        above = fed
    parents = torch.tensor([[number[path[:-1]] for path in paths]], device=device)
    depths, ranks = (
        torch.tensor([values], device=device) for values in ([len(p) for p in paths], [int(p[-1:] or 0) for p in paths])
    )
    return StaticTree(levels, parents, depths, ranks, ancestor_matrix(parents, len(by_depth) - 1))
