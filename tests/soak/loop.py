"""Main loop of a soak test: run requests, compare a sample with plain decoding, and measure the process's resources."""

from __future__ import annotations

import os
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

from torch import Tensor

from adt_core import Drafting, Pipeline, Recipe, Sampling
from adt_core.models.target import Target
from adt_core.policies import PLAIN

from .mix import Request, requests

READING_INTERVAL = 25  # runs between two readings of the resources
COMPARISON_INTERVAL = 4  # one of this number of finished runs is compared with plain decoding
MAX_GROWTH = 0.02  # maximum relative growth of resident memory after the warm-up
ROUNDED = ("float32", "int8 weights")
"""Dtypes in which an image may differ from plain decoding, because rounding decides between nearly tied tokens
(benchmarks/lossless.py)."""
MAX_DIFFERENT = 0.01  # maximum share of images that differ from plain decoding, in the dtypes of ROUNDED
FILE_COUNTS = 5
"""Number of times that open files are counted. The minimum is used, because a request that has just ended may still
have an open file."""


class Outcome(NamedTuple):
    """Outcome of a run."""

    kind: str  # "finished", "cancelled", "refused" or "failed"
    message: str = ""  # to the user, if the run was refused or failed
    codes: Tensor | None = None  # [B, tokens] of the images, if they can be compared with plain decoding


class Player(Protocol):
    """Interface for running requests."""

    pid: int  # process whose resources are measured
    dtypes: tuple[str, ...]  # that are supported
    mistakes: dict[str, str]  # that are supported, with words of the error message of each

    def play(self, request: Request) -> Outcome:
        """Run a request."""
        ...

    def target(self, request: Request) -> Target:
        """Return the model of a request, loaded in this process."""
        ...

    def rest(self) -> None:
        """Release models, caches and unused memory, so that readings are comparable."""
        ...

    def errors(self) -> list[str]:
        """Return further errors, after all runs."""
        ...


class Reading(NamedTuple):
    """Resources of a process."""

    runs: int  # so far
    resident: float  # memory in MiB
    threads: int
    files: int  # open file descriptors

    @classmethod
    def of(cls, pid: int, runs: int) -> Reading:
        """Measure a process after `runs` runs."""
        process = Path(f"/proc/{pid}")
        status = dict(line.split(":", 1) for line in (process / "status").read_text(encoding="utf-8").splitlines())
        resident = int(status["VmRSS"].split()[0]) / 1024
        files = []
        for _ in range(FILE_COUNTS):
            time.sleep(0.1)
            files.append(len(os.listdir(process / "fd")))
        return cls(runs, round(resident, 1), int(status["Threads"]), min(files))


@dataclass
class Report:
    """Results of a soak test: numbers of runs by outcome and kind of request, and of images by dtype."""

    runs: int = 0
    seconds: float = 0.0
    outcomes: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    unexpected: list[str] = field(default_factory=list)  # a sentence for each run with an unexpected outcome
    compared: Counter[str] = field(default_factory=Counter)
    identical: Counter[str] = field(default_factory=Counter)  # images that are equal to plain decoding
    readings: list[Reading] = field(default_factory=list)  # the first one is the baseline
    complaints: list[str] = field(default_factory=list)  # errors that the player reports at the end

    def failures(self) -> list[str]:
        """Return a sentence for each failed check."""
        failures = [*self.unexpected, *self.complaints]
        for dtype, compared in self.compared.items():
            different = compared - self.identical[dtype]
            permitted = max(1, MAX_DIFFERENT * compared) if dtype in ROUNDED else 0
            if different > permitted:
                failures.append(f"{different} of {compared} images in {dtype} differ from plain decoding.")
        first = self.readings[0]
        last = self.readings[-1]
        if last.resident > (1 + MAX_GROWTH) * first.resident:
            failures.append(f"Resident memory grew from {first.resident} to {last.resident} MiB.")
        for name in ("threads", "files"):
            before, after = (getattr(reading, name) for reading in (first, last))
            if before != after:
                failures.append(f"There were {before} {name} after the warm-up and {after} at the end.")
        return failures

    def table(self) -> str:
        """Return the results as a text table."""
        first = self.readings[0]
        last = self.readings[-1]
        maximum = Reading(*map(max, zip(*self.readings)))
        rows = {
            "runs": f"{self.runs} in {self.seconds:.0f} s: {_listed(self.kinds)}",
            "outcomes": _listed(self.outcomes),
            "unexpected": str(len(self.unexpected)),
        }
        rows |= {
            f"compared, {dtype}": f"{self.identical[dtype]} of {n} identical" for dtype, n in self.compared.items()
        }
        rows[f"after {first.runs} runs, maximum, end"] = ""
        for name in Reading._fields[1:]:
            rows[name] = " ".join(str(getattr(one, name)) for one in (first, maximum, last))
        width = max(map(len, rows))
        return "\n".join(f"{name:{width}}  {figure}".rstrip() for name, figure in rows.items())

    def to_json(self) -> dict:
        """Return the results as plain JSON types."""
        return {**vars(self), "readings": [one._asdict() for one in self.readings], "wrong": self.failures()}


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))


def soak(player: Player, runs: int, warm_up: int, seed: int = 0) -> Report:
    """Run a soak test."""
    report = Report()
    began = time.monotonic()
    for request in requests(seed, runs, player.dtypes, list(player.mistakes)):
        outcome = player.play(request)
        report.runs += 1
        report.kinds[request.kind] += 1
        report.outcomes[outcome.kind] += 1
        if unexpected := _unexpected(player, request, outcome):
            report.unexpected.append(unexpected)
        comparable = outcome.codes is not None and request.lantern is None and request.mistake is None
        if comparable and report.outcomes["finished"] % COMPARISON_INTERVAL == 0:
            same = (outcome.codes == plain_codes(player.target(request), request, outcome.codes)).all(1)
            report.compared[request.dtype] += len(same)
            report.identical[request.dtype] += int(same.sum())
        is_due = report.runs == warm_up or report.runs > warm_up and report.runs % READING_INTERVAL == 0
        if is_due or report.runs == runs:
            player.rest()
            report.readings.append(Reading.of(player.pid, report.runs))
            report.seconds = time.monotonic() - began
            print(f"{report.seconds:.0f} s: {report.readings[-1]}, {_listed(report.outcomes)}", flush=True)
    report.complaints = player.errors()
    return report


def _unexpected(player: Player, request: Request, outcome: Outcome) -> str:
    """Return a sentence about an unexpected outcome. If the outcome is permitted, return an empty string."""
    words = player.mistakes[request.mistake] if request.mistake else ""
    if outcome.kind in request.outcomes and words in outcome.message:
        return ""
    return f"Run {request.number} was {outcome.kind}: {outcome.message or 'no message'} ({request})"


def plain_codes(target: Target, request: Request, codes: Tensor) -> Tensor:
    """Return the codes [B, tokens] of a request's images with plain decoding.

    Args:
        codes: [B, tokens] codes of the run with drafts. If the request continues an image, the given tokens are copied
            from these codes.
    """
    pipeline = Pipeline(target, Recipe(Sampling(**request.sampling), Drafting(PLAIN), negative_prompt=request.negative))
    kept = codes[:, : request.kept(target)]
    return pipeline.decoding(request.texts, request.indices, kept=kept).run().grid_codes().flatten(1)
