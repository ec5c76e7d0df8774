"""Unrolled forward passes of a drafter over complete images, with the training loss and the acceptance.

A *feature* is the target's final hidden state of a token. Element i of the drafter's input sequence is the pair
(feature of token i, token i + 1). The drafter's output for this element predicts the feature of token i + 1, and so the
logits of token i + 2.
Training and inference use the same code and the same positions.

At inference, the target's features exist only up to the root of the draft tree. To draft deeper, the drafter reads its
own outputs instead of features. *Unrolled* training imitates this: from a *root* position on, each further pass reads
the output of the pass before. At inference, this output would be paired with a draft. In training it is paired with the
image's token at the same position, because a draft is accepted only if it equals this token. Pass j predicts the token
at depth j + 1 below the root. (HASS, arXiv 2408.15766; EAGLE-3, arXiv 2503.01840.)

Example: the root is the token at raster position 3. Pass 0 reads pairs up to (feature of token 2, token 3). Its last
output predicts token 4, a draft at depth 1. Pass 1 then reads the pair (output of pass 0, token 4). Its output predicts
token 5, a draft at depth 2.

Dimensions:

- B images of T tokens.
- R batch rows: 2 * B with guidance, else B.
- n elements of the drafter's input sequence.
- m roots.
- h numbers in a feature.
- V codes.
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
from ...models.layers import LayerContext
from ...models.rotary import rope_tables
from ...models.rows import AttentionMetadata, BatchRows, Roots
from ...models.target import EncodedPrompt, Target, grammar_at, guidance_at
from ...rules.sampling import noise_table, process_logits
from ...settings import Sampling
from .features import Features

CHILDREN = (1, 2, 4)
"""Acceptance is measured for these numbers of most probable children of a node: the best child, the best 2 and 4."""
DECAY = 0.8
"""Weight of a pass in the loss, relative to the pass before: pass j has the weight 0.8 ** j."""
FEATURE_WEIGHT = 0.1
"""Weight of the distance between predicted and true features in the loss."""


@dataclass
class TargetOutputs:
    """Outputs of the target for a batch of images.

    A row is a prompt followed by the tokens of an image: n + 2 tokens, with the numbers 0 to n + 1. The drafter reads
    the features of the tokens 0 to n - 1. The feature of token n is only used as a target of training. The feature of
    token n + 1 is not needed.

    Attributes:
        numbers: Index of each image.
        prompts: Prompt of each row.
        features: [R, n + 1, h], features of all tokens of a row except the last token.
        ids: [R, n], tokens 1 to n of a row. Pair i of the drafter's input is `features[:, i]` with `ids[:, i]`.
        z: [B, T - 1, V], processed logits of all image tokens except the first token.
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
        """Index of the pair whose token is the first image token, in the drafter's input sequence."""
        return self.ids.shape[1] - self.z.shape[1]

    def paired(self, pairing: Pairing) -> TargetOutputs:
        """Return the same outputs, with `ids` for a drafter that was trained with another pairing."""
        first = torch.tensor([[prompt[0]] for prompt in self.prompts], device=self.ids.device)
        every = torch.cat([first, self.ids], 1)
        return replace(self, ids=paired_ids(pairing, every, self.target.decoder.image_ids))

    def draft_logits(self, out: Tensor, positions: Tensor) -> Tensor:
        """Return the logits by which drafts are ranked, without noise.

        Args:
            out: [R, m, h], outputs of the drafter.
            positions: [m], raster position of the draft that each output predicts.

        Returns:
            [B, m, V].
        """
        grammar = grammar_at(self.target.grammar(self.z), positions)
        guidance = guidance_at(self.target.guidance(self.sampling.guidance_scale, self.z), positions)
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
    """Return the outputs of the target for complete images. The features come from a cache if possible.

    Args:
        codes: [B, T], codes of the images.
        numbers: Index of each image. The index determines the noise of the image and its entry in the cache.
        stored: Feature cache; None to run the target without a cache.
    """
    decoder = target.decoder
    length = codes.shape[1]
    prompts = list(prompts)
    if sampling.guidance_scale != 1:
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
    z = decoder.logits(image_features, guidance_at(target.guidance(sampling.guidance_scale, image_features), positions))
    z = process_logits(z, sampling, grammar_at(target.grammar(z), positions))
    return TargetOutputs(target, sampling, numbers, prompts, features, torch.cat([rows.ids[:, 1:], ids], 1), z)


def _run_target(target: Target, rows: BatchRows, ids: Tensor, images: int) -> Tensor:
    """Return the target's features of the prompts, followed by its features of the image tokens `ids` [R, T - 1]."""
    decoder = target.decoder
    cache = KVCache(decoder.config, rows.count, len(rows.columns), decoder.embedding)
    text, image = _steps(rows, images, ids.shape[1])
    features = decoder(rows.ids, text, cache, target.rope, None, rows.features)
    return torch.cat([features, decoder(ids, image, cache, target.rope)], 1)


