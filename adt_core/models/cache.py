"""Static KV cache."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..errors import Check
from .config import DecoderConfig


class KVCache:
    """Keys and values of all layers, allocated once.

    Attributes:
        data: [layers, 2, rows, kv heads, cache_length, head dim]; index 0 of dim 1 holds keys, index 1 values.
    """

    def __init__(self, config: DecoderConfig, rows: int, cache_length: int, like: Tensor, check: Check | None = None):
        """Allocate a cache filled with zeros: a NaN in a masked position would spread through the softmax.

        Args:
            config: Shape of the decoder.
            rows: Rows of the batch.
            cache_length: Cache positions of each row.
            like: Tensor that sets dtype and device.
            check: Called before each layer is zeroed, which takes long for many rows; it may raise to cancel.
        """
        self.data = like.new_empty(config.num_layers, 2, rows, config.num_kv_heads, cache_length, config.head_dim)
        for layer in self.data:
            if check is not None:
                check()
            layer.zero_()

    @staticmethod
    def num_bytes(config: DecoderConfig, rows: int, cache_length: int, itemsize: int) -> int:
        """Return the size of a cache in bytes.

        Args:
            config: Shape of the decoder.
            rows: Rows of the batch.
            cache_length: Cache positions of each row.
            itemsize: Bytes of one element.
        """
        return 2 * config.num_layers * rows * config.num_kv_heads * cache_length * config.head_dim * itemsize

    def select(self, rows: Tensor) -> None:
        """Keep only some rows, in the same memory.

        Args:
                rows: Indices of the rows to keep.
        """
        layers, two, _, *rest = self.data.shape
        shape = (layers, two, len(rows), *rest)
        kept = self.data.flatten()[: math.prod(shape)].view(shape)
        for old, new in zip(self.data, kept):  # layer i moves towards the front, over layers that were copied before
            new.copy_(old.index_select(1, rows))
        self.data = kept

    def admit(self, rows: Tensor, others: KVCache) -> None:
        """Overwrite rows with the rows of another cache.

        Args:
            rows: Indices of the rows to overwrite.
            others: Cache with as many rows, and at most as many cache positions.
        """
        self.data[:, :, rows, :, : others.data.shape[4]] = others.data

    def compact(self, start: Tensor, path: Tensor) -> None:
        """Move the entries of an accepted path to consecutive cache positions.

        Args:
            start: [rows, 1] cache position of each row's root.
            path: [rows, m] node numbers; node ``path[r, j]`` moves from ``start + path[r, j]`` to ``start + j``.
        """
        # One row with its root at cache position 10 and the accepted path of nodes 0 -> 2 -> 5:
        #   start          [10]            path                    [0, 2, 5]
        #   source = start + path          [10, 12, 15]            read from here
        #   target = start + (0, 1, 2)     [10, 11, 12]            write here
        # gather copies all entries before scatter_ writes, so the overlap at position 12 is safe.
        layers, two, rows, heads, _, dim = self.data.shape
        source = (start + path)[None, None, :, None, :, None].expand(layers, two, rows, heads, -1, dim)
        steps = torch.arange(path.shape[1], device=path.device)
        target = (start + steps)[None, None, :, None, :, None].expand_as(source)
        self.data.scatter_(4, target, self.data.gather(4, source))
