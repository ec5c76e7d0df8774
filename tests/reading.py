"""A model that reads rows of tokens by itself: what the engine does for its slots, without an engine."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from adt_core.models.cache import KVCache
from adt_core.models.rotary import rope_tables
from adt_core.models.rows import BatchRows, Roots
from adt_core.models.target import Target


def roots_at(*positions: int) -> Roots:
    """Of images that have come to these raster positions."""
    return Roots(torch.zeros(len(positions), dtype=torch.long), torch.tensor(positions)[:, None])


class Reader:
    """The KV cache of some rows and the features [R, n, h] of what is read into it, the prompts first.

    prompts: of every row. more: so many further tokens have room. images: how many the rows belong to. places: the
    target's, if it has some.
    """

    def __init__(self, decoder, prompts: Sequence[Sequence[int]], more: int = 0, images: int = 0, places=None):
        cache_length = max(map(len, prompts)) + more
        self.decoder, self.rows = (
            decoder,
            BatchRows(prompts, cache_length, decoder.embedding, images, mrope_positions=places),
        )
        self.cache = KVCache(decoder.config, len(prompts), cache_length, decoder.embedding)
        self.rope = rope_tables(decoder.config, decoder.embedding, places and places.table)
        self.features = decoder(self.rows.ids, self.rows.prefill(), self.cache, self.rope, inputs=self.rows.features)

    def read(self, ids: Tensor, step) -> Tensor:
        """The features of these ids [R, n], which go where the step says."""
        return self.decoder(ids, step, self.cache, self.rope)

    def read_on(self, ids: Tensor, position: int = 0) -> Tensor:
        """Of tokens [R, n] one behind another, from a raster position on, that of all images."""
        step = self.rows.causal_step(roots_at(*[position] * self.rows.images), ids.shape[1])
        return self.read(ids, step)


def guided_rows(target: Target, prompts: Sequence[str], guidance: float) -> list[Sequence[int]]:
    """The rows of some images: with guidance the unconditional ones stand behind the others."""
    rows = [target.encode_prompt(prompt) for prompt in prompts]
    return rows + [target.unconditional(row) for row in rows] if guidance != 1 else rows


def logits_behind(target: Target, prompts: Sequence[str], codes: Tensor, guidance: float = 1.0) -> Tensor:
    """Logits [B, 1 + n, V] behind the prompts and each of the codes [n], which all images have in common.

    One forward for the prompts, and one for the codes.
    """
    decoder, rows = target.decoder, guided_rows(target, prompts, guidance)
    reader = Reader(decoder, rows, len(codes), len(prompts), target.mrope_positions)
    rest = reader.read_on(decoder.image_ids[codes].expand(len(rows), -1))
    return decoder.logits(torch.cat([reader.features[:, -1:], rest], 1), guidance)
