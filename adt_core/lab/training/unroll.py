"""Unrolled forward passes of a drafter over complete images, with loss and acceptance.

Element i of the drafter's input sequence is the pair (target's feature of token i, token i + 1), as at inference. Its
output predicts the feature of token i + 1.

Up to a *root* position, the drafter reads the target's features. From there on it reads its own outputs, paired with
the tokens of the image, because only drafts equal to them are accepted. Pass j predicts the token at depth j + 1
below the root. All passes use the code and the positions of inference.

Example with root 3 (raster positions): the last pair that pass 0 reads is (target's feature of token 2, token 3), and
its output decides the draft for token 4, at depth 1. Pass 1 also reads (output of pass 0, token 4), and its output
decides the draft for token 5, at depth 2.

Unrolled training: HASS (arXiv 2408.15766), EAGLE-3 (arXiv 2503.01840).
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
from ...models.target import EncodedPrompt, Target, grammar_at, guidance_at
from ...rules.sampling import noise_table, process_logits
from ...rules.settings import Sampling
from .features import Features

CHILDREN = (1, 2, 4)
"""Numbers of children of a node for which acceptance is measured."""
DECAY = 0.8
"""Weight of a pass in the loss, relative to the previous pass."""
FEATURE_WEIGHT = 0.1
"""Weight of the distance between features in the loss."""


@dataclass
class TargetOutputs:
    """Outputs of the target for a batch of B images of T tokens, in R rows (2 * B with guidance).

    With its prompt, a row has n + 2 tokens.

    Attributes:
        target: The target.
        sampling: Sampling settings of the logits.
        numbers: Image index of each image.
        prompts: Prompt of each row.
        features: Features of all tokens of a row except the last, [R, n + 1, h].
        ids: Tokens 1 to n of a row, the partners of the first n features, [R, n].
        z: Processed logits of all codes except the first, [B, T - 1, V].
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
        """Index of the first root, the first image token, in the drafter's input sequence."""
        return self.ids.shape[1] - self.z.shape[1]

    def paired(self, pairing: Pairing) -> TargetOutputs:
        """Return the outputs with the token ids that a drafter with this pairing reads.

        Args:
            pairing: Pairing of features and tokens.
        """
        first = torch.tensor([[prompt[0]] for prompt in self.prompts], device=self.ids.device)
        every = torch.cat([first, self.ids], 1)
        return replace(self, ids=paired_ids(pairing, every, self.target.decoder.image_ids))

    def draft_logits(self, out: Tensor, positions: Tensor) -> Tensor:
        """Return the logits that rank drafts, without noise.

        Args:
            out: Outputs of the drafter [R, m, h].
            positions: Raster positions [m].

        Returns:
            [B, m, V].
        """
        grammar = grammar_at(self.target.grammar(self.z), positions)
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
    """Run the target over complete images, or take its features from a cache.

    Args:
        target: The target.
        prompts: Prompt of each image.
        codes: Tokens of the images [B, T].
        numbers: Image index of each image, which keys its noise and its cached features.
        sampling: Sampling settings of the logits.
        stored: Feature cache, or None.
    """
    decoder = target.decoder
    length = codes.shape[1]
    prompts = list(prompts)
    if sampling.guidance != 1:
        prompts += [target.unconditional(prompt) for prompt in prompts]
    rows = BatchRows(
        prompts, max(map(len, prompts)) + length - 1, decoder.embedding, mrope_positions=target.mrope_positions
    )
    ids = rows.spread(decoder.image_ids[codes.to(rows.device)])[:, :-1]
    pads = rows.pads.tolist()
    features = stored.get(numbers, pads, rows.device) if stored is not None else None
    if features is None:
        features = _run_target(target, rows, ids, len(codes))
        features = features if stored is None else stored.put(numbers, pads, features)
    positions = torch.arange(1, length, device=rows.device)
    image_features = features[:, rows.length :].to(decoder.wide_dtype)
    z = decoder.logits(image_features, guidance_at(target.guidance(sampling.guidance, image_features), positions))
    z = process_logits(z, sampling, grammar_at(target.grammar(z), positions))
    return TargetOutputs(target, sampling, numbers, prompts, features, torch.cat([rows.ids[:, 1:], ids], 1), z)


def _run_target(target: Target, rows: BatchRows, ids: Tensor, images: int) -> Tensor:
    """Return the features of the prompts and of the image tokens `ids` [R, n] after them."""
    decoder = target.decoder
    cache = KVCache(decoder.config, rows.count, len(rows.columns), decoder.embedding)
    text, image = _steps(rows, images, ids.shape[1])
    features = decoder(rows.ids, text, cache, target.rope, None, rows.features)
    return torch.cat([features, decoder(ids, image, cache, target.rope)], 1)


def _steps(rows: BatchRows, images: int, n: int) -> tuple[AttentionMetadata, AttentionMetadata]:
    """Return the forward passes over the prompts, and over the n image tokens after them."""
    first = torch.zeros(images, dtype=torch.long, device=rows.device)
    return rows.prefill(), rows.causal_step(Roots.all_at(first, 0), n)


