"""Attention in float32 on a CPU, as two batched products and a softmax.

With one or three queries, torch's fused kernel gives other bits if the number of threads changes, because the library
of its products takes another path outside of parallel code. Batched products give the same bits, take as long, and run
fewer operations. Only with many scores is the fused kernel used, because it does not store them.

Letters in shapes have the same meaning as in :mod:`.layers`. A key head has m queries.
"""

from __future__ import annotations

import torch
from torch import Tensor

MAX_SCORES = 2**20
"""Maximum number of attention scores of a layer, for which 4 MB of memory are needed."""


def batched_mask(mask: Tensor, kv_heads: int) -> Tensor:
    """Prepare the mask of a forward for all layers.

    Args:
        mask: [R, 1, m, end] mask that is added to the scores.

    Returns:
        [R * kv_heads, m, end] mask for :func:`batched_attention`; `mask` if torch's fused kernel must be used.
    """
    is_supported = mask.is_cpu and mask.dtype == torch.float32 and torch.is_inference_mode_enabled()
    if not is_supported or mask.numel() * kv_heads > MAX_SCORES:
        return mask
    return mask.expand(-1, kv_heads, -1, -1).flatten(0, 1)


def batched_attention(q: Tensor, cache: Tensor, mask: Tensor) -> Tensor:
    """Compute attention over the first positions of a layer's cache.

    Args:
        q: [R, key heads, m, d] queries.
        cache: [2, R, key heads, cache_length, d] keys and values of the layer.
        mask: [R * key heads, m, end] mask that is added to the scores.

    Returns:
        [R, key heads, m, d].
    """
    if mask.dtype != q.dtype:
        mask = mask.to(q.dtype)  # a drafter may have another dtype than the target
    batch, m, end = mask.shape
    head, position, element = cache.stride()[2:]
    # Views that would otherwise take several operations each: keys [batch, d, end] and values [batch, end, d].
    keys = cache.as_strided((batch, q.shape[-1], end), (head, element, position))
    values = cache.as_strided(
        (batch, end, q.shape[-1]), (head, position, element), cache.storage_offset() + cache.stride(0)
    )
    scores = torch.baddbmm(mask, q.reshape(batch, m, -1), keys, alpha=q.shape[-1] ** -0.5)
    return torch.bmm(scores.softmax(-1), values).view(q.shape)
