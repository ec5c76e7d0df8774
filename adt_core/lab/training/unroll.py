"""A drafter over whole pictures: what it is trained on, its loss, its acceptance.

Element i of the drafter's stream is the pair (target's feature of token i, token i + 1), as at inference. Its output
extrapolates the feature of token i + 1.

A *root* is a position up to which the drafter has the target's features. Behind it, it goes on over its own outputs,
along the picture's own tokens, because those are the tokens that the target accepts. Pass j of a root is the state in
which the drafter drafts the token at depth j + 1. All passes run the code and the geometry of inference. (Unrolled
training: HASS, arXiv 2408.15766; EAGLE-3, arXiv 2503.01840.)
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import Tensor

from ...drafters import eagle
from ...drafters.eagle import EagleDrafter, Pairing, paired_ids
from ...models.cache import KVCache
from ...models.rotary import rope_tables
from ...models.rows import AttentionMetadata, BatchRows, Roots
from ...models.target import EncodedPrompt, Target, guidance_at, with_grammar
from ...rules.sampling import noise_table, process_logits
from ...rules.settings import Sampling
from .features import Features

CHILDREN = (1, 2, 4)
"""Acceptance is measured for these numbers of children of a node."""
DECAY = 0.8
"""Weight of a pass in the loss, relative to the pass before."""
FEATURE_WEIGHT = 0.1
"""Weight of the distance between features in the loss."""


@dataclass
class TargetOutputs:
    """What the target makes of a batch of B pictures of T tokens, in R rows.

    numbers: the pictures' image indices. prompts: of every row. features: [R, n + 1, h], of all tokens but the last.
    ids: [R, n], the token after each of the first n. z: [B, T - 1, V], processed logits of all codes but the first.
    """

    target: Target
    sampling: Sampling
    numbers: list[int]
    prompts: list[EncodedPrompt]
    features: Tensor
    ids: Tensor
    z: Tensor

    @property
    def first(self) -> int:
        """Element of the stream at the first root, the first image token."""
        return self.ids.shape[1] - self.z.shape[1]

    def paired(self, pairing: Pairing) -> TargetOutputs:
        """The same with other ids: those that a drafter of this pairing is fed with."""
        first = torch.tensor([[prompt[0]] for prompt in self.prompts], device=self.ids.device)
        every = torch.cat([first, self.ids], 1)
        return replace(self, ids=paired_ids(pairing, every, self.target.decoder.image_ids))

    def draft_logits(self, out: Tensor, positions: Tensor) -> Tensor:
        """Outputs [R, m, h] at raster ``positions`` [m] -> the logits [B, m, V] that rank drafts, without noise."""
        grammar = self.target.grammar(self.z)
        grammar = None if grammar is None else grammar[positions % len(grammar)]
        guidance = guidance_at(self.target.guidance(self.sampling.guidance, self.z), positions)
        return eagle.draft_logits(self.target.decoder, out, self.sampling, grammar, guidance)


@torch.no_grad()
def read(
    target: Target,
    prompts: list[EncodedPrompt],
    codes: Tensor,
    numbers: list[int],
    sampling: Sampling,
    stored: Features | None,
) -> TargetOutputs:
    """One forward of the target over whole pictures, or its features from ``stored``.

    prompts: of the conditional rows. codes: [B, T]. numbers: the pictures' image indices, which key noise and features.
    """
    decoder, length = target.decoder, codes.shape[1]
    prompts = list(prompts)
    if sampling.guidance != 1:
        prompts += [target.unconditional(prompt) for prompt in prompts]
    rows = BatchRows(
        prompts, max(map(len, prompts)) + length - 1, decoder.embedding, mrope_positions=target.mrope_positions
    )
    ids, pads = rows.spread(decoder.image_ids[codes.to(rows.device)])[:, :-1], rows.pads.tolist()
    features = stored.get(numbers, pads, rows.device) if stored is not None else None
    if features is None:
        cache = KVCache(decoder.config, rows.count, len(rows.columns), decoder.embedding)
        rope = target.rope
        text, image = _steps(rows, len(codes), length - 1)
        features = decoder(rows.ids, text, cache, rope, None, rows.features)
        features = torch.cat([features, decoder(ids, image, cache, rope)], 1)
        features = features if stored is None else stored.put(numbers, pads, features)
    at, drawing = torch.arange(1, length, device=rows.device), features[:, rows.length :].to(decoder.wide_dtype)
    z = decoder.logits(drawing, guidance_at(target.guidance(sampling.guidance, drawing), at))
    z = with_grammar(process_logits(z, sampling), target.grammar(z), at)
    return TargetOutputs(target, sampling, numbers, prompts, features, torch.cat([rows.ids[:, 1:], ids], 1), z)


def _steps(rows: BatchRows, images: int, n: int) -> tuple[AttentionMetadata, AttentionMetadata]:
    """The forwards over the prompts, and over the n image tokens behind them."""
    first = torch.zeros(images, dtype=torch.long, device=rows.device)
    return rows.prefill(), rows.causal_step(Roots.all_at(first, 0), n)


def unroll(drafter: EagleDrafter, reading: TargetOutputs, roots: Tensor, passes: int) -> Iterator[Tensor]:
    """Outputs [R, m, h] of each pass. Those of pass j extrapolate the features that decide the codes ``roots + j + 1``.

    roots: [m] raster positions, ascending; ``roots + passes`` must lie within the picture. A pass has no gradient with
    respect to the outputs that it goes on over.
    """
    n = reading.ids.shape[1]
    rows = BatchRows(reading.prompts, n, drafter.embedding)
    rows = rows.unhidden() if drafter.config.grid_rope else rows
    text, image = _steps(rows, len(reading.z), n - rows.length)
    positions = torch.cat([text.positions, image.positions], 1)
    mask = torch.cat([F.pad(text.mask, (0, n - rows.length), value=-math.inf), image.mask], 2)
    rope = rope_tables(drafter.config, drafter.embedding)
    cache = KVCache(drafter.config, rows.count, n, drafter.embedding).data[0]

    def call(ids: Tensor, features: Tensor, step: AttentionMetadata) -> Tensor:
        return drafter(ids, features, step, SimpleNamespace(data=[cache]), rope)

    every = call(reading.ids, reading.features[:, :n], AttentionMetadata(positions, slice(0, n), mask))
    at = reading.first + roots
    out = every[:, at]
    yield out
    own = torch.where(torch.eye(len(roots), dtype=torch.bool, device=at.device), 0.0, -math.inf).to(mask)[None, None]
    sight = mask[:, :, at]  # the target's features up to the root, then the root's own outputs, pass by pass
    for j in range(1, passes):
        sight = torch.cat([sight, own.expand(rows.count, -1, -1, -1)], -1)
        end = cache.shape[3]
        cache = F.pad(cache, (0, 0, 0, len(roots)))  # a copy: autograd still needs the one before
        out = call(
            reading.ids[:, at + j],
            out.detach(),
            AttentionMetadata(positions[:, at + j], slice(end, cache.shape[3]), sight),
        )
        yield out


def distribution_loss(q_logits: Tensor, p: Tensor) -> Tensor:
    """Loss [...] of the drafter's logits [..., V] against the target's distribution ``p`` [..., V].

    lambda * CE(p, q) + (1 - lambda) * TV(p, q) with lambda = exp(-3 * overlap) (LK losses, arXiv 2602.23881): coupled
    acceptance rises as the total variation falls, and cross-entropy leads there from afar. Cross-entropy has the
    gradient of the KL divergence and is cheaper.
    """
    log_q = q_logits.log_softmax(-1)
    overlap = torch.minimum(p, log_q.exp()).sum(-1)
    weight = (-3 * overlap.detach()).exp()
    return weight * -torch.where(p > 0, p * log_q, 0).sum(-1) + (1 - weight) * (1 - overlap)


def training_loss(drafter: EagleDrafter, reading: TargetOutputs, roots: Tensor, passes: int) -> Tensor:
    """Mean loss over roots and passes; pass j weighs ``DECAY ** j``. A small share is the distance between features,
    which keeps their scale."""
    z = reading.z
    p = F.one_hot(z.argmax(-1), z.shape[-1]).to(z) if reading.sampling.greedy else z.softmax(-1)
    total = torch.zeros((), device=p.device)
    for j, out in enumerate(unroll(drafter, reading, roots, passes)):
        true = reading.features[:, reading.first + 1 + j + roots]
        loss = distribution_loss(reading.draft_logits(out, roots + j + 1), p[:, roots + j]).mean()
        total = total + DECAY**j * (loss + FEATURE_WEIGHT * F.smooth_l1_loss(out.to(true), true))
    return total / sum(DECAY**j for j in range(passes))


@torch.no_grad()
def acceptance(drafter: EagleDrafter, reading: TargetOutputs, passes: int) -> dict[str, float]:
    """How well the drafter drafts, over all roots but the last few.

    "tau" is the mean number of tokens that a chain of ``passes`` drafts yields per forward of the target. "depth D of
    K" is how often the target's code is among the first K children at depth D, if all drafts before were right.
    """
    z, device = reading.z, reading.z.device
    roots = torch.arange(z.shape[1] - passes + 1, device=device)
    noise = noise_table(reading.sampling, reading.numbers, z.shape[1] + 1, reading.target.num_tokens, z)
    noise = torch.zeros_like(z) if noise is None else noise[:, 1:]
    emitted, alive = (z + noise).argmax(-1), torch.tensor(True, device=device)
    shares = {"tau": 1.0}
    for j, out in enumerate(unroll(drafter, reading, roots, passes)):
        q = reading.draft_logits(out, roots + j + 1) + noise[:, roots + j]
        hits = q.topk(min(max(CHILDREN), q.shape[-1]), -1).indices == emitted[:, roots + j, None]
        shares |= {f"depth {j + 1} of {k}": hits[..., :k].any(-1).float().mean().item() for k in CHILDREN}
        alive = alive & hits[..., 0]
        shares["tau"] += alive.float().mean().item()
    return shares