def unroll(drafter: EagleDrafter, outputs: TargetOutputs, roots: Tensor, passes: int) -> Iterator[Tensor]:
    """Run the drafter for several passes from every root. Outputs that later passes read carry no gradients.

    Args:
        drafter: Drafter to run.
        outputs: Outputs of the target.
        roots: Raster positions [m], ascending. `roots + passes` must be positions of the image.
        passes: Number of passes.

    Yields:
        Outputs [R, m, h] of each pass. Pass j predicts the features that determine the codes at `roots + j + 1`.
    """
    n = outputs.ids.shape[1]
    rows = BatchRows(outputs.prompts, n, drafter.embedding)
    rows = rows.unhidden() if drafter.config.grid_rope else rows
    text, image = _steps(rows, len(outputs.z), n - rows.length)
    positions = torch.cat([text.positions, image.positions], 1)
    mask = torch.cat([F.pad(text.mask, (0, n - rows.length), value=-math.inf), image.mask], 2)
    rope = rope_tables(drafter.config, drafter.embedding)
    cache = KVCache(drafter.config, rows.count, n, drafter.embedding).data[0]

    def call(ids: Tensor, features: Tensor, step: AttentionMetadata) -> Tensor:
        return drafter(ids, features, step, SimpleNamespace(data=[cache]), rope)

    all_out = call(outputs.ids, outputs.features[:, :n], AttentionMetadata(positions, slice(0, n), mask))
    at = outputs.first + roots
    out = all_out[:, at]
    yield out
    own = torch.where(torch.eye(len(roots), dtype=torch.bool, device=at.device), 0.0, -math.inf).to(mask)[None, None]
    visible = mask[:, :, at]  # up to the root; a pass adds the root's output of the previous one
    for j in range(1, passes):
        visible = torch.cat([visible, own.expand(rows.count, -1, -1, -1)], -1)
        end = cache.shape[3]
        cache = F.pad(cache, (0, 0, 0, len(roots)))  # a copy, because autograd needs the previous one
        out = call(
            outputs.ids[:, at + j],
            out.detach(),
            AttentionMetadata(positions[:, at + j], slice(end, cache.shape[3]), visible),
        )
        yield out


def distribution_loss(q_logits: Tensor, p: Tensor) -> Tensor:
    """Return lambda * CE(p, q) + (1 - lambda) * TV(p, q) with lambda = exp(-3 * overlap) (LK losses, arXiv 2602.23881).

    A lower total variation raises the acceptance rate of coupled sampling. Cross-entropy, which has the gradient of the
    KL divergence and is cheaper, dominates while the distributions differ strongly.

    Args:
        q_logits: Logits of the drafter [..., V].
        p: Distribution of the target [..., V].

    Returns:
        Loss [...].
    """
    log_q = q_logits.log_softmax(-1)
    overlap = torch.minimum(p, log_q.exp()).sum(-1)
    weight = (-3 * overlap.detach()).exp()
    return weight * -torch.where(p > 0, p * log_q, 0).sum(-1) + (1 - weight) * (1 - overlap)


def training_loss(drafter: EagleDrafter, outputs: TargetOutputs, roots: Tensor, passes: int) -> Tensor:
    """Return the mean loss over roots and passes, in which pass j has the weight `DECAY ** j`.

    A small part of the loss is the distance between predicted and true features, which keeps their scale.

    Args:
        drafter: Drafter to train.
        outputs: Outputs of the target.
        roots: Raster positions [m], ascending.
        passes: Number of passes.
    """
    z = outputs.z
    p = F.one_hot(z.argmax(-1), z.shape[-1]).to(z) if outputs.sampling.greedy else z.softmax(-1)
    total = torch.zeros((), device=p.device)
    for j, out in enumerate(unroll(drafter, outputs, roots, passes)):
        features = outputs.features[:, outputs.first + 1 + j + roots]
        loss = distribution_loss(outputs.draft_logits(out, roots + j + 1), p[:, roots + j]).mean()
        total = total + DECAY**j * (loss + FEATURE_WEIGHT * F.smooth_l1_loss(out.to(features), features))
    return total / sum(DECAY**j for j in range(passes))


@torch.no_grad()
def acceptance(drafter: EagleDrafter, outputs: TargetOutputs, passes: int) -> dict[str, float]:
    """Measure the acceptance of a drafter from all roots except the last few.

    Args:
        drafter: Drafter to measure.
        outputs: Outputs of the target.
        passes: Number of draft depths.

    Returns:
        "tau": mean number of tokens that a chain of `passes` drafts yields per target pass. "depth D of K": share of
        roots at which the target's code is among the first K children at depth D, given correct earlier drafts.
    """
    z = outputs.z
    device = z.device
    roots = torch.arange(z.shape[1] - passes + 1, device=device)
    noise = noise_table(outputs.sampling, outputs.numbers, z.shape[1] + 1, outputs.target.num_tokens, z)
    noise = torch.zeros_like(z) if noise is None else noise[:, 1:]
    emitted = (z + noise).argmax(-1)
    accepted = torch.tensor(True, device=device)
    shares = {"tau": 1.0}
    for j, out in enumerate(unroll(drafter, outputs, roots, passes)):
        q = outputs.draft_logits(out, roots + j + 1) + noise[:, roots + j]
        hits = q.topk(min(max(CHILDREN), q.shape[-1]), -1).indices == emitted[:, roots + j, None]
        shares |= {f"depth {j + 1} of {k}": hits[..., :k].any(-1).float().mean().item() for k in CHILDREN}
        accepted = accepted & hits[..., 0]
        shares["tau"] += accepted.float().mean().item()
    return shares
