"""Logit processing: guidance, temperature, filters (top-k and top-p) and grammar (the valid tokens at each position).

The sampled token at position t is `argmax_v [z_t(v) + g_t(v)]`:

- v is a token of the vocabulary.
- z are the processed logits.
- g is Gumbel(0, 1) noise. It depends only on the seed, the image index, t and v.

This token is an exact sample of softmax(z) (Gumbel-max trick). The noise does not depend on the drafts. So a draft is
verified by comparing it with the sampled token (Daliri et al., arXiv 2408.07978).

Dimensions: B images, V tokens in the vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from ..settings import Sampling
from .noise import Noise


def noise_table(
    sampling: Sampling, image_indices: Sequence[int], length: int, vocabulary: int, like: Tensor
) -> Tensor | None:
    """Return the noise of complete images, [B, length, V], or None at temperature 0.

    Args:
        sampling: Settings; seed and temperature are used.
        image_indices: Index of each image among the images of its prompt.
        like: Tensor with the dtype and the device of the noise.
    """
    if sampling.greedy:
        return None
    keys = [(sampling.seed, index) for index in image_indices]
    noise = Noise(keys, length, vocabulary, ahead=length, like=like)
    noise.prepare([0] * len(keys))
    return noise.ring


def process_logits(logits: Tensor, sampling: Sampling, bias: Tensor | None = None, filters: bool = True) -> Tensor:
    """Apply temperature, top-k, top-p and a bias to logits, in this order. Excluded tokens get the logit -inf.

    Temperature 0 does not scale the logits. Top-k keeps every token whose logit equals the k-th largest logit.

    Args:
        logits: [..., V] after guidance, float32 or wider.
        bias: [..., V] or [..., V + 1]; None adds nothing. The bias is 0 for tokens that the grammar allows at the
            position, and -inf for others. A caller that only ranks tokens can add noise to the bias. Index V is the
            token that ends a row of the image; its logit before the bias is 0.
        filters: Whether to apply top-k and top-p.

    Returns:
        Processed logits, in the shape of the bias if there is one.
    """
    z = logits
    if not sampling.greedy and sampling.temperature != 1:
        z = z / (_cpu_scalar(sampling.temperature, z.dtype) if z.is_cpu else sampling.temperature)
    if filters:
        z = _filter(z, sampling)
    if bias is None:
        return z
    return (z if z.shape[-1] == bias.shape[-1] else F.pad(z, (0, 1))) + bias


@cache
def _cpu_scalar(value: float, dtype: torch.dtype) -> Tensor:
    """Return a number as a tensor. On a CPU, torch divides by it with one operation, and by a number with five."""
    with torch.inference_mode(False):  # usable with and without gradients
        return torch.tensor(value, dtype=dtype, device="cpu")


def _filter(z: Tensor, sampling: Sampling) -> Tensor:
    """Apply top-k, then top-p: set the logits of excluded tokens to -inf."""
    if 0 < sampling.top_k < z.shape[-1]:
        z = z.masked_fill(z < z.topk(sampling.top_k, -1).values[..., -1:], -math.inf)
    if sampling.top_p < 1:
        ordered, order = z.sort(dim=-1, descending=True, stable=True)
        probability = ordered.softmax(-1)
        # `before` is the total probability of the tokens that come earlier in the order. Example: the probabilities
        # [0.5, 0.3, 0.2] have before = [0, 0.5, 0.8]. With top_p = 0.7, the first two tokens are kept.
        # A GPU adds up a long row in an order that differs between runs; in float64 the difference is negligible.
        wide = torch.float32 if z.device.type == "mps" else torch.float64  # Apple's GPUs have no float64
        before = probability.cumsum(-1, dtype=wide) - probability
        outside = before >= sampling.top_p  # the first token always remains
        z = z.masked_fill(torch.zeros_like(outside).scatter(-1, order, outside), -math.inf)
    return z


_STEPS = 2**20
"""Number of steps in which :func:`certainty` counts 1."""


def certainty(z: Tensor) -> Tensor:
    """Return two numbers per distribution, from which :func:`top_probability_and_entropy` makes figures on the host.

    With p = softmax(z), the entropy is log sum exp(z) - sum(p z), and the probability of the most probable token is
    max(p) = exp(max(z)) / sum exp(z). Their sum without a logarithm of V numbers, which is slow on a CPU:

        entropy = [max(z) - sum(p z)] - log max(p)

    Args:
        z: [..., V], processed logits.

    Returns:
        [..., 2] int64: max(p) and the bracket, as fixed-point numbers. Without a finite logit, both are arbitrary.
    """
    p = z.softmax(-1)
    # The logit of an excluded token is -inf, and 0 * -inf is NaN.
    spread = z.amax(-1) - torch.linalg.vecdot(p, z.clamp_min(torch.finfo(z.dtype).min))
    return torch.stack([p.amax(-1), spread], -1).mul_(_STEPS).long()


def top_probability_and_entropy(top: int, spread: int) -> tuple[float, float]:
    """Return the probability of the most probable token and the entropy in nats, from the numbers of `certainty`."""
    probability = top / _STEPS
    return round(probability, 4), round(max(0.0, spread / _STEPS - math.log(probability)), 4)


def is_finite(x: Tensor) -> Tensor:
    """Return `x.isfinite()` with fewer operations: x - x is NaN if x is infinite or NaN, and NaN differs from NaN."""
    zero_or_nan = x - x
    return zero_or_nan == zero_or_nan


def guide(features: Tensor, guidance: Tensor | float) -> Tensor:
    """Apply classifier-free guidance to features: `uncond + guidance * (cond - uncond)`.

    The features are the input of the output head's last layer. This layer is affine. So guidance of the features gives
    the same logits as guidance of the logits, but the layer has to process only half of the rows.

    Args:
        features: [2B, ...], first the B conditional rows, then the B unconditional rows. If the guidance is the number
            1: [B, ...], only the conditional rows, which are returned unchanged.
        guidance: Guidance scale: a number, or a tensor [..., 1] with a scale for each feature vector.

    Returns:
        [B, ...].
    """
    if not isinstance(guidance, Tensor) and guidance == 1:
        return features
    images = features.shape[0] // 2
    conditional, unconditional = features.split([images, images])
    return torch.lerp(unconditional, conditional, guidance)
