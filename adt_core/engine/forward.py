"""Forward passes of the target over the slots, from tokens to processed logits.

Dimensions: B images; R rows of the transformer's batch (2 * B with guidance, else B); n tokens or nodes per row;
h numbers in the feature vector of a token; V tokens in the vocabulary. `z` are processed logits, and `g` is the Gumbel
noise of the images.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..models.rows import AttentionMetadata
from ..models.target import grammar_at, guidance_at
from ..rules.sampling import is_finite, process_logits
from .request import PREFIX_CHUNK
from .slots import Slots


def forward(slots: Slots, codes: Tensor, metadata: AttentionMetadata, first: int = 0) -> Tensor:
    """Run the target on tokens that follow the committed tokens of each image, and write their keys to the KV cache.

    Args:
        codes: [B, n], codes of the tokens.
        metadata: Positions and attention mask of the tokens.
        first: Number of tokens from the root on that earlier forward passes have read.

    Returns:
        [R, n, h], features of the tokens.
    """
    request = slots.request
    rows = slots.rows
    decoder = request.target.decoder
    ids = rows.spread(decoder.image_ids.take(codes))
    if decoder.tile:
        metadata = rows.split_near_keys(metadata, rows.spread(slots.roots.at) + rows.cache_offset + first, request.near)
    check = None if request.replayed else request.check  # an exception from `check` would break a graph capture
    return decoder(ids, metadata, slots.cache, slots.tables.rope, check)


def read_causally(slots: Slots, codes: Tensor) -> Tensor:
    """Run the target on successive tokens of each image, the root first.

    As in :func:`prefill`, a forward pass in batch-invariant mode reads at most `PREFIX_CHUNK` tokens.

    Args:
        codes: [B, n], codes of the tokens.

    Returns:
        [R, n, h], features of the tokens.
    """
    size = codes.shape[1]
    chunk = PREFIX_CHUNK if slots.request.target.decoder.tile else size
    at = slots.rows.columns[:size].expand(len(codes), -1)
    features = []
    for first in range(0, size, chunk):
        own = at[:, first : first + chunk]
        if size <= chunk:
            metadata = slots.rows.causal_metadata(slots.roots, size)
        else:
            metadata = slots.rows.metadata(slots.roots, first, own, own[..., None] >= at[:, None, : first + chunk])
        features.append(forward(slots, codes[:, first : first + chunk], metadata, first))
    return features[0] if len(features) == 1 else torch.cat(features, 1)


def prefill(slots: Slots, metadata: AttentionMetadata) -> Tensor:
    """Run the target on the prompts and prefixes, and write to its KV cache.

    Without batch-invariant mode, one forward pass reads all tokens. In batch-invariant mode
    (:mod:`..models.batch_invariance`), a prefix must have the same features as if it were generated. Therefore the
    prefix is read after the prompt, in separate forward passes of at most `PREFIX_CHUNK` tokens. If the device has no
    kernel for far keys (`Request.near` is None), the prompt is also read in such passes. In a single pass, the padding
    of the prompt would change the features.

    Args:
        metadata: Positions and attention mask of all tokens.

    Returns:
        [R, n, h], features of all n tokens of the prompts and prefixes, padding included.
    """
    request = slots.request
    rows = slots.rows
    decoder = request.target.decoder
    if not decoder.tile:
        unsplit = rows.length
    elif request.near is not None:
        unsplit = rows.cache_offset
    else:
        unsplit = 0
    starts = [*([0] if unsplit else []), *range(unsplit, rows.length, PREFIX_CHUNK)]
    features = []
    for start, end in zip(starts, [*starts[1:], rows.length]):
        part = metadata.part(start, end)
        if start >= unsplit:
            part = rows.split_near_keys(part, start, request.near)
        inputs = None if rows.features is None else rows.features[:, start:end]
        features.append(decoder(rows.ids[:, start:end], part, slots.cache, slots.tables.rope, request.check, inputs))
    return features[0] if len(features) == 1 else torch.cat(features, 1)


def logits(slots: Slots, features: Tensor, depths: Tensor | int) -> Tensor:
    """Return the logits z [B, n, V] of the token after each node: with guidance, temperature, filters and grammar.

    Args:
        features: [R, n, h], features of the nodes.
        depths: [B, n], depth of each node below its root, or one depth for all nodes.
    """
    request = slots.request
    tables = slots.tables
    positions = slots.roots.at + 1 + depths
    z = request.target.decoder.logits(features, guidance_at(tables.guidance, positions))
    return process_logits(z, request.sampling, grammar_at(tables.grammar, positions))


def emitted_codes(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Return the code with the largest score z + g at each node, and whether this score is finite, [B, n] each.

    The score is NaN if any of the logits is NaN, and infinite after an overflow. Then the logits are not usable.

    Args:
        scores: [B, n, V].
    """
    codes = scores.argmax(-1)
    return codes, is_finite(scores.gather(-1, codes[..., None])[..., 0])


def add_noise(slots: Slots, z: Tensor, depths: Tensor | int) -> Tensor:
    """Return the scores z + g [B, n, V] after each node. The token with the largest score is the sample (Gumbel-max).

    At temperature 0 there is no noise, and the scores are z. `z` and `depths` are result and argument of
    :func:`logits`.
    """
    return z if slots.noise is None else z + slots.noise.at(slots.roots.at + 1 + depths)