def _steps(rows: BatchRows, images: int, n: int) -> tuple[AttentionMetadata, AttentionMetadata]:
    """Return positions and masks of two forward passes: over the prompts, and over the n image tokens after them."""
    first = torch.zeros(images, dtype=torch.long, device=rows.device)
    return rows.prefill(), rows.causal_metadata(Roots.all_at(first, 0), n)


def unroll(drafter: EagleDrafter, outputs: TargetOutputs, roots: Tensor, passes: int) -> Iterator[Tensor]:
    """Run several passes of the drafter from every root. No gradients flow from one pass to the pass before.

    Args:
        roots: [m], raster positions of the roots, ascending. `roots + passes` must be positions of the image.

    Yields:
        [R, m, h], outputs of one pass. The outputs of pass j determine the drafts at the positions `roots + j + 1`.
    """
    n = outputs.ids.shape[1]
    rows = BatchRows(outputs.prompts, n, drafter.embedding)
    rows = rows.unhidden() if drafter.config.grid_rope else rows
    text, image = _steps(rows, len(outputs.z), n - rows.length)
    positions = torch.cat([text.positions, image.positions], 1)
    mask = torch.cat([F.pad(text.mask, (0, n - rows.length), value=-math.inf), image.mask], 2)
    rope = rope_tables(drafter.config, drafter.embedding)
    cache = KVCache(drafter.config, rows.count, n, drafter.embedding).data[0]

    def call(ids: Tensor, features: Tensor, metadata: AttentionMetadata) -> Tensor:
        context = LayerContext.of(metadata, rope, drafter.config)
        return drafter(ids, features, context, SimpleNamespace(data=[cache]))

    all_out = call(outputs.ids, outputs.features[:, :n], AttentionMetadata(positions, slice(0, n), mask))
    at = outputs.first + roots
    out = all_out[:, at]
    yield out
    own = torch.where(torch.eye(len(roots), dtype=torch.bool, device=at.device), 0.0, -math.inf).to(mask)[None, None]
    visible = mask[:, :, at]  # each root sees the pairs up to it; each further pass adds one pair per root
    for j in range(1, passes):
        visible = torch.cat([visible, own.expand(rows.count, -1, -1, -1)], -1)
        end = cache.shape[3]
        cache = F.pad(cache, (0, 0, 0, len(roots)))  # a longer copy, because autograd needs the old cache unchanged
        out = call(
            outputs.ids[:, at + j],
            out.detach(),
            AttentionMetadata(positions[:, at + j], slice(end, cache.shape[3]), visible),
        )
        yield out


def distribution_loss(q_logits: Tensor, p: Tensor) -> Tensor:
    """Return the loss between the distributions q of the drafter and p of the target (LK losses, arXiv 2602.23881).

    The loss is lambda * CE + (1 - lambda) * TV. CE is the cross-entropy of q under p. It has the same gradient as the
    KL divergence. TV is the total variation, 1 - overlap, where overlap is the sum of min(p, q). The weight lambda is
    exp(-3 * overlap). So CE dominates while the distributions are very different. Later TV dominates. A lower total
    variation raises the acceptance rate of drafts that are chosen with the target's noise (`proposal` is `coupled`).

    Args:
        q_logits: [..., V], logits of the drafter.
        p: [..., V], probabilities of the target.

    Returns:
        [...], the loss.
    """
    log_q = q_logits.log_softmax(-1)
    overlap = torch.minimum(p, log_q.exp()).sum(-1)
    weight = (-3 * overlap.detach()).exp()
    return weight * -torch.where(p > 0, p * log_q, 0).sum(-1) + (1 - weight) * (1 - overlap)


def training_loss(drafter: EagleDrafter, outputs: TargetOutputs, roots: Tensor, passes: int) -> Tensor:
    """Return the mean loss over roots and passes, a scalar. Pass j has the weight `DECAY ** j`.

    The loss of a pass is :func:`distribution_loss` plus a small part (`FEATURE_WEIGHT`) for the distance between
    predicted and true features. This part keeps the predicted features at the scale of the true features.

    Args:
        roots: [m], raster positions of the roots, ascending.
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
    """Measure the acceptance of a drafter on complete images.

    Every image token that is followed by at least `passes` tokens is a root.

    Returns:
        Means over all roots, by name. "tau" is the number of tokens that a chain of `passes` drafts yields per target
        pass. "depth D of K" is the share of roots at which the target's token is among the K most probable children at
        depth D, if all drafts above are correct.
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
