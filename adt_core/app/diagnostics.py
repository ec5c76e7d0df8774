"""What is measured of a model on this machine: a plain step, what drafts add to it, and whether images stay the same.

It takes two minutes at most. :mod:`.doctor` makes a page of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from statistics import mean, median
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..drafters import Drafter, usual_options, without_window
from ..drafters.jacobi import JacobiDrafter
from ..engine.decoding import Decoding
from ..errors import Check
from ..models.target import EncodedPrompt, Target
from ..policies import PLAIN, CostProfile, Drafting
from ..rules.settings import Sampling
from .op_counter import OpCounter

PROMPTS = (
    "a photo of a cat",
    "a photo of a big brown dog that lies on green grass beside a wooden fence, in the light of the evening sun",
)
"""What is drawn; the second is the longer one."""
TOKENS, ENOUGH = 64, 8.0
"""That every method draws; seconds after which a draw stops where it is."""
PATIENCE = 90.0
"""Seconds after which no further method is begun."""
SLOW_STEP = 0.3
"""Seconds of a plain step beyond which the costs of drafts are not measured here: that takes some hundred steps."""
COPIED = 2**27
"""Bytes that are copied to see how fast a device's memory is: more than its caches hold."""


class MethodSetup(NamedTuple):
    """How images are drawn: a method and what drafts for it."""

    drafting: Drafting
    drafter: Drafter | None = None


@dataclass(frozen=True)
class DiagnosticSetup:
    """A loaded target, how it draws, and its drafter.

    Attributes:
        rows: Of PROMPTS.
        check: Called often; may raise to cancel.
        progress: Called often with the share that is done, 0 to 1, and a line of text.
    """

    target: Target
    sampling: Sampling
    drafter: Drafter
    rows: Sequence[EncodedPrompt]
    check: Check | None = None
    progress: Callable[[float, str], None] | None = None

    @property
    def device(self) -> torch.device:
        return self.target.decoder.embedding.device

    @property
    def network(self) -> Drafter | None:
        """The network that drafts, without a window."""
        return without_window(self.drafter)

    def ways(self) -> dict[str, MethodSetup]:
        """What is tried, by its name, plain decoding first."""

        def with_drafter(drafter: Drafter, method: str, **options: Any) -> MethodSetup:
            usual = usual_options(drafter, self.device.type)
            return MethodSetup(Drafting.of({**usual, **options, "method": method}), drafter)

        tried = {PLAIN: MethodSetup(Drafting(PLAIN)), "auto": with_drafter(self.drafter, "auto")}
        if self.network is not None:
            tried["adt-tree"] = with_drafter(self.network, "adt-tree")
        return {**tried, "jacobi, a chain": with_drafter(JacobiDrafter(), "eagle2", depth=16, width=1, nodes=16)}

    def decoding(self, way: MethodSetup, images: int = 1) -> Decoding:
        """Of the first prompts."""
        rows, sampling = self.rows[:images], self.sampling
        return Decoding(
            self.target, rows, sampling=sampling, drafting=way.drafting, drafter=way.drafter, check=self.check
        )

    def memory_required(self, device: torch.device | None = None) -> int:
        """Bytes that the most demanding way needs beside the weights. device: where it will run."""
        needed = (self.decoding(way, len(self.rows)).memory_required(device) for way in self.ways().values())
        return max(*needed, 2 * COPIED)


class MethodMeasurement(NamedTuple):
    """What drawing the first tokens of images has shown.

    codes: [B, n], -1 where none was drawn. step: median seconds of a round. tokens: that a round brought an image, on
    average. drafting: the drafter's share of the time, where the host can tell. launches, waits: operations of a round
    that the host launches, and for whose results it waits; of a round that was captured before, if there was one.
    profile: what was believed of costs.
    """

    codes: Tensor
    step: float
    tokens: float
    drafting: float
    launches: int
    waits: int
    profile: CostProfile | None

    @property
    def pace(self) -> float:
        """Tokens a second."""
        return self.tokens / self.step


