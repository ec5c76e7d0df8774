"""Which images are at work: prompts are read, first tokens are drawn, and lanes are filled again."""

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
from .slots import Lanes
from .task import Tables, Task


class ImageQueue:
    """Images that are finished leave their lanes, and others take their places.

    lanes: the state of the images at work; None before the first.
    """

    def __init__(self, task: Task, drafts: Callable[[], bool], entered: Callable[[Lanes, float], None]):
        """entered: called with the lanes of images that have begun, and the seconds that this took."""
        self._task, self._drafts, self._entered = task, drafts, entered
        self.lanes: Lanes | None = None
        self._drafter: Drafter | None = None
        self._known: Tables | None = None
        self._kind: Kind | None = None

    def begin(self, images: list[int], at_once: int) -> None:
        """Let these images wait, so many at once to be drawn. Nothing is at work until then."""
        self._waiting, self._at_once, self.lanes = images, at_once, None

    @torch.inference_mode()
    def restart(self, images: list[int]) -> Lanes:
        """Let these images enter in the place of all that are at work, finished or not."""
        self._waiting = images
        self.lanes = self._enter_all()
        return self.lanes

    @torch.inference_mode()
    def refill(self) -> Lanes | None:
        """Let finished images leave and others enter. None when all are finished."""
        if self.lanes is None:
            self.lanes = self._enter_all() if self._waiting else None
        while self.lanes is not None and (finished := self.lanes.finished()):
            lanes, everyone = self.lanes, len(finished) == sum(self.lanes.at_work)
            if everyone and not self._waiting:
                return None
            if self._waiting and lanes.proposer is not None:
                free = finished[: len(self._waiting)]
                lanes.admit(free, self._enter(len(free)))
            elif everyone:  # plain images go best in step, so nobody enters before all have left
                self.lanes = self._enter_all()
            elif self._task.replayed:
                lanes.retire(finished)
            else:
                lanes.select([lane for lane in range(len(lanes)) if lane not in finished])
        return self.lanes

    def _enter_all(self) -> Lanes:
        """The next images, in the memory of those before them where that has the same plan."""
        count, task = min(self._at_once, len(self._waiting)), self._task
        self._drafter = task.active_drafter if self._drafts() else None
        plan = task.plan(count, self._drafter)
        before = self.lanes
        if task.replayed and (before is None or before.plan != plan):
            self.leave()
            before = self.lanes = pool.take(task.target.decoder, plan)
        if before is not None and before.plan == plan:
            before.restart(self._enter(count))
            return before
        before = self.lanes = None  # its memory goes first
        lanes = self._enter(count, task.slots)
        lanes.plan = plan
        return lanes

    def leave(self) -> None:
        """Leave the lanes to the next decoding, where they stay in a GPU's memory."""
        lanes, self.lanes = self.lanes, None
        if lanes is not None and lanes.plan is not None and self._task.replayed:
            pool.put(self._task.target.decoder, lanes)

    def _enter(self, count: int, slots: int | None = None) -> Lanes:
        """Read the prompts and prefixes of the next images, and draw the next token of each.

        slots: of the KV cache. If not given, just enough for the prompts: such lanes are copied into others.
        """
        started = time.perf_counter()
        images, self._waiting = self._waiting[:count], self._waiting[count:]
        task, start = self._task, self._task.start
        lanes = self._lanes(images, slots)
        decoder, rows, step = task.target.decoder, lanes.rows, lanes.rows.prefill()
        features = prefill(lanes, step)
        z = logits(lanes, features[:, -1:], torch.zeros(count, 1, dtype=torch.long, device=rows.device))
        first = perturbed(lanes, z, 0)[:, 0].argmax(-1)
        lanes.roots, lanes.positions = Roots.all_at(first, start), [start] * count
        if self._drafter is not None:
            drafting = task.drafting.settings
            session = Session(task.target, rows, lanes.noise, task.sampling, drafting, task.largest, task.replayed)
            lanes.proposer = self._drafter.proposer(session)
            ids = torch.cat([rows.ids[:, 1:], rows.spread(decoder.image_ids[first[:, None]])], 1)
            lanes.proposer.begin(Prefill(features, ids, step, z, start))
        self._entered(lanes, time.perf_counter() - started)
        lanes.prepare_noise()
        return lanes

    def _lanes(self, images: list[int], slots: int | None) -> Lanes:
        """Lanes of these images, whose prompts are not read yet."""
        task, rows = self._task, self._rows(images)
        target, decoder, before = task.target, task.target.decoder, task.start - 1
        cache = KVCache(decoder.config, rows.count, slots or rows.length, decoder.embedding, task.check)
        noise = None
        if not task.sampling.greedy:
            keys = [task.keys[image] for image in images]
            like = torch.empty(0, dtype=decoder.wide_dtype, device=rows.device)
            length, tokens, ahead = target.length, target.num_tokens, task.noise_ahead
            self._kind = self._kind or task.noise_kind(like)
            noise = Noise(keys, length, tokens, ahead, like, task.check, self._kind)
            noise.prepare([max(before, 0)] * len(images), ahead=1)  # the rest when the first token is there
        roots = Roots.all_at(torch.zeros(len(images), dtype=torch.long, device=rows.device), before)
        # Lanes without a number of slots are copied into others, which have the graphs.
        graphs = Graphs(recorder_for(rows.device) if task.replayed and slots else None, decoder)
        return Lanes(task, images, rows, cache, self._tables(), noise, roots, [before] * len(images), graphs)

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
        return Rows(prompts, task.slots, decoder.embedding, len(images), length, start, task.target.places)
