"""How images begin: prompts are read, and the first token of each image is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..drafters import Drafter, Prefill, Session
from ..models.cache import KVCache
from ..models.graphs import graphed
from ..models.rows import Roots, Rows
from ..models.target import Prompt
from ..policies import Drafting, Shape
from ..rules.sampling import noise_table
from .lanes import Lanes, Shared, logits, perturbed


@dataclass(frozen=True)
class Entrance:
    """Makes lanes for images that begin.

    prompts: of all rows of all images, the conditional ones first. image_indices: of every image, part of the noise key.
    kept: codes [B, P] of the tokens that every image begins with. longest: tokens of the longest prompt, without these.
    slots: of the KV cache. largest: the largest tree.
    """

    shared: Shared
    prompts: Sequence[Prompt]
    image_indices: Sequence[int]
    kept: Tensor
    longest: int
    slots: int
    drafting: Drafting
    largest: Shape

    def enter(self, images: list[int], drafter: Drafter | None, spare: bool) -> Lanes:
        """Read the prompts of these images, and what is kept of them, and draw the next token of each.

        spare: make a cache with room for the whole images; otherwise one that holds the prompts, to be copied from.
        """
        shared, start, count = self.shared, self.kept.shape[1], len(images)
        target, decoder = shared.target, shared.target.decoder
        rows = self._rows(images)
        cache = KVCache(
            decoder.config, rows.count, self.slots if spare else rows.length, decoder.embedding, shared.check
        )
        like = torch.empty(0, dtype=decoder.wide_dtype, device=rows.device)
        indices = [self.image_indices[image] for image in images]
        noise = noise_table(shared.sampling, indices, target.length, target.num_tokens, like, shared.check)
        step = rows.prefill()
        features = decoder(rows.ids, step, cache, shared.rope, shared.check, rows.features)
        before = Roots.all_at(torch.zeros(count, dtype=torch.long, device=rows.device), start - 1)
        known = min(start + 1, target.columns)  # tokens whose logits the prefill gives, up to the first drawn one
        z = logits(
            shared, before, features[:, -known:], torch.arange(1 - known, 1, device=rows.device).expand(count, -1)
        )
        first = perturbed(z[:, -1:], noise, before, 0)[:, 0].argmax(-1)
        lanes = Lanes(images, rows, graphed(decoder, rows.device), cache, noise, Roots.all_at(first, start))
        if drafter is not None:
            session = Session(target, rows, noise, shared.sampling, self.drafting.proposals, self.largest)
            lanes.proposer = drafter.proposer(session)
            ids = torch.cat([rows.ids[:, 1:], rows.spread(decoder.image_ids[first[:, None]])], 1)
            lanes.proposer.begin(Prefill(features, ids, step, z, start))
        return lanes

    def _rows(self, images: list[int]) -> Rows:
        """The rows of these images, kept tokens included."""
        decoder, start, total = self.shared.target.decoder, self.kept.shape[1], len(self.kept)
        prompts = [self.prompts[first + image] for first in range(0, len(self.prompts), total) for image in images]
        if start:
            kept = decoder.image_ids[self.kept[images].to(decoder.embedding.device)].tolist()
            prompts = [prompt.followed_by(kept[i % len(images)], decoder.embedding) for i, prompt in enumerate(prompts)]
        length = self.longest + start
        return Rows(prompts, self.slots, decoder.embedding, images=len(images), length=length, kept=start)
