"""Static KV cache. A row is one sequence of the batch: an image has one row, or two with classifier-free guidance."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..errors import Check
from .config import DecoderConfig


class KVCache:
    """Keys and values of all layers, allocated once.

    Attributes:
        data: [layers, 2, rows, kv heads, cache_length, head dim]. In dimension 1, index 0 holds the keys and index 1
            the values.
    """

    def __init__(self, config: DecoderConfig, rows: int, cache_length: int, like: Tensor, check: Check | None = None):
        """Allocate a cache filled with zeros.

        Uninitialised memory may contain NaN. Attention multiplies masked values by 0, and 0 * NaN is NaN.

        Args:
            like: Tensor whose dtype and device the cache gets.
            check: Called before each layer is filled with zeros. It may raise an exception to cancel.
        """
        self.data = like.new_empty(config.num_layers, 2, rows, config.num_kv_heads, cache_length, config.head_dim)
        for layer in self.data:
            if check is not None:
                check()
            layer.zero_()

    @staticmethod
    def num_bytes(config: DecoderConfig, rows: int, cache_length: int, itemsize: int) -> int:
        """Return the size of a cache in bytes, of which an element has ``itemsize``."""
        return 2 * config.num_layers * rows * config.num_kv_heads * cache_length * config.head_dim * itemsize

    def select(self, rows: Tensor) -> None:
        """Keep only some rows of the batch, in the memory of the existing cache."""
        layers, two, _, *rest = self.data.shape
        shape = (layers, two, len(rows), *rest)
        kept = self.data.flatten()[: math.prod(shape)].view(shape)
        for old, new in zip(self.data, kept):  # safe: layer i overwrites only layers up to i
            new.copy_(old.index_select(1, rows))
        self.data = kept

    def admit(self, rows: Tensor, others: KVCache) -> None:
        """Overwrite rows of this cache with another cache, which has at most as many cache positions."""
        self.data[:, :, rows, :, : others.data.shape[4]] = others.data

    def compact(self, start: Tensor, path: Tensor) -> None:
        """Move the entries of an accepted path to consecutive cache positions.

        Args:
            start: [rows, 1] int64 cache position of the root of each row's draft tree. Node i of the tree is at cache
                position ``start + i``. Like ``path``, it may have only one row, which then applies to all rows.
            path: [rows, m] int64 numbers of the m nodes of the accepted path. Node ``path[r, j]`` moves to cache
                position ``start + j``.
        """
        # One row with its root at cache position 10 and the accepted path of nodes 0 -> 2 -> 5:
        #   start          [10]            path                    [0, 2, 5]
        #   source = start + path          [10, 12, 15]            read from here
        #   target = start + (0, 1, 2)     [10, 11, 12]            write here
        # gather copies all entries before scatter_ writes, so the overlap at position 12 is safe.
        layers, two, rows, heads, _, dim = self.data.shape
        steps = torch.arange(path.shape[1], device=path.device)
        source, target = (
            (start + nodes).view(-1, 1, path.shape[1], 1).expand(layers, two, rows, heads, -1, dim)
            for nodes in (path, steps)
        )
        self.data.scatter_(4, target, self.data.gather(4, source))
