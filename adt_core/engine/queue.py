"""Which images are at work: prompts are read, first tokens are drawn, and slots are filled again."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from ..drafters import Drafter, Prefill, Session
from ..models.cache import KVCache
from ..models.rows import BatchRows, Roots
from ..rules.noise import Kind, Noise
from . import pool
from .forward import add_noise, logits, prefill
from .graphs import Graphs, make_recorder
from .request import Request, Tables
from .slots import Slots


class ImageQueue:
    """Images that are finished leave their slots, and others take their places.

    slots: the state of the images at work; None before the first.
    """

    def __init__(self, request: Request, drafts: Callable[[], bool], entered: Callable[[Slots, float], None]):
        """entered: called with the slots of images that have begun, and the seconds that this took."""
        self._request, self._drafts, self._entered = request, drafts, entered
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
            slots, everyone = self.slots, len(finished) == sum(self.slots.active)
            if everyone and not self._waiting:
                return None
            if self._waiting and slots.proposer is not None:
                free = finished[: len(self._waiting)]
                slots.admit(free, self._enter(len(free)))
            elif everyone:  # plain images go best in step, so nobody enters before all have left
                self.slots = self._enter_all()
            elif self._request.replayed:
                slots.deactivate(finished)
            else:
                slots.select([slot for slot in range(len(slots)) if slot not in finished])
        return self.slots

    def _enter_all(self) -> Slots:
        """The next images, in the memory of those before them where that has the same plan."""
        count, request = min(self._at_once, len(self._waiting)), self._request
        self._drafter = request.active_drafter if self._drafts() else None
        plan = request.plan(count, self._drafter)
        before = self.slots
        if request.replayed and (before is None or before.plan != plan):
            self.leave()
            before = self.slots = pool.take(request.target.decoder, plan)
        if before is not None and before.plan == plan:
            before.restart(self._enter(count))
            return before
        before = self.slots = None  # its memory goes first
        slots = self._enter(count, request.cache_length)
        slots.plan = plan
        return slots

    def leave(self) -> None:
        """Leave the slots to the next decoding, where they stay in a GPU's memory."""
        slots, self.slots = self.slots, None
        if slots is not None and slots.plan is not None and self._request.replayed:
            pool.put(self._request.target.decoder, slots)

    def _enter(self, count: int, cache_length: int | None = None) -> Slots:
        """Read the prompts and prefixes of the next images, and draw the next token of each.

        cache_length: of the KV cache. If not given, just enough for the prompts: such slots are copied into others.
        """
        started = time.perf_counter()
        images, self._waiting = self._waiting[:count], self._waiting[count:]
        request, start = self._request, self._request.start
        slots = self._slots(images, cache_length)
        decoder, rows, step = request.target.decoder, slots.rows, slots.rows.prefill()
        features = prefill(slots, step)
        z = logits(slots, features[:, -1:], torch.zeros(count, 1, dtype=torch.long, device=rows.device))
        first = add_noise(slots, z, 0)[:, 0].argmax(-1)
        slots.roots, slots.positions = Roots.all_at(first, start), [start] * count
        if self._drafter is not None:
            drafting = request.drafting.settings
            session = Session(
                request.target, rows, slots.noise, request.sampling, drafting, request.largest, request.replayed
            )
            slots.proposer = self._drafter.proposer(session)
            ids = torch.cat([rows.ids[:, 1:], rows.spread(decoder.image_ids[first[:, None]])], 1)
            slots.proposer.begin(Prefill(features, ids, step, z, start))
        self._entered(slots, time.perf_counter() - started)
        slots.prepare_noise()
        return slots

    def _slots(self, images: list[int], cache_length: int | None) -> Slots:
        """Slots of these images, whose prompts are not read yet."""
        request, rows = self._request, self._rows(images)
        target, decoder, before = request.target, request.target.decoder, request.start - 1
        cache = KVCache(decoder.config, rows.count, cache_length or rows.length, decoder.embedding, request.check)
        noise = None
        if not request.sampling.greedy:
            keys = [request.keys[image] for image in images]
            like = torch.empty(0, dtype=decoder.wide_dtype, device=rows.device)
            length, tokens, ahead = target.length, target.num_tokens, request.noise_ahead
            self._kind = self._kind or request.noise_kind(like)
            noise = Noise(keys, length, tokens, ahead, like, request.check, self._kind)
            noise.prepare([max(before, 0)] * len(images), ahead=1)  # the rest when the first token is there
        roots = Roots.all_at(torch.zeros(len(images), dtype=torch.long, device=rows.device), before)
        # Slots without a number of slots are copied into others, which have the graphs.
        graphs = Graphs(make_recorder(rows.device) if request.replayed and cache_length else None, decoder)
        return Slots(request, images, rows, cache, self._tables(), noise, roots, [before] * len(images), graphs)

    def _tables(self) -> Tables:
        """The same for all images."""
        self._known = self._known or self._request.tables()
        return self._known

    def _rows(self, images: list[int]) -> BatchRows:
        """The rows of these images, prefixes included."""
        request, decoder, start = self._request, self._request.target.decoder, self._request.start
        prompts = [
            request.prompts[group * request.images + image] for group in range(request.groups) for image in images
        ]
        if start:
            ids = decoder.image_ids[request.prefix[images].to(decoder.embedding.device)].tolist()
            prompts = [prompt.followed_by(ids[i % len(images)], decoder.embedding) for i, prompt in enumerate(prompts)]
        length = request.padded + start
        return BatchRows(
            prompts, request.cache_length, decoder.embedding, len(images), length, start, request.target.places
        )
