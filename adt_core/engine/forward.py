"""Forward passes of the target over the slots, from tokens to processed logits.

Nothing here waits for the device, so that rounds can be captured as CUDA graphs.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..models.rows import AttentionMetadata
from ..models.target import grammar_at, guidance_at
from ..rules.sampling import process_logits
from .request import PREFIX_CHUNK
from .slots import Slots


def forward(slots: Slots, codes: Tensor, step: AttentionMetadata) -> Tensor:
    """Run the target on tokens after the committed ones.

    Args:
        slots: State of the images; the KV cache is written.
        codes: Codes [B, n] of the tokens, roots first.
        step: Their positions and attention mask.

    Returns:
        Features [R, n, h].
    """
    request = slots.request
    rows = slots.rows
    decoder = request.target.decoder
    ids = rows.spread(decoder.image_ids[codes])
    if decoder.tile:
        step = rows.split_near_keys(step, rows.spread(slots.roots.at) + rows.cache_offset, request.near)
    check = None if request.replayed else request.check  # an exception would break a capture
    return decoder(ids, step, slots.cache, slots.tables.rope, check)


def prefill(slots: Slots, step: AttentionMetadata) -> Tensor:
    """Run the target on the prompts and prefixes.

    The batch-invariant mode reads prefixes as if they were generated: in separate forward passes of at most
    `PREFIX_CHUNK` tokens. It also reads prompts like this if all keys count as near, because their padding would
    change the result otherwise.

    Args:
        slots: State of the images; the KV cache is written.
        step: Positions and attention mask of all tokens.

    Returns:
        Features [R, n, h].
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
        part = step.part(start, end)
        if start >= unsplit:
            part = rows.split_near_keys(part, start, request.near)
        inputs = None if rows.features is None else rows.features[:, start:end]
        features.append(decoder(rows.ids[:, start:end], part, slots.cache, slots.tables.rope, request.check, inputs))
    return features[0] if len(features) == 1 else torch.cat(features, 1)


def logits(slots: Slots, features: Tensor, depths: Tensor | int) -> Tensor:
    """Return the logits of the tokens after nodes, with guidance, temperature, filters and grammar applied.

    Args:
        slots: State of the images.
        features: Features [R, n, h] of the nodes.
        depths: Depths [B, n] of the nodes below their roots, or one depth for all.

    Returns:
        Processed logits z [B, n, V].
    """
    request = slots.request
    tables = slots.tables
    positions = slots.roots.at + 1 + depths
    z = request.target.decoder.logits(features, guidance_at(tables.guidance, positions))
    return process_logits(z, request.sampling, grammar_at(tables.grammar, positions))


def emitted_codes(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Return the code that the target emits after each node, and whether its score is a finite number.

    One NaN among the logits makes the largest score NaN, and an overflow makes it infinite.

    Args:
        scores: Scores z + g [B, n, V].

    Returns:
        Codes [B, n], and [B, n] bool.
    """
    codes = scores.argmax(-1)
    return codes, scores.gather(-1, codes[..., None])[..., 0].isfinite()


def add_noise(slots: Slots, z: Tensor, depths: Tensor | int) -> Tensor:
    """Return the scores z + g of the tokens after nodes; their maximum is the sampled token (Gumbel-max).

    Args:
        slots: State of the images.
        z: Processed logits [B, n, V].
        depths: Depths [B, n] of the nodes below their roots, or one depth for all.

    Returns:
        Scores [B, n, V]; z itself at temperature 0.
    """
    return z if slots.noise is None else z + slots.noise.at(slots.roots.at + 1 + depths)
