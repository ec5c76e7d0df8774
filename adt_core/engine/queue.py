"""Queue of images that wait to be decoded.

An image *enters* a batch slot in three steps: the target reads the prompt (prefill), the first token is sampled, and
the drafter makes its state. When an image is finished, a waiting image can take over the slot of the finished image.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cached_property

import torch
from torch import Tensor

from ..drafters import Drafter, Prefill
from ..models.cache import KVCache
from ..models.rows import BatchRows, Roots
from ..rules.noise import KeyedNoise, Noise, NoiseKind
from ..rules.script_noise import ScriptNoise
from ..settings import ORIGINAL_SCRIPT
from . import pool
from .forward import add_noise, logits, prefill
from .graphs import Graphs, make_recorder
from .request import Request
from .slots import Slots, Tables


class ImageQueue:
    """Waiting images of a request, and the slots of the images that are being decoded.

    Attributes:
        slots: State of the images that are being decoded; None before the first image enters.
    """

    def __init__(self, request: Request, drafts: Callable[[], bool], entered: Callable[[Slots, float], None]):
        """Make an empty queue.

        Args:
            drafts: Returns whether a drafter is used for the images that enter next.
            entered: Called when images have entered, with their slots, and the seconds of prefill and first tokens.
        """
        self._request = request
        self._drafts = drafts
        self._entered = entered
        self.slots: Slots | None = None
        self._drafter: Drafter | None = None
        self._kind: NoiseKind | None = None

    def begin(self, images: list[int], max_batch_size: int) -> None:
        """Queue images, by their indices in the request, for decoding at most `max_batch_size` at a time."""
        self._waiting = images
        self._max_batch_size = max_batch_size
        self.slots = None

    @torch.inference_mode()
    def restart(self, images: list[int]) -> Slots:
        """Replace all images in the slots, finished or not, and return the slots."""
        self._waiting = images
        self.slots = self._enter_all()
        return self.slots

    @torch.inference_mode()
    def refill(self) -> Slots | None:
        """Replace finished images by waiting images. Return the slots of the next round; None if all are finished."""
        if self.slots is None:
            self.slots = self._enter_all() if self._waiting else None
        while self.slots is not None and (finished := self.slots.finished()):
            slots = self.slots
            all_finished = len(finished) == sum(slots.active)
            if all_finished and not self._waiting:
                return None
            if self._waiting and slots.proposer is not None:
                free = finished[: len(self._waiting)]
                slots.admit(free, self._enter(len(free)))
            elif all_finished:
                # Plain decoding is fastest if all images are at the same position. So new images enter together.
                self.slots = self._enter_all()
            elif self._request.replayed:
                slots.deactivate(finished)
            else:
                slots.select([slot for slot in range(len(slots)) if slot not in finished])
        return self.slots

    def _enter_all(self) -> Slots:
        """Let the next images enter all slots, and return the slots.

        Slots with the same layout (:mod:`.pool`) as the new images are reused: the present slots, or slots from the
        pool.
        """
        request = self._request
        count = min(self._max_batch_size, len(self._waiting))
        self._drafter = request.active_drafter if self._drafts() else None
        layout = pool.layout_of(request, count, self._drafter)
        before = self.slots
        if request.replayed and (before is None or before.layout != layout):
            self.leave()
            before = self.slots = pool.take(request.target.decoder, layout)
        if before is not None and before.layout == layout:
            before.restart(self._enter(count))
            return before
        before = self.slots = None  # free the memory of the old slots before allocating new ones
        slots = self._enter(count, request.cache_length)
        slots.layout = layout
        return slots

    def leave(self) -> None:
        """End the decoding. If rounds are replayed (on a GPU), put the slots into the pool for the next decoding."""
        slots = self.slots
        self.slots = None
        if slots is not None and slots.layout is not None and self._request.replayed:
            pool.put(self._request.target.decoder, slots)

    def _enter(self, count: int, cache_length: int | None = None) -> Slots:
        """Let the next images enter new slots: read prompts and kept beginnings, and sample each image's first token.

        Args:
            cache_length: Number of positions of the KV cache. None is for slots that will be copied into others with
                longer caches: only the positions of the prompts and kept beginnings.
        """
        started = time.perf_counter()
        images = self._waiting[:count]
        self._waiting = self._waiting[count:]
        request = self._request
        slots = self._new_slots(images, cache_length)
        rows = slots.rows
        metadata = rows.prefill()
        features = prefill(slots, metadata)
        z = logits(slots, features[:, -1:], torch.zeros(count, 1, dtype=torch.long, device=rows.device))
        first = add_noise(slots, z, 0)[:, 0].argmax(-1)
        given = request.kept.tokens[images, request.start].to(first.device)
        first = torch.where(given >= 0, given, first)
        slots.roots = Roots.all_at(first, request.start)
        slots.positions = [request.start] * count
        if self._drafter is not None:
            slots.proposer = self._drafter.proposer(request.context(), rows, slots.noise)
            ids = torch.cat([rows.ids[:, 1:], rows.spread(request.target.decoder.image_ids[first[:, None]])], 1)
            slots.proposer.begin(Prefill(features, ids, metadata, z, request.start))
        self._entered(slots, time.perf_counter() - started)
        slots.prepare_noise()
        return slots

    def _new_slots(self, images: list[int], cache_length: int | None) -> Slots:
        """Make slots for images, before the target reads their prompts."""
        request = self._request
        rows = self._rows(images)
        decoder = request.target.decoder
        before = request.start - 1
        cache = KVCache(decoder.config, rows.count, cache_length or rows.length, decoder.embedding, request.check)
        noise = None if request.sampling.greedy else self._noise(images, rows.device)
        roots = Roots.all_at(torch.zeros(len(images), dtype=torch.long, device=rows.device), before)
        # Slots without `cache_length` are only copied into other slots. They run no rounds, so they need no graphs.
        graphs = Graphs(make_recorder(rows.device) if request.replayed and cache_length else None, decoder)
        kept = request.kept.tokens[images].to(rows.device) if request.kept.has_runs else None
        positions = [before] * len(images)
        return Slots(request, images, rows, cache, self._tables, noise, roots, positions, graphs, kept=kept)

    def _noise(self, images: list[int], device: torch.device) -> Noise:
        """Make the noise of images, and compute the noise of the first token of each image."""
        request = self._request
        target = self._request.target
        like = torch.empty(0, dtype=target.decoder.wide_dtype, device=device)
        self._kind = self._kind or self._noise_kind(like)
        keys = [request.keys[image] for image in images]
        noise = Noise(keys, target.length, target.num_tokens, request.noise_ahead, like, request.check, self._kind)
        noise.prepare([max(request.start - 1, 0)] * len(images), ahead=1)
        return noise

    def _noise_kind(self, like: Tensor) -> NoiseKind:
        request = self._request
        target = self._request.target
        if request.sampling.noise != ORIGINAL_SCRIPT:
            return KeyedNoise(target.num_tokens, like)
        kept = Noise.held(target.length, target.num_tokens, request.noise_ahead) if request.images > 1 else 0
        # The model's original script samples header tokens before the first image token, but not after kept tokens.
        before = 0 if request.start else target.script_header
        return ScriptNoise(*target.script_layout, request.script_batch, request.start, kept, before)

    @cached_property
    def _tables(self) -> Tables:
        return Tables.of(self._request)

    def _rows(self, images: list[int]) -> BatchRows:
        """Return the prompt rows of images. If their first tokens are kept, each row is the prompt and these tokens."""
        request = self._request
        decoder = self._request.target.decoder
        start = self._request.start
        prompts = [
            request.prompts[group * request.images + image] for group in range(request.groups) for image in images
        ]
        if start:
            ids = decoder.image_ids[request.kept.tokens[images, :start].to(decoder.embedding.device)].tolist()
            prompts = [prompt.followed_by(ids[i % len(images)], decoder.embedding) for i, prompt in enumerate(prompts)]
        length = request.padded + start
        return BatchRows(
            prompts, request.cache_length, decoder.embedding, len(images), length, start, request.target.mrope_positions
        )
