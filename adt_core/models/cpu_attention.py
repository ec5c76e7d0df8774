"""Attention in float32 on a CPU, as two batched products and a softmax.

With one or three queries, torch's fused kernel gives other bits if the number of threads changes, because the library
of its products takes another path outside of parallel code. Batched products give the same bits, take as long, and run
fewer operations. Only with many scores is the fused kernel used, because it does not store them.

Letters in shapes have the same meaning as in :mod:`.layers`. A key head has m queries.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

MAX_SCORES = 2**20  # maximum number of attention scores of a layer, for which 4 MB of memory are needed


class BatchedAttention:
    """Attention of the layers of one forward.

    The layers share the buffers of all results, because new memory costs more time than a small product: the system has
    to clear it first.
    """

    def __init__(self, mask: Tensor, heads: int, kv_heads: int, rows: int, like: Tensor):
        """Allocate the buffers.

        Args:
            mask: [R, 1, m, end] mask that is added to the scores.
            rows: Number of rows of the result: N, then padding.
            like: [..., d], tensor with the dtype of the queries.
        """
        batch, _, m, end = mask.shape
        n = m * kv_heads // heads
        dim = like.shape[-1]
        if mask.dtype != like.dtype:
            mask = mask.to(like.dtype)  # a drafter may have another dtype than the target, whose dtype the mask has
        self._mask = mask.expand(-1, kv_heads, -1, -1).flatten(0, 1)
        empty = partial(torch.empty, dtype=like.dtype, device=like.device)
        self._queries = empty(batch, heads, n, dim)
        self._by_key_head = self._queries.view(batch * kv_heads, m, dim)
        self._scores = empty(self._mask.shape)
        self._weights = empty(self._mask.shape)
        self._sums = empty(self._by_key_head.shape)
        self._sums_by_head = self._sums.view(self._queries.shape)
        self._output = empty(rows, heads * dim)
        output = self._output
        if rows > batch * n:
            output = output.zero_()[: batch * n]
        self._by_head = output.view(batch, n, heads, dim).transpose(1, 2)

    @staticmethod
    def supports(mask: Tensor, kv_heads: int) -> bool:
        """Return whether a forward can use this class, instead of torch's fused kernel, with a mask [R, 1, m, end]."""
        is_supported = mask.is_cpu and mask.dtype == torch.float32 and torch.is_inference_mode_enabled()
        return is_supported and mask.numel() * kv_heads <= MAX_SCORES

    def __call__(self, queries: Tensor, cache: Tensor) -> Tensor:
        """Compute attention over the first positions of a layer's cache: [rows, heads * d], 0 in padding.

        The next call overwrites the result.

        Args:
            queries: [at least N, heads, d] queries of row 0, of row 1 and so on, then padding.
            cache: [2, R, key heads, cache_length, d] keys and values of the layer.
        """
        batch, _, end = self._mask.shape
        _, _, n, dim = self._queries.shape
        head, position, element = cache.stride()[2:]
        token, query_head, query_element = queries.stride()
        # Views that would otherwise take several operations each: queries [R, heads, n, d], keys [batch, d, end] and
        # values [batch, end, d].
        by_token = queries.as_strided(self._queries.shape, (n * token, query_head, token, query_element))
        keys = cache.as_strided((batch, dim, end), (head, element, position))
        values = cache.as_strided(
            (batch, end, dim), (head, position, element), cache.storage_offset() + cache.stride(0)
        )
        self._queries.copy_(by_token)
        torch.baddbmm(self._mask, self._by_key_head, keys, alpha=dim**-0.5, out=self._scores)
        torch.softmax(self._scores, -1, out=self._weights)
        torch.bmm(self._weights, values, out=self._sums)
        self._by_head.copy_(self._sums_by_head)
        return self._output
