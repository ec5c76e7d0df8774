"""The target at work on the slots: tokens in, processed logits out. Nothing here waits for the device."""

from __future__ import annotations

import torch
from torch import Tensor

from ..models.rows import AttentionMetadata
from ..models.target import guidance_at, with_grammar
from ..rules.sampling import process_logits
from .request import PREFIX_AT_ONCE
from .slots import Slots


def forward(slots: Slots, codes: Tensor, step: AttentionMetadata) -> Tensor:
    """Codes [B, n] through the target: features [R, n, h]. step: of tokens from the roots on."""
    request, decoder, rows = slots.request, slots.request.target.decoder, slots.rows
    ids = rows.spread(decoder.image_ids[codes])
    if decoder.tile:
        step = rows.near_apart(step, rows.spread(slots.roots.at) + rows.cache_offset, request.near)
    check = None if request.replayed else request.check  # nothing may be raised in the middle of a capture
    return decoder(ids, step, slots.cache, slots.tables.rope, check)


def prefill(slots: Slots, step: AttentionMetadata) -> Tensor:
    """The prompts and the prefixes through the target: features [R, n, h].

    In the exact mode prefixes are read as if they were drawn: apart from the prompts, and a few at a time. So are
    prompts where all keys are near: else their padding would show.
    """
    request, rows, decoder = slots.request, slots.rows, slots.request.target.decoder
    exact = rows.length if not decoder.tile else rows.cache_offset if request.near is not None else 0
    starts = [*([0] if exact else []), *range(exact, rows.length, PREFIX_AT_ONCE)]
    features = []
    for start, end in zip(starts, [*starts[1:], rows.length]):
        part = step.part(start, end)
        if start >= exact:
            part = rows.near_apart(part, start, request.near)
        inputs = None if rows.features is None else rows.features[:, start:end]
        features.append(decoder(rows.ids[:, start:end], part, slots.cache, slots.tables.rope, request.check, inputs))
    return features[0] if len(features) == 1 else torch.cat(features, 1)


def logits(slots: Slots, features: Tensor, depths: Tensor | int) -> Tensor:
    """Features [R, n, h] of nodes -> processed logits z [B, n, V] of the tokens after them.

    depths: [B, n], of the nodes below their roots, or one number for all.
    """
    request, tables, at = slots.request, slots.tables, slots.roots.at + 1 + depths
    z = request.target.decoder.logits(features, guidance_at(tables.guidance, at))
    return with_grammar(process_logits(z, request.sampling), tables.grammar, at)


def emitted_codes(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Return the code that the target emits after each node, and whether its score is a finite number.

    One NaN among the logits makes the largest score NaN, and an overflow makes it infinite.

    Args:
        scores: [B, n, V], z + g.
    Returns:
        Codes [B, n], and [B, n] bool.
    """
    codes = scores.argmax(-1)
    return codes, scores.gather(-1, codes[..., None])[..., 0].isfinite()


def add_noise(slots: Slots, z: Tensor, depths: Tensor | int) -> Tensor:
    """z + g of the tokens after nodes, [B, n, V]. depths: as for :func:`logits`."""
    return z if slots.noise is None else z + slots.noise.at(slots.roots.at + 1 + depths)
