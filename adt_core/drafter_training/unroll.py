"""A drafter over whole pictures: what it is trained on, its loss and its acceptance.

Stream element i is the pair (target feature of token i, token i + 1), as inference feeds it, and its output extrapolates the feature of token
i + 1. At a *root* the drafter has true features; from there it goes on over its own outputs along the picture's own tokens, which are
those that the target accepts: pass j of a root is the state in which it drafts the token at depth j + 1. (Unrolled training: HASS, arXiv
2408.15766; EAGLE-3, arXiv 2503.01840.) All passes run the code and the geometry of inference.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import Tensor

from ..drafters.eagle import EagleDrafter
from ..models.cache import KVCache
from ..models.layers import rope_tables
from ..models.rows import Rows, Step
from ..models.target import Prompt, Target, with_grammar
from ..rules.sampling import Sampling, noise_table, process_logits
from .features import Features

CHILDREN = (1, 2, 4)
"""Acceptance is measured for the first so many children."""


@dataclass
class Reading:
    """What the target makes of a batch of pictures.

    prompts: of every row. features: [R, n + 1, h] of all tokens but the last. ids: [R, n], the token after each of the first n.
    z: processed logits [B, T - 1, V] of the codes behind the first. noise: the same shape, with which these codes are drawn; None at temperature 0.
    """

    prompts: list[Prompt]
    features: Tensor
    ids: Tensor
    z: Tensor
    noise: Tensor | None

    @property
    def first(self) -> int:
        """Stream element of the first root, at the first image token."""
        return self.ids.shape[1] - self.z.shape[1]

    def emitted(self) -> Tensor:
        """The codes [B, T - 1] that the target emits there."""
        return (self.z if self.noise is None else self.z + self.noise).argmax(-1)


def guided(target: Target, features: Tensor, sampling: Sampling) -> Tensor:
    """Features [R, n, h] -> guided logits [B, n, num_codes]."""
    return target.decoder.logits(features.to(target.decoder.wide_dtype), sampling.guidance)


@torch.no_grad()
def read(
    target: Target,
    prompts: list[Prompt],
    codes: Tensor,
    numbers: list[int],
    sampling: Sampling,
    kept: Features | None,
    noisy: bool,
) -> Reading:
    """One target forward over whole pictures, or its features as they were kept; None keeps none.

    prompts: the conditional rows. codes: [B, T]. numbers: those of the pictures, which are their image indices and part of
    the noise key. noisy: make the noise too, which measuring acceptance needs.
    """
    decoder, length, rows_ids = target.decoder, codes.shape[1], list(prompts)
    if sampling.guidance != 1:
        rows_ids += [target.unconditional(prompt) for prompt in prompts]
    rows = Rows(rows_ids, max(map(len, rows_ids)) + length - 1, decoder.embedding)
    ids = rows.spread(decoder.image_ids[codes.to(rows.device)])[:, :-1]
    features = kept.get(numbers, rows.pads.tolist(), decoder.norm) if kept is not None else None
    if features is None:
        cache, rope = (
            KVCache(decoder.config, rows.count, len(rows.columns), decoder.embedding),
            rope_tables(decoder.config, decoder.embedding),
        )
        text = decoder(rows.ids, rows.prefill(), cache, rope, None, rows.features)
        image = decoder(ids, rows.causal_step([rows.length] * len(codes), length - 1), cache, rope)
        features = torch.cat([text, image], 1)
        if kept is not None:
            features = kept.put(numbers, rows.pads.tolist(), features)
    z = process_logits(guided(target, features[:, rows.length :], sampling), sampling)
    z = with_grammar(z, target.grammar(z), torch.arange(1, length, device=rows.device))
    noise = noise_table(sampling, numbers, length, target.num_tokens, z) if noisy else None
    return Reading(rows_ids, features, torch.cat([rows.ids[:, 1:], ids], 1), z, None if noise is None else noise[:, 1:])


def unroll(drafter: EagleDrafter, reading: Reading, roots: Tensor, passes: int) -> Iterator[Tensor]:
    """Outputs [R, m, h] of each pass; that of pass j extrapolates the feature that decides the code ``roots + j + 1``.

    roots: [m] raster positions, ascending; ``roots + passes`` must lie inside the picture. Own features are taken without their gradient.
    """
    n = reading.ids.shape[1]
    rows = Rows(reading.prompts, n, drafter.embedding)
    rows = rows.unhidden() if drafter.config.grid_rope else rows
    text, image = rows.prefill(), rows.causal_step([rows.length] * len(reading.z), n - rows.length)
    positions = torch.cat([text.positions, image.positions], 1)
    mask = torch.cat([F.pad(text.mask, (0, n - rows.length), value=-math.inf), image.mask], 2)
    rope, cache = (
        rope_tables(drafter.config, drafter.embedding),
        KVCache(drafter.config, rows.count, n, drafter.embedding).data[0],
    )
    every = drafter(
        reading.ids, reading.features[:, :n], Step(positions, slice(0, n), mask), SimpleNamespace(data=[cache]), rope
    )
    at = reading.first + roots
    out = every[:, at]
    yield out
    own = torch.where(torch.eye(len(roots), dtype=torch.bool, device=at.device), 0.0, -math.inf).to(mask)[None, None]
    sight = mask[:, :, at]  # the true features up to the root, then the root's own pass by pass
    for j in range(1, passes):
        sight = torch.cat([sight, own.expand(rows.count, -1, -1, -1)], -1)
        cache = torch.cat([cache, cache.new_zeros(*cache.shape[:3], len(roots), cache.shape[4])], 3)
        step = Step(positions[:, at + j], slice(cache.shape[3] - len(roots), cache.shape[3]), sight)
        out = drafter(reading.ids[:, at + j], out.detach(), step, SimpleNamespace(data=[cache]), rope)
        yield out


def draft_logits(target: Target, out: Tensor, sampling: Sampling, positions: Tensor) -> Tensor:
    """The logits [B, m, V] by which inference ranks drafts of the raster ``positions`` [m], noise apart."""
    z = guided(target, out, sampling)
    return with_grammar(z if sampling.temperature in (0, 1) else z / sampling.temperature, target.grammar(z), positions)


def distribution_loss(q_logits: Tensor, p: Tensor) -> Tensor:
    """Per position, lambda * CE(p, q) + (1 - lambda) * TV(p, q), lambda = exp(-3 * overlap) (LK losses, arXiv 2602.23881).

    Coupled acceptance rises as the total variation falls; cross-entropy leads there from afar. q_logits, p: [..., V], p the target's
    distribution. CE has KL's gradient and is cheaper.
    """
    log_q = q_logits.log_softmax(-1)
    overlap = torch.minimum(p, log_q.exp()).sum(-1)
    weight = (-3 * overlap.detach()).exp()
    return weight * -torch.where(p > 0, p * log_q, 0).sum(-1) + (1 - weight) * (1 - overlap)


def training_loss(
    target: Target,
    drafter: EagleDrafter,
    reading: Reading,
    roots: Tensor,
    passes: int,
    sampling: Sampling,
    decay: float = 0.8,
    feature_weight: float = 0.1,
) -> Tensor:
    """Mean over roots and passes of the loss on the guided and processed distributions, pass j weighing ``decay ** j``, with a
    small share of the distance between features, which keeps their scale."""
    p = (
        F.one_hot(reading.z.argmax(-1), reading.z.shape[-1]).to(reading.z)
        if sampling.temperature == 0
        else reading.z.softmax(-1)
    )
    total = torch.zeros((), device=p.device)
    for j, out in enumerate(unroll(drafter, reading, roots, passes)):
        true = reading.features[:, reading.first + 1 + j + roots]
        loss = distribution_loss(draft_logits(target, out, sampling, roots + j + 1), p[:, roots + j]).mean()
        total = total + decay**j * (loss + feature_weight * F.smooth_l1_loss(out.to(true), true))
    return total / sum(decay**j for j in range(passes))


@torch.no_grad()
def acceptance(
    target: Target, drafter: EagleDrafter, reading: Reading, passes: int, sampling: Sampling
) -> tuple[Tensor, Tensor]:
    """Is the target's code among the drafter's first 1, 2, 4 children? Counts over all roots but the last few.

    Returns hits [passes, 3] by depth and number of children, as shares given that all drafts before were right, and the mean
    number of tokens that a chain of ``passes`` drafts yields per target forward.
    """
    roots = torch.arange(reading.z.shape[1] - passes + 1, device=reading.z.device)
    emitted, shares, alive, tau = reading.emitted(), [], None, 1.0
    for j, out in enumerate(unroll(drafter, reading, roots, passes)):
        q = draft_logits(target, out, sampling, roots + j + 1)
        if reading.noise is not None:
            q = q + reading.noise[:, roots + j]
        hits = q.topk(min(max(CHILDREN), q.shape[-1]), -1).indices == emitted[:, roots + j, None]
        shares.append(torch.stack([hits[..., :k].any(-1).float().mean() for k in CHILDREN]))
        alive = hits[..., 0] if alive is None else alive & hits[..., 0]
        tau += alive.float().mean().item()
    return torch.stack(shares), torch.tensor(tau)
