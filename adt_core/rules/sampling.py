"""Logit processing: guidance, temperature, filters and grammar.

The token at position t is `argmax_v [z_t(v) + g_t(v)]`, where z are the processed logits and g is Gumbel(0, 1) noise
that depends only on (seed, image index, t, v). This is an exact sample of softmax(z) (Gumbel-max), and a draft can be
verified by comparing it with this token (Daliri et al., arXiv 2408.07978).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from .noise import Noise
from .settings import Sampling


def noise_table(
    sampling: Sampling,
    image_indices: Sequence[int],
    length: int,
    vocabulary: int,
    like: Tensor,
) -> Tensor | None:
    """Return the noise of complete images, or None at temperature 0.

    Args:
        sampling: Settings; seed and temperature are used.
        image_indices: Index of each image among the images of its prompt.
        length: Tokens of an image.
        vocabulary: Number of tokens V.
        like: Tensor that sets dtype and device.

    Returns:
        [B, length, V].
    """
    if sampling.greedy:
        return None
    keys = [(sampling.seed, index) for index in image_indices]
    noise = Noise(keys, length, vocabulary, ahead=length, like=like)
    noise.prepare([0] * len(keys))
    return noise.ring


def process_logits(logits: Tensor, sampling: Sampling, bias: Tensor | None = None, filters: bool = True) -> Tensor:
    """Apply temperature, top-k (ties at the k-th value are kept), top-p, and a bias, in this order.

    Args:
        logits: [..., V] after guidance, float32 or wider.
        sampling: Settings of temperature and filters.
        bias: [..., V] or [..., V + 1], added last: the grammar of the positions, 0 or -inf, and noise where the result
            is only used for ranking. Token V, the end of a row, has the logit 0 before the bias.
        filters: Whether to apply top-k and top-p.

    Returns:
        Processed logits with the size of the bias, or of the logits without one; -inf for excluded tokens.
    """
    z = logits if sampling.greedy or sampling.temperature == 1 else logits / sampling.temperature
    if filters:
        z = _filter(z, sampling)
    if bias is None:
        return z
    return (z if z.shape[-1] == bias.shape[-1] else F.pad(z, (0, 1))) + bias


def _filter(z: Tensor, sampling: Sampling) -> Tensor:
    """Set all logits outside of top-k, then those outside of top-p, to -inf."""
    if 0 < sampling.top_k < z.shape[-1]:
        z = z.masked_fill(z < z.topk(sampling.top_k, -1).values[..., -1:], -math.inf)
    if sampling.top_p < 1:
        ordered, order = z.sort(dim=-1, descending=True, stable=True)
        probability = ordered.softmax(-1)
        # A GPU adds up a long row in an order that differs between runs; in float64 the difference is negligible.
        wide = torch.float32 if z.device.type == "mps" else torch.float64  # Apple's GPUs have no float64
        before = probability.cumsum(-1, dtype=wide) - probability
        outside = before >= sampling.top_p  # the first token always remains
        z = z.masked_fill(torch.zeros_like(outside).scatter(-1, order, outside), -math.inf)
    return z


def guide(features: Tensor, guidance: Tensor | float) -> Tensor:
    """Apply classifier-free guidance to features: `uncond + guidance * (cond - uncond)`.

    The last step of a head is affine, so guiding its input is equivalent to guiding its logits at half the cost.

    Args:
        features: [2B, ...], conditional rows, then unconditional ones. [B, ...] at guidance 1.
        guidance: Guidance scale, or one scale for each feature [..., 1].

    Returns:
        [B, ...]; at guidance 1 the features unchanged.
    """
    if not isinstance(guidance, Tensor) and guidance == 1:
        return features
    conditional, unconditional = features.chunk(2)
    return torch.lerp(unconditional, conditional, guidance)
