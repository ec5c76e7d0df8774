"""Forward passes over rows of tokens, without the engine.

Tensor dimensions: B images, R rows of the batch (with guidance 2 * B: conditional rows, then unconditional rows),
n tokens, h hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from adt_core.models.cache import KVCache
from adt_core.models.rotary import rope_tables
from adt_core.models.rows import BatchRows, Roots
from adt_core.models.target import Target


def roots_at(*positions: int) -> Roots:
    """Return the roots (last decided tokens) of images that have reached these raster positions."""
    return Roots(torch.zeros(len(positions), dtype=torch.long), torch.tensor(positions)[:, None])


class Reader:
    """Decoder with a KV cache for some rows. The constructor runs the decoder over the prompts.

    Args:
        more: Number of tokens after the prompt for which the cache has space.
        images: Number of images that the rows belong to.
        places: M-RoPE positions of the target, or None if the target has none.

    Attributes:
        features: [R, n, h] final features of the prompts' tokens.
    """

    def __init__(self, decoder, prompts: Sequence[Sequence[int]], more: int = 0, images: int = 0, places=None):
        cache_length = max(map(len, prompts)) + more
        self.decoder = decoder
        self.rows = BatchRows(prompts, cache_length, decoder.embedding, images, mrope_positions=places)
        self.cache = KVCache(decoder.config, len(prompts), cache_length, decoder.embedding)
        self.rope = rope_tables(decoder.config, decoder.embedding, places and places.table)
        self.features = decoder(self.rows.ids, self.rows.prefill(), self.cache, self.rope, inputs=self.rows.features)

    def read(self, ids: Tensor, step) -> Tensor:
        """Run the decoder over the ids [R, n] and return their features. ``step`` has the ids' cache positions."""
        return self.decoder(ids, step, self.cache, self.rope)

    def read_on(self, ids: Tensor, position: int = 0) -> Tensor:
        """Run the decoder over consecutive tokens and return their features.

        Args:
            ids: [R, n] token ids.
            position: Raster position of the first token, the same in all images.
        """
        step = self.rows.causal_metadata(roots_at(*[position] * self.rows.images), ids.shape[1])
        return self.read(ids, step)


def guided_rows(target: Target, prompts: Sequence[str], guidance: float) -> list[Sequence[int]]:
    """Return the token ids of each row: one row per prompt, then one unconditional row per prompt if guidance != 1."""
    rows = [target.encode_prompt(prompt) for prompt in prompts]
    return rows + [target.unconditional(row) for row in rows] if guidance != 1 else rows


def logits_after(target: Target, prompts: Sequence[str], codes: Tensor, guidance: float = 1.0) -> Tensor:
    """Return the logits [B, 1 + n, V] after the prompts and after each of the codes [n].

    All images have the same codes. The first forward pass reads the prompts, the second one reads the codes.
    """
    decoder = target.decoder
    rows = guided_rows(target, prompts, guidance)
    reader = Reader(decoder, rows, len(codes), len(prompts), target.mrope_positions)
    rest = reader.read_on(decoder.image_ids[codes].expand(len(rows), -1))
    return decoder.logits(torch.cat([reader.features[:, -1:], rest], 1), guidance)
