"""Measurements of a model on this machine, which take about two minutes at most.

They measure the speed of plain decoding and the cost of drafts, and check that each method decodes the tokens of plain
decoding. The module `doctor` formats the results as a report.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from statistics import mean, median
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..drafters import Drafter, default_options, without_window
from ..drafters.jacobi import JacobiDrafter
from ..engine.decoding import Decoding
from ..engine.device.products import product_report
from ..engine.request import Request
from ..errors import Check
from ..messages import message
from ..models.target import EncodedPrompt, Target
from ..policies import PLAIN, CostProfile, Drafting, method_title
from ..run import race
from ..run.pipeline import Pipeline
from .op_counter import OpCounter

PROMPTS = (
    "a photo of a cat",
    "a photo of a big brown dog that lies on green grass beside a wooden fence, in the light of the evening sun",
)
"""Test prompts. Their lengths differ, so that a batch of both prompts needs padding."""
TOKENS = 64
"""Number of tokens per image that each method decodes."""
MAX_RUN_SECONDS = 8.0
"""Time after which the run of one method stops early."""
MAX_SECONDS = 90.0
"""Time since the start of all measurements, after which no further method is measured."""
MAX_TURN_SECONDS = 3.0
"""Time that plain decoding may take in a turn of the comparison of speeds."""
MIN_TURNS = 3
MAX_TURNS = 8
MAX_RACE_SECONDS = 30.0
"""Time after which the comparison of speeds stops, if it had `MIN_TURNS`."""
COPY_BYTES = 2**27
"""Size of the tensor that is copied to measure the memory bandwidth. It does not fit the device's caches."""


@dataclass(frozen=True)
class DiagnosticSetup:
    """A loaded model and the settings to measure it with.

    Attributes:
        pipeline: Recipe, target and drafter.
        rows: The `PROMPTS`, encoded by the target.
        check: Cancellation callback. It raises an exception to stop.
        progress: Progress callback. Its arguments are the completed share of all measurements (0 to 1) and a text.
    """

    pipeline: Pipeline
    rows: Sequence[EncodedPrompt]
    check: Check | None = None
    progress: Callable[[float, str], None] | None = None

    @property
    def target(self) -> Target:
        return self.pipeline.target

    @property
    def device(self) -> torch.device:
        return self.target.decoder.embedding.device

    @property
    def network(self) -> Drafter | None:
        """Drafter network, without the Jacobi window that may be combined with it. None if there is no network."""
        return without_window(self._drafter)

    @property
    def _drafter(self) -> Drafter:
        assert self.pipeline.drafter is not None
        return self.pipeline.drafter

    def methods(self) -> dict[str, Pipeline]:
        """Return a pipeline for each method to measure, by the name of the method. Plain decoding is first."""

        def with_drafter(drafter: Drafter, method: str, **options: Any) -> Pipeline:
            defaults = default_options(drafter, self.device.type, self.pipeline.recipe.sampling.guided, method=method)
            return self._with(Drafting.of({**defaults, **options, "method": method}), drafter)

        methods = {PLAIN: self._with(Drafting(PLAIN), None), "auto": with_drafter(self._drafter, "auto")}
        if self.network is not None:
            methods["adt-tree"] = with_drafter(self.network, "adt-tree")
        return {**methods, "jacobi-chain": with_drafter(JacobiDrafter(), "eagle2", depth=16, width=1, drafts=16)}

    def _with(self, drafting: Drafting, drafter: Drafter | None) -> Pipeline:
        recipe = replace(self.pipeline.recipe, drafting=drafting, lantern=None)
        return replace(self.pipeline, recipe=recipe, drafter=drafter)

    def decoding(self, pipeline: Pipeline, images: int = 1) -> Decoding:
        """Return a decoding of one image for each of the first `images` prompts of `PROMPTS`."""
        rows = self.rows[:images]
        return Decoding(Request.of(self.target, pipeline.recipe, rows, pipeline.drafter, check=self.check))

    def memory_required(self, device: torch.device | None = None) -> int:
        """Return the memory in bytes that the measurements need in addition to the weights.

        The methods run one after the other, so the result is the memory of the method that needs the most.

        Args:
            device: Device of the measurements (default: where the weights are).
        """
        needed = (self.decoding(method, len(self.rows)).memory_required(device) for method in self.methods().values())
        return max(*needed, 2 * COPY_BYTES)