class Diagnostics:
    """Everything that is measured of a subject, in the order in which it is.

    draws: by method, alone and beside a longer prompt. left_out: methods for which there was no time. exact: what the
    exact mode has to do without. rate: bytes a second, at which this device copies.
    """

    def __init__(self, subject: DiagnosticSetup):
        self.subject, began = subject, time.monotonic()
        self.draws: dict[str, tuple[MethodMeasurement, MethodMeasurement]] = {}
        self.left_out: list[str] = []
        self.rate = copy_rate(subject.device)
        ways = subject.ways()
        for number, (name, way) in enumerate(ways.items()):
            if self.draws and time.monotonic() - began > PATIENCE:
                self.left_out.append(name)
                continue
            tell = partial(self._tell, f"{number} of {len(ways)} methods, now {name}", number, len(ways))
            tell(1, 0.0)
            if name == "auto" and self.plain.step <= SLOW_STEP:
                subject.decoding(way).measure_costs()
            self.draws[name] = self._draw(way, 1, tell), self._draw(way, len(subject.rows), tell)
        self.seconds = time.monotonic() - began

    @property
    def plain(self) -> MethodMeasurement:
        return self.draws[PLAIN][0]

    @property
    def profile(self) -> CostProfile | None:
        return self.draws["auto"][0].profile if "auto" in self.draws else None

    def same(self, name: str) -> tuple[bool, bool]:
        """Are the tokens of a method those of plain decoding, alone and beside another prompt?"""
        plain = self.plain.codes[0]
        alone, beside = (
            bool(((draw.codes[0] == plain) | (draw.codes[0] < 0) | (plain < 0)).all()) for draw in self.draws[name]
        )
        return alone, beside

    def _tell(self, line: str, number: int, count: int, images: int, share: float) -> None:
        """Report the progress of a method, which draws one image and then two. share: Of these images, 0 to 1."""
        if self.subject.progress is not None:
            self.subject.progress((number + (images > 1) / 2 + share / 2) / count, line)

    def _draw(self, way: MethodSetup, images: int, tell: Callable[[int, float], None]) -> MethodMeasurement:
        """Draw twice, unless it takes long: the first time, libraries prepare themselves."""
        count = min(TOKENS, self.subject.target.length)
        for turn in range(2):
            began = time.monotonic()
            decoding, ledger, is_counted = self.subject.decoding(way, images), OpCounter(), False
            with closing(iter(decoding)) as rounds:
                for number, _ in enumerate(rounds):
                    tell(images, (turn + min(1.0, decoding.done_tokens / (images * count))) / 2)
                    is_long = time.monotonic() - began > ENOUGH
                    if (decoding.codes[:, count - 1] >= 0).all() or is_long and number > 3:
                        break
                    if number > 2 and not is_counted:
                        with OpCounter() as ledger:
                            next(rounds, None)
                        is_counted = not decoding.trace.rounds[-1].prepared
            if is_long:
                break
        self.exact = decoding.exact
        measured = [round for round in decoding.trace.rounds[1:] if not round.prepared] or decoding.trace.rounds
        return MethodMeasurement(
            codes=decoding.codes[:, :count].clone(),
            step=median(round.seconds for round in measured),
            tokens=mean(share.accepted + 1 for round in measured for share in round.images),
            drafting=sum(round.drafting for round in measured) / sum(round.seconds for round in measured),
            launches=ledger.launches,
            waits=ledger.waits,
            profile=decoding.profile,
        )


def copy_rate(device: torch.device) -> float:
    """Bytes a second that a device reads and writes when it copies, at best of a few."""
    source = torch.ones(COPIED, dtype=torch.uint8, device=device)
    copied, best = torch.empty_like(source), 0.0
    for _ in range(5):
        _wait(device)
        started = time.perf_counter()
        copied.copy_(source)
        _wait(device)
        best = max(best, 2 * COPIED / (time.perf_counter() - started))
    return best


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
