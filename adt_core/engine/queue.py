"""Which images are at work: prompts are read, first tokens are drawn, and lanes are filled again."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from ..drafters import Drafter, Prefill, Session
from ..models.cache import KVCache
from ..models.graphs import graphed
from ..models.rows import Roots, Rows
from ..policies import Policy
from ..rules.sampling import noise_table
from .lanes import Lanes, Shared, logits, perturbed


class ImageQueue:
    """Images that are finished leave their lanes, and others take their places.

    lanes: the state of the images at work; None before the first.
    """

    def __init__(self, shared: Shared, policy: Policy, entered: Callable[[Lanes, float], None]):
        """entered: called with the lanes of images that have begun, and the seconds that this took."""
        self._shared, self._task, self._policy, self._entered = shared, shared.task, policy, entered
        self.lanes: Lanes | None = None
        self._drafter: Drafter | None = None

    def begin(self, images: list[int], at_once: int) -> None:
        """Let these images wait, so many at once to be drawn. Nothing is at work until then."""
        self._waiting, self._at_once, self.lanes = images, at_once, None

    @torch.inference_mode()
    def refill(self) -> Lanes | None:
        """Let finished images leave and others enter. None when all are finished."""
        if self.lanes is None:
            self.lanes = self._enter_all() if self._waiting else None
        while self.lanes is not None:
            lanes, last = self.lanes, self._task.target.length - 1
            finished = [lane for lane, position in enumerate(lanes.roots.positions) if position == last]
            if not finished:
                break
            everyone = len(finished) == len(lanes)
            if everyone and not self._waiting:
                return None
            if self._waiting and lanes.proposer is not None:
                free = finished[: len(self._waiting)]
                lanes.admit(free, self._enter(len(free)))
            elif everyone:
                self.lanes = self._enter_all()
            else:  # plain images go best in step, so nobody enters before all have left
                lanes.keep([lane for lane in range(len(lanes)) if lane not in finished])
        return self.lanes

    def _enter_all(self) -> Lanes:
        """The next images, in the memory of those before them if they are as many."""
        count = min(self._at_once, len(self._waiting))
        source = self._policy.begin(count) if self._task.drafters else None
        self._drafter = None if source is None else self._task.drafters[source]
        before, self.lanes = self.lanes, None
        if before is None or len(before) != count:
            del before  # its memory goes first
            return self._enter(count, self._task.slots)
        lanes = self._enter(count)
        before.cache.admit(torch.arange(lanes.rows.count, device=lanes.rows.device), lanes.cache)
        lanes.cache, lanes.read = before.cache, before.read
        return lanes

    def _enter(self, count: int, slots: int | None = None) -> Lanes:
        """Lanes for the next images: read their prompts, and what is kept of them, and draw the next token of each.

        slots: of the KV cache; those of the prompts unless told, for a cache that is to be copied from.
        """
        started = time.perf_counter()
        images, self._waiting = self._waiting[:count], self._waiting[count:]
        shared, task, start, rows = self._shared, self._task, self._task.start, self._rows(images)
        target, decoder = task.target, task.target.decoder
        cache = KVCache(decoder.config, rows.count, slots or rows.length, decoder.embedding, task.check)
        like = torch.empty(0, dtype=decoder.wide_dtype, device=rows.device)
        indices = [task.image_indices[image] for image in images]
        noise = noise_table(task.sampling, indices, target.length, target.num_tokens, like, task.check)
        step = rows.prefill()
        features = decoder(rows.ids, step, cache, shared.rope, task.check, rows.features)
        roots = Roots.all_at(torch.zeros(count, dtype=torch.long, device=rows.device), start - 1)
        lanes = Lanes(shared, images, rows, graphed(decoder, rows.device), cache, noise, roots)
        known = min(start + 1, target.columns)  # tokens whose logits the prefill gives, up to the first drawn one
        depths = torch.arange(1 - known, 1, device=rows.device).expand(count, -1)
        z = logits(lanes, features[:, -known:], depths)
        first = perturbed(lanes, z[:, -1:], 0)[:, 0].argmax(-1)
        lanes.roots = Roots.all_at(first, start)
        if self._drafter is not None:
            session = Session(target, rows, noise, task.sampling, task.drafting.proposals, task.largest)
            lanes.proposer = self._drafter.proposer(session)
            ids = torch.cat([rows.ids[:, 1:], rows.spread(decoder.image_ids[first[:, None]])], 1)
            lanes.proposer.begin(Prefill(features, ids, step, z, start))
        self._entered(lanes, time.perf_counter() - started)
        return lanes

    def _rows(self, images: list[int]) -> Rows:
        """The rows of these images, kept tokens included."""
        task, decoder, start = self._task, self._task.target.decoder, self._task.start
        prompts = [task.prompts[group * task.images + image] for group in range(task.groups) for image in images]
        if start:
            kept = decoder.image_ids[task.kept[images].to(decoder.embedding.device)].tolist()
            prompts = [prompt.followed_by(kept[i % len(images)], decoder.embedding) for i, prompt in enumerate(prompts)]
        length = task.longest + start
        return Rows(prompts, task.slots, decoder.embedding, images=len(images), length=length, kept=start)