class MethodMeasurement(NamedTuple):
    """Measurements of a method while it decodes the first tokens of some images.

    Attributes:
        codes: Token ids [B, n] of B images and n positions. -1 marks positions that were not decoded.
        round_seconds: Median duration of a round in seconds.
        tokens: Mean number of tokens that a round decodes, per image.
        drafting: Share of the decoding time that the drafter takes, measured on the host.
        launches: Number of operations per round that the host launches, without operations inside CUDA graphs.
        waits: Number of operations per round at which the host waits for the GPU.
        profile: Cost profile that the method used, or None.
    """

    codes: Tensor
    round_seconds: float
    tokens: float
    drafting: float
    launches: int
    waits: int
    profile: CostProfile | None

    @property
    def pace(self) -> float:
        """Tokens per second, per image."""
        return self.tokens / self.round_seconds


class Diagnostics:
    """Measurements of a model on this machine. The constructor runs all of them.

    Attributes:
        runs: Two measurements per method, by the method's name: of one image, and of a batch of two images, whose
            second prompt is longer than the first.
        speedups: Speed-up of each method over plain decoding, by the method's name. The rounds of all methods take
            turns.
        turns: Number of turns that the speed-ups were measured in. In each, every method decodes the first tokens of
            another image.
        turn_tokens: Number of tokens of the image that each method decodes in a turn.
        left_out: Names of the methods that were skipped to save time.
        invariance: Result of the trial of batch-invariant mode (`engine.device.invariance`).
        products: Result of the trial of float32 products (`engine.device.products`).
        rate: Memory bandwidth of the device in bytes per second, from `copy_rate`.
        seconds: Duration of all measurements.
    """

    def __init__(self, subject: DiagnosticSetup):
        self.subject = subject
        self.runs: dict[str, tuple[MethodMeasurement, MethodMeasurement]] = {}
        self.left_out: list[str] = []
        began = time.monotonic()
        self.rate = copy_rate(subject.device)
        methods = subject.methods()
        for number, (name, method) in enumerate(methods.items()):
            if self.runs and time.monotonic() - began > MAX_SECONDS:
                self.left_out.append(name)
                continue
            line = message("diagnostics.progress", number=number, count=len(methods), method=method_title(name))
            report = partial(self._report, line, number, len(methods))
            report(1, 0.0)
            self.runs[name] = self._run(method, 1, report), self._run(method, len(subject.rows), report)
        self.turns = 0
        self.turn_tokens = max(
            2, min(subject.target.length, max(TOKENS, int(MAX_TURN_SECONDS / self.plain.round_seconds)))
        )
        self.speedups = self._race({name: methods[name] for name in self.runs})
        self.seconds = time.monotonic() - began

    @property
    def plain(self) -> MethodMeasurement:
        """Measurement of plain decoding of one image."""
        return self.runs[PLAIN][0]

    @property
    def profile(self) -> CostProfile | None:
        """Cost profile that the method `auto` used, or None if `auto` was skipped."""
        return self.runs["auto"][0].profile if "auto" in self.runs else None

    def is_identical(self, name: str) -> tuple[bool, bool]:
        """Return whether a method decodes the same tokens as plain decoding: in a batch of one, and in a larger one.

        Positions that one of the two methods did not decode are ignored.
        """
        plain = self.plain.codes[0]
        single, batched = (
            bool(((run.codes[0] == plain) | (run.codes[0] < 0) | (plain < 0)).all()) for run in self.runs[name]
        )
        return single, batched

    def differing(self) -> list[str]:
        """Return the titles of the methods that decode other tokens than plain decoding."""
        return [method_title(name) for name in self.runs if not all(self.is_identical(name))]

    def _race(self, methods: Mapping[str, Pipeline]) -> dict[str, race.Estimate]:
        """Decode images with all methods in turns, and return the speed-ups over plain decoding."""
        if self.plain.round_seconds * self.turn_tokens > MAX_RUN_SECONDS or len(methods) < 2:
            return {}
        began = time.monotonic()
        seconds: dict[str, list[float]] = {name: [] for name in methods}
        while self.turns < MAX_TURNS:
            turn = {name: self.subject.decoding(_with_seed(method, self.turns)) for name, method in methods.items()}
            for _ in race.by_rounds(turn, self.turn_tokens):
                pass
            for name, decoding in turn.items():
                seconds[name].append(sum(round.seconds for round in decoding.trace.rounds) / decoding.done_tokens)
            self.turns += 1
            passed = time.monotonic() - began
            if self.turns >= MIN_TURNS and passed * (self.turns + 1) / self.turns > MAX_RACE_SECONDS:
                break
        return {name: race.speedup(seconds[PLAIN], seconds[name]) for name in methods if name != PLAIN}

    def _report(self, line: str, number: int, count: int, images: int, share: float) -> None:
        """Report progress.

        Args:
            number: Index of one of `count` methods. Each method has two runs: one image, then a batch.
            share: Completed share of the current run, 0 to 1.
        """
        if self.subject.progress is not None:
            self.subject.progress((number + (images > 1) / 2 + share / 2) / count, line)

    def _run(self, method: Pipeline, images: int, report: Callable[[int, float], None]) -> MethodMeasurement:
        """Measure a method.

        The method runs twice. Normally the second run is measured, because the first run initialises libraries. If the
        first run takes more than `MAX_RUN_SECONDS`, there is no second run, and the first run is measured.
        """
        count = min(TOKENS, self.subject.target.length)
        for turn in range(2):
            began = time.monotonic()
            decoding = self.subject.decoding(method, images)
            counter = OpCounter()
            is_counted = False
            with closing(iter(decoding)) as rounds:
                for number, _ in enumerate(rounds):
                    report(images, (turn + min(1.0, decoding.done_tokens / (images * count))) / 2)
                    is_slow = time.monotonic() - began > MAX_RUN_SECONDS
                    if (decoding.codes[:, count - 1] >= 0).all() or is_slow and number > 3:
                        break
                    if number > 2 and not is_counted:
                        with OpCounter() as counter:
                            next(rounds, None)
                        is_counted = not decoding.trace.rounds[-1].prepared
            if is_slow:
                break
        self.invariance = decoding.invariance
        self.products = product_report(decoding.request)
        return _summarise(decoding, count, counter)


