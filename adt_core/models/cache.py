"""The static KV cache."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..errors import Check
from .config import DecoderConfig


class KVCache:
    """Keys and values of all layers: [layers, 2, rows, kv heads, cache_length, head dim], allocated once.

    It is zeroed, because a masked NaN would still be a NaN. That takes a while for many rows, so ``check`` is called
    before every layer.
    """

    def __init__(self, config: DecoderConfig, rows: int, cache_length: int, like: Tensor, check: Check | None = None):
        """like: gives dtype and device."""
        self.data = like.new_empty(config.num_layers, 2, rows, config.num_kv_heads, cache_length, config.head_dim)
        for layer in self.data:
            if check is not None:
                check()
            layer.zero_()

    @staticmethod
    def num_bytes(config: DecoderConfig, rows: int, cache_length: int, itemsize: int) -> int:
        """Bytes of a cache. itemsize: bytes of a number."""
        return 2 * config.num_layers * rows * config.num_kv_heads * cache_length * config.head_dim * itemsize

    def select(self, rows: Tensor) -> None:
        """Go on with these rows alone, in the same memory."""
        layers, two, _, *rest = self.data.shape
        shape = (layers, two, len(rows), *rest)
        kept = self.data.flatten()[: math.prod(shape)].view(shape)
        for old, new in zip(self.data, kept):  # a layer moves to the front, over what has been read already
            new.copy_(old.index_select(1, rows))
        self.data = kept

    def admit(self, rows: Tensor, others: KVCache) -> None:
        """Put the rows of ``others``, which may have fewer cache_length, in the place of ``rows``."""
        self.data[:, :, rows, :, : others.data.shape[4]] = others.data

    def compact(self, start: Tensor, path: Tensor) -> None:
        """Move the entries of an accepted path together.

        start: [rows, 1] slot of each row's root. path: [rows, m] node numbers; node ``path[r, j]`` moves from position
        ``start + path[r, j]`` to ``start + j``.
        """
        layers, two, rows, heads, _, dim = self.data.shape
        source = (start + path)[None, None, :, None, :, None].expand(layers, two, rows, heads, -1, dim)
        steps = torch.arange(path.shape[1], device=path.device)
        target = (start + steps)[None, None, :, None, :, None].expand_as(source)
        self.data.scatter_(4, target, self.data.gather(4, source))
