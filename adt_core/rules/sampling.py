"""The logit pipeline: which token a position gets.

The token of position t is ``argmax_v [z_t(v) + g_t(v)]``: ``z`` are the processed logits, and ``g`` is a Gumbel(0, 1)
table that depends on (seed, image index, t, v) alone. That is an exact sample of softmax(z) (Gumbel-max), and it makes
drafts checkable by comparison (Daliri et al., arXiv 2408.07978).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
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
    """Noise of whole images, [B, length, vocabulary] in ``like``'s dtype and device; None at temperature 0."""
    if sampling.greedy:
        return None
    keys = [(sampling.seed, index) for index in image_indices]
    noise = Noise(keys, length, vocabulary, ahead=length, like=like)
    noise.prepare([0] * len(keys))
    return noise.ring


def process_logits(logits: Tensor, sampling: Sampling) -> Tensor:
    """Temperature, then top-k (ties at the k-th value are kept), then top-p; removed entries become -inf.

    logits: [..., V], guidance already applied, float32 or wider. Returns z of the same shape.
    """
    z = logits if sampling.greedy or sampling.temperature == 1 else logits / sampling.temperature
    if 0 < sampling.top_k < z.shape[-1]:
        z = z.masked_fill(z < z.topk(sampling.top_k, -1).values[..., -1:], -math.inf)
    if sampling.top_p < 1:
        ordered, order = z.sort(dim=-1, descending=True, stable=True)
        probability = ordered.softmax(-1)
        # A GPU adds a long row up in an order that differs between runs. In float64 that is too little to matter.
        wide = torch.float32 if z.device.type == "mps" else torch.float64  # which Apple's GPUs don't have
        before = probability.cumsum(-1, dtype=wide) - probability
        outside = before >= sampling.top_p  # the first token always stays
        z = z.masked_fill(torch.zeros_like(outside).scatter(-1, order, outside), -math.inf)
    return z


def guide(features: Tensor, guidance: Tensor | float) -> Tensor:
    """Classifier-free guidance on features: rows [cond..., uncond...] [2B, ...] -> [B, ...].

    A head's last step is affine, so guiding its input guides its logits at half the head's cost. guidance: one scale,
    or one for every feature [..., 1]. At guidance 1 there are no unconditional rows and the input is returned.
    """
    if not isinstance(guidance, Tensor) and guidance == 1:
        return features
    conditional, unconditional = features.chunk(2)
    return torch.lerp(unconditional, conditional, guidance)
