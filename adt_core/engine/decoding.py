"""The round loop: draft, verify, accept. Plain loops over a :class:`Decoding` give progress, preview and cancel."""

from __future__ import annotations

import logging
import time
from collections.abc import Generator, Sequence

import torch
from torch import Tensor

from ..drafters import Drafter
from ..errors import AdtError, Check, is_out_of_memory
from ..models.target import EncodedPrompt, Target
from ..policies import NO_DRAFTS, CostProfile, Drafting, Shape, Slot
from ..rules.settings import Lantern, Sampling
from ..rules.trace import ImageRound, Round, Trace
from . import pool
from .budget import Budget
from .device.costs import Costs
from .device.invariance import InvarianceReport, invariance_report
from .device.memory import check_memory
from .device.threads import limit_threads
from .queue import ImageQueue
from .request import Request, prefix_tokens, rows_of
from .round import Outcome, run_round
from .slots import Slots


class Decoding:
    """Generation of one batch of images, one round (one target forward) at a time.

    Iterate over it once; each step yields a :class:`Round`. ``codes`` [B, T] int64 on the CPU holds the tokens that are
    decided so far, -1 elsewhere. Same seed, any method: same codes (up to floating-point near ties). ``exact`` says,
    once the decoding has begun, what the exact mode has to do without on this device.

    prompts: each image's conditional row. negatives: the rows that guidance pushes away from; None for those without
    text. drafter: needed by every method but plain decoding. lantern: relaxed acceptance, which changes the image; None
    for the exact one. image_indices: number of each image within its prompt's batch, part of the noise key. seeds: of
    each image, where they differ; else the sampling's. prefix: codes [B, P] of the first P cells of each image, which
    are kept; our own noise belongs to positions, so a prefix of the seed's own image leads to that image. at_once: how
    many images are drawn at the same time, if not all: when one is finished, the next takes its place. profile: what
    rounds cost, for a policy that chooses; unless given, what was measured here, or a guess. Raises AdtError for
    settings that don't fit together; when it is iterated over, also for more than the machine's memory holds.
    """

    def __init__(
        self,
        target: Target,
        prompts: Sequence[EncodedPrompt],
        *,
        negatives: Sequence[EncodedPrompt] | None = None,
        sampling: Sampling = Sampling(),
        drafting: Drafting = Drafting(),
        drafter: Drafter | None = None,
        lantern: Lantern | None = None,
        image_indices: Sequence[int] | None = None,
        seeds: Sequence[int] | None = None,
        prefix: Tensor | None = None,
        at_once: int | None = None,
        check: Check | None = None,
        profile: CostProfile | None = None,
    ):
        if not prompts:
            raise AdtError("batch size is 0; it must be 1 or more.")
        if at_once is not None and at_once < 1:
            raise AdtError(f"at_once is {at_once}; it must be 1 or more.")
        self.target, self.sampling, self.drafting, self.lantern = target, sampling, drafting, lantern
        self.images, self.length = len(prompts), target.length
        self.at_once = min(at_once or self.images, self.images)
        rows = rows_of(prompts, negatives, target) if sampling.guidance != 1 else prompts
        indices = image_indices if image_indices is not None else [0] * self.images
        keys = list(zip(seeds if seeds is not None else [sampling.seed] * self.images, indices, strict=True))
        tokens = prefix_tokens(prefix, self.images, target)
        self._request = Request(target, rows, keys, tokens, sampling, drafting, drafter, lantern, check)
        self.start = self._request.start
        self.codes = torch.full((self.images, self.length), -1)
        self.codes[:, : self.start] = tokens
        settings, ends, small = self._request.settings(), target.row_end, target.lead
        self.trace = Trace(settings, target.grid, self.images, start=self.start, row_end=ends, small=small)
        self._costs, self._budget = Costs(self._request, profile), Budget(lantern, self.images)
        self._threads = self._request.threads
        self.exact = InvarianceReport()
        self._queue: ImageQueue | None = None

    # ---- what callers read -----------------------------------------------------------------

    @property
    def total_tokens(self) -> int:
        return self.images * self.length

    @property
    def done_tokens(self) -> int:
        return int((self.codes >= 0).sum())

    @property
    def at_work(self) -> list[int]:
        """Numbers of the images at work."""
        slots = self._queue.slots if self._queue else None
        return [image for image, at_work in zip(slots.images, slots.active) if at_work] if slots else []

    @property
    def profile(self) -> CostProfile | None:
        """What is believed of the costs of rounds, for a policy that chooses; None for others."""
        return self._costs.profile

    @property
    def is_replayed(self) -> bool:
        """Do rounds have fixed sizes, so that a GPU can replay them?"""
        return self._request.replayed

    def grid_codes(self) -> Tensor:
        """Codes as [B, rows, columns] int64."""
        return self.target.cells(self.codes)

    def memory_required(self, device: torch.device | None = None) -> int:
        """Bytes of KV caches, noise, the largest activations of a forward, and the codec at work on an image.

        device: on which it will run; where the weights are now unless told.
        """
        return self._request.memory_required(self.at_once, device)

    def measure_costs(self) -> None:
        """Measure what rounds cost here, if that is not known; see :meth:`.costs.Costs.measure_if_needed`."""
        self._costs.measure_if_needed(self.at_once, self.codes.clamp_min(0))

    # ---- the loop --------------------------------------------------------------------------

    def __iter__(self) -> Generator[Round, None, None]:
        if self.start == self.length:
            return
        self._settle_conditions()
        self._policy = self._request.policy(self.profile)
        self._queue = queue = ImageQueue(
            self._request, lambda: self._policy.begin() and self.exact.drafts, self._entered
        )
        queue.begin(list(range(self.images)), self.at_once)
        try:
            while (round := self._next(queue)) is not None:
                self.trace.rounds.append(round)
                yield round
        except (MemoryError, RuntimeError) as error:
            if is_out_of_memory(error):
                queue.slots = None
            raise
        finally:
            self._queue = None
            queue.leave()

    def _settle_conditions(self) -> None:
        """What holds for the whole decoding, where the weights are now: ComfyUI may have moved them."""
        check_memory(self._request, self.at_once)
        with limit_threads(self._request.threads):
            self.exact = invariance_report(self._request)
        self.target.decoder.fallback = self.exact.fallback
        self._costs.choose_profile(self.at_once)
        self._threads = self._request.threads
        self.trace.settings |= self._request.settings() | self.conditions()

    def conditions(self) -> dict:
        """What trees and noise depend on beside the settings, as plain JSON types: CPU threads, what rounds cost, and
        who makes the noise."""
        return {
            "threads": self._threads,
            "profile": self.profile and self.profile.to_json(),
            **self._request.noise_told(),
        }

    def _next(self, queue: ImageQueue) -> Round | None:
        """The next round; None when all images are finished."""
        while True:
            try:
                with limit_threads(self._threads):
                    slots = queue.refill()
                    if slots is not None and self._request.check is not None:
                        self._request.check()
                    return None if slots is None else self._round(slots)
            except (MemoryError, RuntimeError) as error:
                is_least = self.at_once == 1 and not pool.held_bytes(self.target.decoder)
                if is_least or not is_out_of_memory(error):
                    raise
            slots = None  # so that nothing here holds on to what is in memory, nor does the error any more
            self._free_memory(queue)

    def _free_memory(self, queue: ImageQueue) -> None:
        """Memory ran out. What is not finished starts again: without what earlier decodings left, or half as many."""
        if pool.held_bytes(self.target.decoder):
            pool.release(self.target.decoder)
        else:
            self.at_once //= 2
            images = f"{self.at_once} images" if self.at_once > 1 else "one image"
            logging.getLogger(__name__).warning("Out of memory; continuing with %s at a time.", images)
        unfinished = [image for image in range(self.images) if self.codes[image, -1] < 0]
        queue.begin(unfinished, self.at_once)
        self.codes[unfinished, self.start :] = -1
        self._budget.reset(unfinished)
        self.trace.forget(unfinished)

    def _entered(self, slots: Slots, seconds: float) -> None:
        """Images have begun: their first token is drawn."""
        self.codes[slots.images, self.start] = slots.roots.codes.cpu()
        self.trace.entered(slots.images, seconds)

    @torch.inference_mode()
    def _round(self, slots: Slots) -> Round:
        """One target forward. Inference mode ends with it: a generator must not leave it on between rounds."""
        began, drafting, attempts = time.perf_counter(), slots.proposer is not None, slots.graphs.attempts
        outcome = run_round(slots, self._shapes(slots), self._budget.allowed(slots))
        shares = self._enter_codes(outcome)  # last, when no memory is asked for: a round counts as a whole
        seconds, index = time.perf_counter() - began, len(self.trace.rounds)
        steps = self._policy.steps if drafting else 1.0
        prepared = slots.graphs.attempts > attempts
        round = Round(index, seconds, outcome.drafting, outcome.forwards, shares, prepared)
        if not prepared:
            self._costs.record(steps, seconds)
        if drafting:
            self._policy.on_verified(round)
            if not self._policy.drafts:
                slots.stop_drafting()
        return round

    def _enter_codes(self, outcome: Outcome) -> tuple[ImageRound, ...]:
        """Write down the codes that a round has emitted."""
        for share, codes in outcome.images:
            first = share.position + 1
            self.codes[share.image, first : first + len(codes)] = torch.tensor(codes)
            self._budget.spend(share)
        return tuple(share for share, _ in outcome.images)

    def _shapes(self, slots: Slots) -> list[Shape]:
        """The policy's choice."""
        if slots.proposer is None:
            return [NO_DRAFTS] * len(slots)
        every = zip(slots.images, slots.positions, slots.active)
        seen = [Slot(image, position) for image, position, at_work in every if at_work]
        chosen = map(self._request.cut, self._policy.choose(seen))
        return [next(chosen) if at_work else NO_DRAFTS for at_work in slots.active]
