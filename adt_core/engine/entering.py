"""How images begin and take turns: prompts are read, first tokens are drawn, and lanes are filled again."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..drafters import Drafter, Prefill, Session
from ..models.cache import KVCache
from ..models.graphs import graphed
from ..models.rows import Roots, Rows
from ..models.target import Prompt
from ..policies import Drafting, Policy, Shape
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


class ImageQueue:
    """Which images are at work. Those that are finished leave their lanes, and others take their places.

    lanes: the state of the images at work; None before the first. entered: called with the lanes of images that have
    begun, and the seconds that this took.
    """

    def __init__(
        self,
        entrance: Entrance,
        policy: Policy,
        sources: Sequence[Drafter],
        images: int,
        at_once: int,
        entered: Callable[[Lanes, float], None],
    ):
        self._entrance, self._policy, self._sources, self._entered = entrance, policy, sources, entered
        self._waiting, self._at_once = list(range(images)), at_once
        self.lanes: Lanes | None = None

    def restart(self, images: list[int], at_once: int) -> None:
        """Begin these images anew, so many at once; nothing is at work until then."""
        self._waiting, self._at_once, self.lanes = images, at_once, None

    @torch.inference_mode()
    def refill(self) -> Lanes | None:
        """Let finished images leave and others enter. None when all are finished."""
        if self.lanes is None:
            self.lanes = self._enter_all() if self._waiting else None
        while self.lanes is not None:
            lanes, last = self.lanes, self._entrance.shared.target.length - 1
            finished = [lane for lane, position in enumerate(lanes.roots.positions) if position == last]
            if not finished:
                break
            everyone = len(finished) == len(lanes)
            if everyone and not self._waiting:
                return None
            if self._waiting and lanes.proposer is not None:
                free = finished[: len(self._waiting)]
                lanes.admit(free, self._enter(len(free), self._drafter))
            elif everyone:
                self.lanes = self._enter_all()
            else:  # plain images go best in step, so nobody enters before all have left
                lanes.keep([lane for lane in range(len(lanes)) if lane not in finished])
        return self.lanes

    def _enter_all(self) -> Lanes:
        """The next images, in the memory of those before them if they are as many."""
        count = min(self._at_once, len(self._waiting))
        source = self._policy.begin(count) if self._sources else None
        self._drafter = None if source is None else self._sources[source]
        before, self.lanes = self.lanes, None
        if before is None or len(before) != count:
            del before  # its memory goes first
            return self._enter(count, self._drafter, spare=True)
        lanes = self._enter(count, self._drafter)
        before.cache.admit(torch.arange(lanes.rows.count, device=lanes.rows.device), lanes.cache)
        lanes.cache, lanes.read = before.cache, before.read
        return lanes

    def _enter(self, count: int, drafter: Drafter | None, spare: bool = False) -> Lanes:
        """Lanes for the next images. spare: as for :meth:`Entrance.enter`."""
        started = time.perf_counter()
        images, self._waiting = self._waiting[:count], self._waiting[count:]
        lanes = self._entrance.enter(images, drafter, spare)
        self._entered(lanes, time.perf_counter() - started)
        return lanes
