"""Which images are at work: prompts are read, first tokens are drawn, and slots are filled again."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from ..drafters import Drafter, Prefill, Session
from ..models.cache import KVCache
from ..models.rows import Roots, Rows
from ..rules.noise import Kind, Noise
from . import pool
from .forward import logits, perturbed, prefill
from .graphs import Graphs, recorder_for
from .slots import Slots
from .task import Tables, Task


class ImageQueue:
    """Images that are finished leave their slots, and others take their places.

    slots: the state of the images at work; None before the first.
    """

    def __init__(self, task: Task, drafts: Callable[[], bool], entered: Callable[[Slots, float], None]):
        """entered: called with the slots of images that have begun, and the seconds that this took."""
        self._task, self._drafts, self._entered = task, drafts, entered
        self.slots: Slots | None = None
        self._drafter: Drafter | None = None
        self._known: Tables | None = None
        self._kind: Kind | None = None

    def begin(self, images: list[int], at_once: int) -> None:
        """Let these images wait, so many at once to be drawn. Nothing is at work until then."""
        self._waiting, self._at_once, self.slots = images, at_once, None

    @torch.inference_mode()
    def restart(self, images: list[int]) -> Slots:
        """Let these images enter in the place of all that are at work, finished or not."""
        self._waiting = images
        self.slots = self._enter_all()
        return self.slots

    @torch.inference_mode()
    def refill(self) -> Slots | None:
        """Let finished images leave and others enter. None when all are finished."""
        if self.slots is None:
            self.slots = self._enter_all() if self._waiting else None
        while self.slots is not None and (finished := self.slots.finished()):
            slots, everyone = self.slots, len(finished) == sum(self.slots.at_work)
            if everyone and not self._waiting:
                return None
            if self._waiting and slots.proposer is not None:
                free = finished[: len(self._waiting)]
                slots.admit(free, self._enter(len(free)))
            elif everyone:  # plain images go best in step, so nobody enters before all have left
                self.slots = self._enter_all()
            elif self._task.replayed:
                slots.retire(finished)
            else:
                slots.select([slot for slot in range(len(slots)) if slot not in finished])
        return self.slots

    def _enter_all(self) -> Slots:
        """The next images, in the memory of those before them where that has the same plan."""
        count, task = min(self._at_once, len(self._waiting)), self._task
        self._drafter = task.active_drafter if self._drafts() else None
        plan = task.plan(count, self._drafter)
        before = self.slots
        if task.replayed and (before is None or before.plan != plan):
            self.leave()
            before = self.slots = pool.take(task.target.decoder, plan)
        if before is not None and before.plan == plan:
            before.restart(self._enter(count))
            return before
        before = self.slots = None  # its memory goes first
        slots = self._enter(count, task.cache_length)
        slots.plan = plan
        return slots

    def leave(self) -> None:
        """Leave the slots to the next decoding, where they stay in a GPU's memory."""
        slots, self.slots = self.slots, None
        if slots is not None and slots.plan is not None and self._task.replayed:
            pool.put(self._task.target.decoder, slots)

    def _enter(self, count: int, cache_length: int | None = None) -> Slots:
        """Read the prompts and prefixes of the next images, and draw the next token of each.

        cache_length: of the KV cache. If not given, just enough for the prompts: such slots are copied into others.
        """
        started = time.perf_counter()
        images, self._waiting = self._waiting[:count], self._waiting[count:]
        task, start = self._task, self._task.start
        slots = self._slots(images, cache_length)
        decoder, rows, step = task.target.decoder, slots.rows, slots.rows.prefill()
        features = prefill(slots, step)
        z = logits(slots, features[:, -1:], torch.zeros(count, 1, dtype=torch.long, device=rows.device))
        first = perturbed(slots, z, 0)[:, 0].argmax(-1)
        slots.roots, slots.positions = Roots.all_at(first, start), [start] * count
        if self._drafter is not None:
            drafting = task.drafting.settings
            session = Session(task.target, rows, slots.noise, task.sampling, drafting, task.largest, task.replayed)
            slots.proposer = self._drafter.proposer(session)
            ids = torch.cat([rows.ids[:, 1:], rows.spread(decoder.image_ids[first[:, None]])], 1)
            slots.proposer.begin(Prefill(features, ids, step, z, start))
        self._entered(slots, time.perf_counter() - started)
        slots.prepare_noise()
        return slots

    def _slots(self, images: list[int], cache_length: int | None) -> Slots:
        """Slots of these images, whose prompts are not read yet."""
        task, rows = self._task, self._rows(images)
        target, decoder, before = task.target, task.target.decoder, task.start - 1
        cache = KVCache(decoder.config, rows.count, cache_length or rows.length, decoder.embedding, task.check)
        noise = None
        if not task.sampling.greedy:
            keys = [task.keys[image] for image in images]
            like = torch.empty(0, dtype=decoder.wide_dtype, device=rows.device)
            length, tokens, ahead = target.length, target.num_tokens, task.noise_ahead
            self._kind = self._kind or task.noise_kind(like)
            noise = Noise(keys, length, tokens, ahead, like, task.check, self._kind)
            noise.prepare([max(before, 0)] * len(images), ahead=1)  # the rest when the first token is there
        roots = Roots.all_at(torch.zeros(len(images), dtype=torch.long, device=rows.device), before)
        # Slots without a number of slots are copied into others, which have the graphs.
        graphs = Graphs(recorder_for(rows.device) if task.replayed and cache_length else None, decoder)
        return Slots(task, images, rows, cache, self._tables(), noise, roots, [before] * len(images), graphs)

    def _tables(self) -> Tables:
        """The same for all images."""
        self._known = self._known or self._task.tables()
        return self._known

    def _rows(self, images: list[int]) -> Rows:
        """The rows of these images, prefixes included."""
        task, decoder, start = self._task, self._task.target.decoder, self._task.start
        prompts = [task.prompts[group * task.images + image] for group in range(task.groups) for image in images]
        if start:
            ids = decoder.image_ids[task.prefix[images].to(decoder.embedding.device)].tolist()
            prompts = [prompt.followed_by(ids[i % len(images)], decoder.embedding) for i, prompt in enumerate(prompts)]
        length = task.padded + start
        return Rows(prompts, task.cache_length, decoder.embedding, len(images), length, start, task.target.places)
