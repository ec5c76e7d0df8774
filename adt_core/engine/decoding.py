"""The round loop. It decodes a batch of images, and each step of the loop is one round (:mod:`.round`).

Callers iterate over a :class:`Decoding`. Between rounds they can show progress and previews, or cancel. When the
iteration ends, also because the caller closes it, the costs of the rounds are learned for later decodings.

Notation: B images of T tokens each. Every method has a *policy* (:mod:`adt_core.policies`) that decides the size of the
next draft tree of each image. Some policies also choose between the draft modes of the drafter (`Policy.chooses`). For
this choice they use a *cost profile*, which contains the duration of a round on this device for each number of drafts.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Generator
from contextlib import closing
from itertools import islice

import torch
from torch import Tensor

from ..errors import AdtError, is_out_of_memory
from ..kernels import choice, first_use
from ..kernels.choice import KernelError
from ..models.target import Target
from ..models.torch_state import own_torch_state
from ..policies import PLAIN_SHAPE, ActiveImage, CostProfile, Policy, Shape
from ..trace import ImageRound, Round, Trace
from .budget import Budget
from .conditions import Conditions
from .device.costs import Costs
from .device.invariance import InvarianceReport
from .device.memory import required_bytes
from .device.threads import ThreadChoice, limit_threads
from .graphs import ReplayError
from .queue import ImageQueue
from .request import Request
from .round import Outcome, run_round
from .slots import Slots

WARM_UP = 3
"""Number of rounds that `Decoding.warm_up` decodes on a CPU by default."""


class Decoding:
    """Generation of one batch of images, one round (one target forward) at a time.

    Iterate over a decoding once. Each step yields a :class:`Round`. With exact acceptance, a seed gives the same codes
    with every method, except if two tokens have almost equal scores.

    Attributes:
        request: Batch to decode.
        codes: [B, T] int64 on the CPU, the tokens decided so far; -1 for tokens that are not decided yet.
        trace: Rounds and statistics.
        batch_size: Maximum number of images that are decoded at the same time. It is halved when memory runs out.
    """

    def __init__(self, request: Request, batch_size: int | None = None):
        """Make the decoding of a request. No round is decoded yet.

        Args:
            batch_size: Maximum number of images that are decoded at the same time (default: all).

        Raises:
            AdtError: If `batch_size` is below 1. Iteration also raises it if the main memory is too small.
        """
        if batch_size is not None and batch_size < 1:
            raise AdtError("batch_size.too_small", batch_size=batch_size)
        self.request = request
        self.batch_size = min(batch_size or self.images, self.images)
        self.codes = request.kept.tokens.clone()
        target = self.target
        self.trace = Trace(
            request.settings(),
            target.grid,
            self.images,
            given=request.kept.given.tolist(),
            row_end=target.row_end,
            lead=target.lead,
        )
        self._costs = Costs(request, request.recipe.profile)
        self._budget = Budget(request.lantern, self.images)
        self._conditions = Conditions(request)
        self._queue: ImageQueue | None = None

    @property
    def target(self) -> Target:
        return self.request.target

    @property
    def images(self) -> int:
        return self.request.images

    @property
    def length(self) -> int:
        """Number of tokens of an image."""
        return self.target.length

    @property
    def total_tokens(self) -> int:
        """Number of tokens of all images together."""
        return self.images * self.length

    @property
    def done_tokens(self) -> int:
        """Number of tokens decided so far, kept tokens included."""
        return int((self.codes >= 0).sum())

    @property
    def active(self) -> list[int]:
        """Indices of the images that are being decoded."""
        slots = self._queue.slots if self._queue else None
        return [image for image, active in zip(slots.images, slots.active) if active] if slots else []

    @property
    def invariance(self) -> InvarianceReport:
        """Result of the trial of batch-invariant mode (:mod:`.device.invariance`). It is empty before iteration."""
        return self._conditions.invariance

    @property
    def threads(self) -> ThreadChoice:
        """Current number of CPU threads, which follows the load of other programs."""
        return self._conditions.threads

    @property
    def profile(self) -> CostProfile | None:
        """Cost profile in use; None if the policy does not choose between draft modes."""
        return self._costs.profile

    def grid_codes(self) -> Tensor:
        """Return the code of each cell of the grids of all images, [B, rows, columns] int64."""
        return self.target.cells(self.codes)

    def memory_required(self, device: torch.device | None = None) -> int:
        """Return the bytes that decoding needs on a device (default: the weights' device), without the weights."""
        return required_bytes(self.request, self.batch_size, device)

    def conditions(self) -> dict:
        """Return everything except the recipe that determines trees, noise and rounding, as plain JSON types."""
        return {"profile": self.profile and self.profile.to_json(), **self._conditions.to_json()}

    def run(self) -> Decoding:
        """Decode all images. Then `codes` and `trace` are complete."""
        for _ in self:
            pass
        return self

    def warm_up(self, count: int = WARM_UP) -> None:
        """Decode some rounds, because the first rounds are slow. Only their costs are used, as of every decoding.

        Args:
            count: Number of rounds on a CPU. With CUDA graphs, all are decoded, because the first round of each size is
                slow.
        """
        with closing(iter(self)) as rounds:
            for _ in islice(rounds, None if self.request.replayed else count):
                pass

    def finished(self) -> Generator[list[int], None, None]:
        """Decode all images, and yield the indices of the images that each round has finished, often none.

        If the last images are finished by reading their prompts, without a round, one more list contains these images.
        A caller that may leave the loop should close the generator, which frees the caches.
        """
        waiting = list(range(self.images))
        with closing(iter(self)) as rounds:
            for _ in rounds:
                unfinished = self._unfinished()
                yield [image for image in waiting if image not in unfinished]
                waiting = [image for image in waiting if image in unfinished]
        if waiting:
            yield waiting

    def __iter__(self) -> Generator[Round, None, None]:
        return _watched(self, self._rounds())

    def _rounds(self) -> Generator[Round, None, None]:
        if self.request.start == self.length:
            return
        with own_torch_state():
            self._fix_conditions()
        self._queue = queue = ImageQueue(
            self.request, lambda: self._policy.begin() and self.invariance.is_drafting, self._record_first_tokens
        )
        queue.begin(list(range(self.images)), self.batch_size)
        try:
            while (round := self._next(queue)) is not None:
                self.trace.rounds.append(round)
                yield round
        except GeneratorExit:
            pass  # the caller needs no further rounds; costs are learned from the rounds so far
        except (MemoryError, RuntimeError) as error:
            if is_out_of_memory(error):
                queue.slots = None
            raise
        finally:
            self._queue = None
            queue.leave()
        self.trace.speedup = self._costs.learn(self.batch_size)

    def _fix_conditions(self) -> None:
        self._conditions.fix(self._costs, self.batch_size)
        self._policy = self.request.drafting.policy(self.request.context(self.profile))
        self.trace.settings |= self.request.settings() | self.conditions()

    @own_torch_state()
    def _next(self, queue: ImageQueue) -> Round | None:
        """Run the next round and return it; None when all images are finished. Retry if memory or a kernel fails."""
        while True:
            try:
                self.threads.update()
                with limit_threads(self.threads.count):
                    slots = queue.refill()
                    if slots is not None and self.request.check is not None:
                        self.request.check()
                    self._conditions.check_kernels()
                    return None if slots is None else self._round(slots)
            except (KernelError, ReplayError) as error:
                if isinstance(error, KernelError):
                    choice.switch_off(str(error))
                prepare = self._forget_captured_rounds
            except (MemoryError, RuntimeError) as error:
                prepare = self._free_memory
                is_least = self.batch_size == 1 and not self.target.decoder.pool_bytes
                if is_least or not is_out_of_memory(error):
                    raise
            # Drop both references, so that the slots' tensors can be freed. Python has already deleted the exception.
            slots = queue.slots = None
            prepare()
            self._restart(queue)

    def _forget_captured_rounds(self) -> None:
        """Free the pool, whose graphs may contain kernels that are off now, and fix the new conditions."""
        self.target.decoder.free_pool()
        self._fix_conditions()

    def _free_memory(self) -> None:
        """Free the pool of slots. If the pool is empty, halve `batch_size`."""
        if self.target.decoder.pool_bytes:
            self.target.decoder.free_pool()
        else:
            self.batch_size //= 2
            images = f"{self.batch_size} images" if self.batch_size > 1 else "one image"
            logging.getLogger(__name__).warning("Out of memory; continuing with %s at a time.", images)

    def _unfinished(self) -> list[int]:
        return (self.codes < 0).any(1).nonzero()[:, 0].tolist()

    def _restart(self, queue: ImageQueue) -> None:
        """Start the unfinished images again."""
        unfinished = self._unfinished()
        queue.begin(unfinished, self.batch_size)
        self.codes[unfinished] = self.request.kept.tokens[unfinished]
        self._budget.reset(unfinished)
        self.trace.restart(unfinished)

    def _record_first_tokens(self, slots: Slots, seconds: float) -> None:
        """Record the first token of each new image, and the seconds that the prefill took."""
        self.codes[slots.images, self.request.start] = slots.roots.codes.cpu()
        self.trace.add_prefill(slots.images, seconds)

    @torch.inference_mode()
    def _round(self, slots: Slots) -> Round:
        """Run one round. Inference mode is set here and not in `__iter__`, where it would affect the caller too."""
        began = time.perf_counter()
        cost_began = self._costs.clock()
        is_drafting = slots.proposer is not None
        graphs = slots.graphs
        attempts = graphs.attempts + graphs.launches
        shapes = _choose_shapes(self._policy, slots)
        outcome = run_round(slots, shapes, self._budget.allowed(slots))
        # `run_round` can run out of memory, so record nothing before it. Otherwise part of a round could be recorded.
        records = self._record_codes(outcome)
        seconds = time.perf_counter() - began
        prepared = graphs.attempts + graphs.launches > attempts
        round = Round(len(self.trace.rounds), seconds, outcome.drafting, outcome.forwards, records, prepared)
        if self.threads.count == self.threads.first:
            self._costs.record(shapes, round, self._costs.clock() - cost_began)
        if is_drafting:
            if not any(record.kept for record in records):
                self._policy.on_verified(round)
            if not self._policy.is_drafting:
                slots.stop_drafting()
        return round

    def _record_codes(self, outcome: Outcome) -> tuple[ImageRound, ...]:
        """Record the codes that a round has decided, and return each image's part of the round."""
        for record, codes in outcome.images:
            first = record.first
            self.codes[record.image, first : first + len(codes)] = torch.tensor(codes)
            self._budget.spend(record)
        return tuple(record for record, _ in outcome.images)


def _watched(decoding: Decoding, rounds: Generator[Round, None, None]) -> Generator[Round, None, None]:
    """Yield the rounds of a decoding. Its first image removes the marker of the first use of Triton kernels.

    Images whose tokens are all kept do not count. Another image may end with kept tokens, so all its tokens count.
    """
    device = decoding.target.decoder.embedding.device
    with choice.watched(device), closing(rounds):
        for round in rounds:
            drawn = decoding.codes[[record.image for record in round.images]]
            if bool((drawn >= 0).all(1).any()):
                first_use.end(device, proven=choice.has_launched(device))
            yield round


def _choose_shapes(policy: Policy, slots: Slots) -> list[Shape]:
    """Return the maximum size of the next draft tree of every slot, as chosen by the policy."""
    if slots.proposer is None:
        return [PLAIN_SHAPE] * len(slots)
    every = zip(slots.images, slots.positions, slots.active)
    active = [ActiveImage(image, position) for image, position, is_active in every if is_active]
    chosen = map(slots.request.cut, policy.choose(active))
    return [next(chosen) if is_active else PLAIN_SHAPE for is_active in slots.active]