def _with_seed(pipeline: Pipeline, seed: int) -> Pipeline:
    sampling = replace(pipeline.recipe.sampling, seed=seed)
    return replace(pipeline, recipe=replace(pipeline.recipe, sampling=sampling))


def _summarise(decoding: Decoding, count: int, counter: OpCounter) -> MethodMeasurement:
    """Return the measurements of a run.

    The first round and the rounds that captured CUDA graphs do not count. If no other round exists, all rounds count.
    """
    rounds = [round for round in decoding.trace.rounds[1:] if not round.prepared] or decoding.trace.rounds
    return MethodMeasurement(
        codes=decoding.codes[:, :count].clone(),
        round_seconds=median(round.seconds for round in rounds),
        tokens=mean(record.accepted + 1 for round in rounds for record in round.images),
        drafting=sum(round.drafting for round in rounds) / sum(round.seconds for round in rounds),
        launches=counter.launches,
        waits=counter.waits,
        profile=decoding.profile,
    )


def copy_rate(device: torch.device) -> float:
    """Return the memory bandwidth in bytes per second, measured by copying a tensor.

    A copied byte counts twice: as one read and one write. The result is the best of five copies.
    """
    source = torch.ones(COPY_BYTES, dtype=torch.uint8, device=device)
    copied = torch.empty_like(source)
    best = 0.0
    for _ in range(5):
        _synchronize(device)
        started = time.perf_counter()
        copied.copy_(source)
        _synchronize(device)
        best = max(best, 2 * COPY_BYTES / (time.perf_counter() - started))
    return best


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
