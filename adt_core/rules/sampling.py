"""The logit pipeline: which token a position gets.

The token of position t is ``argmax_v [z_t(v) + g_t(v)]``: ``z`` are the processed logits, and ``g`` is a Gumbel(0, 1)
table that depends on (seed, image index, t, v) alone. That is an exact sample of softmax(z) (Gumbel-max), and it makes
drafts checkable by comparison (Daliri et al., arXiv 2408.07978).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import AdtError
from .noise import Noise


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn.

    seed: 64-bit unsigned. temperature: 0 takes the most likely token. top_k: 0 switches it off. top_p: 1 switches it
    off. guidance: of classifier-free guidance, ``logits = uncond + guidance * (cond - uncond)``; 1 switches it off.
    """

    seed: int = 0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    guidance: float = 3.0

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 2**64:
            raise AdtError(f"seed is {self.seed}; it must be a whole number from 0 to 2**64 - 1.")
        for name, low, high in (("temperature", 0.0, 100.0), ("guidance", 0.0, 100.0)):
            value = getattr(self, name)
            if not (math.isfinite(value) and low <= value <= high):
                raise AdtError(f"{name} is {value}; it must be a number from {low:g} to {high:g}.")
        if self.top_k < 0:
            raise AdtError(f"top_k is {self.top_k}; it must be 0 (off) or a positive whole number.")
        if not 0 < self.top_p <= 1:
            raise AdtError(f"top_p is {self.top_p}; it must be above 0 and at most 1 (off).")


def noise_table(
    sampling: Sampling,
    image_indices: Sequence[int],
    length: int,
    vocabulary: int,
    like: Tensor,
) -> Tensor | None:
    """Noise of whole images, [B, length, vocabulary] in ``like``'s dtype and device; None at temperature 0."""
    if sampling.temperature == 0:
        return None
    keys = [(sampling.seed, index) for index in image_indices]
    noise = Noise(keys, length, vocabulary, ahead=length, like=like)
    noise.prepare([0] * len(keys))
    return noise.ring


def process_logits(logits: Tensor, sampling: Sampling) -> Tensor:
    """Temperature, then top-k (ties at the k-th value are kept), then top-p; removed entries become -inf.

    logits: [..., V], guidance already applied, float32 or wider. Returns z of the same shape.
    """
    z = logits / sampling.temperature if sampling.temperature > 0 and sampling.temperature != 1 else logits
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


def guide(features: Tensor, guidance: float) -> Tensor:
    """Classifier-free guidance on features: rows [cond..., uncond...] [2B, ...] -> [B, ...].

    A head's last step is affine, so guiding its input guides its logits at half the head's cost.
    At guidance 1 there are no unconditional rows and the input is returned.
    """
    if guidance == 1:
        return features
    conditional, unconditional = features.chunk(2)
    return torch.lerp(unconditional, conditional, guidance)
