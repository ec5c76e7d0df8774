"""Operands for the trial of :mod:`.attend`: the same node of a draft tree in several forward passes.

Letters in shapes: as in :mod:`.attend`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..models.batch_invariance import NEAR_WINDOW, NearKeys, align_mask, repeat_for_groups


class Operands(NamedTuple):
    """Operands of :func:`.attend.attend`, before the masks and near keys are prepared for the kernel or the reference.

    Attributes:
        mask: [R, 1, n, end], not yet repeated for the query heads of a key head.
        near_keys: Result of `split_near_keys`.
    """

    queries: Tensor
    cache: Tensor
    mask: Tensor
    near_keys: NearKeys

    def for_kernel(self) -> Operands:
        """Return the operands as the kernel reads them."""
        return self._replace(near_keys=self.near_keys.by_path())

    def for_reference(self) -> Operands:
        """Return the operands as the reference reads them."""
        kv_heads = self.cache.shape[2]
        group = self.queries.shape[1] // kv_heads
        near_keys = self.near_keys.for_layers(kv_heads, group)
        return self._replace(mask=repeat_for_groups(self.mask, group), near_keys=near_keys)


class RandomTree:
    """Draft tree after some committed tokens, with random queries, keys and values.

    Attributes:
        parents: Parent of each node; -1 for the root, which is node 0. Parents precede their children.
        committed: Number of committed tokens.
        queries: [nodes, heads, d].
        entries: [2, key heads, committed + nodes, d] keys and values of the committed tokens, then of the nodes.
    """

    def __init__(self, like: Tensor, heads: int, kv_heads: int, dim: int, parents: Sequence[int], committed: int = 300):
        """Draw the values with a fixed seed, in the dtype and on the device of `like`."""
        generator = torch.Generator().manual_seed(0)
        self.parents = parents
        self.committed = committed
        self.queries = torch.randn(len(parents), heads, dim, generator=generator).to(like)
        entries = torch.randn(2, kv_heads, committed + len(parents), dim, generator=generator)
        self.entries = entries.to(like)

    def path(self, node: int) -> list[int]:
        """Return the nodes from the root to `node`."""
        before = self.path(self.parents[node]) if node else []
        return [*before, node]

    def operands(self, nodes: Sequence[int], queried: Sequence[int], first: int = 0, spare: int = 0) -> Operands:
        """Return the operands of a forward pass with one row and without padding.

        Args:
            nodes: Nodes that the cache contains after the committed tokens, in this order.
            first: Number of masked cache positions before the first committed token.
            spare: Number of masked cache positions after the last node.
        """
        device = self.entries.device
        start = first + self.committed
        used = start + len(nodes)
        cache = self.entries.new_full((2, 1, self.entries.shape[1], used + spare, self.entries.shape[3]), 9.0)
        cache[:, 0, :, first:start] = self.entries[:, :, : self.committed]
        cache[:, 0, :, start:used] = self.entries[:, :, [self.committed + node for node in nodes]]
        place = {node: start + index for index, node in enumerate(nodes)}
        bounds = torch.full((1, len(queried), 2), first)
        columns = torch.arange(start - NEAR_WINDOW, used, device=device)
        near = torch.full((1, 1, len(queried), len(columns)), -torch.inf, dtype=torch.float64)
        far = torch.full((1, 1, len(queried), used + spare), -torch.inf)
        for index, node in enumerate(queried):
            path = self.path(node)
            far_until = start + len(path) - 1 - NEAR_WINDOW
            far[..., index, first:far_until] = 0
            bounds[:, index, 1] = far_until
            for column in (*range(far_until, start), *(place[ancestor] for ancestor in path)):
                near[..., index, column - start + NEAR_WINDOW] = 0
        near_keys = NearKeys(columns[None], near.to(device), bounds.to(device))
        return Operands(self.queries[list(queried)], cache, align_mask(far.to(self.entries)), near_keys)


def join(rows: Sequence[Operands], padding: int = 0) -> Operands:
    """Return the operands of one forward pass over several rows with equal sizes."""
    queries = torch.cat([row.queries for row in rows])
    if padding:
        queries = torch.cat([queries, queries.new_zeros(padding, *queries.shape[1:])])
    columns = torch.cat([row.near_keys.columns for row in rows if row.near_keys.columns is not None])
    far = torch.cat([row.near_keys.far for row in rows if row.near_keys.far is not None])
    near_keys = NearKeys(columns, torch.cat([row.near_keys.mask for row in rows]), far)
    cache = torch.cat([row.cache for row in rows], 1)
    return Operands(queries, cache, align_mask(torch.cat([row.mask for row in rows])), near_keys)
