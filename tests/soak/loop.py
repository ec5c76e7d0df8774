"""The loop of a soak test: requests one after the other, a sample compared with plain decoding, and what the process
holds measured now and then."""

from __future__ import annotations

import os
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

from torch import Tensor

from adt_core import Drafting, Sampling
from adt_core.app.jobs import decode, new_decoding
from adt_core.engine.job import Job
from adt_core.models.target import Target
from adt_core.policies import PLAIN
from adt_core.policies.recipe import Recipe

from .mix import Request, requests

EVERY = 25
"""Runs between two readings of what the process holds."""
COMPARED = 4
"""Every so many finished runs, one is compared with plain decoding."""
GROWTH = 0.02
"""Share by which resident memory may grow between the warm-up and the end."""
ROUNDED = "float32", "int8 weights"
"""Dtypes in which a near tie may part an image from plain decoding; see benchmarks/lossless.py."""
PARTED = 0.01
"""Share of those images that may."""
LOOKS = 5
"""At open files, of which the fewest count: a request that was just answered may still have one."""


class Played(NamedTuple):
    """How a run ended. outcome: "finished", "cancelled" or "refused", else "failed". said: to the user, if it was
    refused or failed. codes: [B, cells] of the images, where they can be compared with plain decoding."""

    outcome: str
    said: str = ""
    codes: Tensor | None = None


class Player(Protocol):
    """Who runs the requests. pid: of the process that is measured. dtypes: to choose from. mistakes: that it knows, and
    words of the sentence with which each is refused."""

    pid: int
    dtypes: tuple[str, ...]
    mistakes: dict[str, str]

    def play(self, request: Request) -> Played: ...

    def target(self, request: Request) -> Target:
        """The model of a request, in this process."""
        ...

    def rest(self) -> None:
        """Let go of all that may go, and give memory back that nobody uses, so that readings can be compared."""
        ...

    def complaints(self) -> list[str]:
        """What else has gone wrong, at the end."""
        ...


class Reading(NamedTuple):
    """What a process holds after so many runs: resident MiB, threads, and open file descriptors."""

    runs: int
    resident: float
    threads: int
    files: int

    @classmethod
    def of(cls, pid: int, runs: int) -> Reading:
        process = Path(f"/proc/{pid}")
        status = dict(line.split(":", 1) for line in (process / "status").read_text(encoding="utf-8").splitlines())
        resident, files = int(status["VmRSS"].split()[0]) / 1024, []
        for _ in range(LOOKS):
            time.sleep(0.1)
            files.append(len(os.listdir(process / "fd")))
        return cls(runs, round(resident, 1), int(status["Threads"]), min(files))


@dataclass
class Report:
    """What was seen. unexpected: a sentence for each run that ended as it should not. compared, identical: images, by
    the dtype of their model. readings: the first is the baseline."""

    runs: int = 0
    seconds: float = 0.0
    outcomes: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    unexpected: list[str] = field(default_factory=list)
    compared: Counter[str] = field(default_factory=Counter)
    identical: Counter[str] = field(default_factory=Counter)
    readings: list[Reading] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def judge(self) -> list[str]:
        """What is wrong; empty if nothing is."""
        wrong = [*self.unexpected, *self.complaints]
        for dtype, compared in self.compared.items():
            parted, allowed = compared - self.identical[dtype], max(1, PARTED * compared) * (dtype in ROUNDED)
            if parted > allowed:
                wrong.append(f"{parted} of {compared} images in {dtype} are not those of plain decoding.")
        first, last = self.readings[0], self.readings[-1]
        if last.resident > (1 + GROWTH) * first.resident:
            wrong.append(f"Resident memory grew from {first.resident} to {last.resident} MiB.")
        for name in ("threads", "files"):
            if getattr(first, name) != getattr(last, name):
                wrong.append(f"There were {getattr(first, name)} {name}, and in the end {getattr(last, name)}.")
        return wrong

    def table(self) -> str:
        """The figures, for people."""
        first, last = self.readings[0], self.readings[-1]
        most = Reading(*map(max, zip(*self.readings)))
        rows = [
            ("runs", f"{self.runs} in {self.seconds:.0f} s: {_listed(self.kinds)}"),
            ("ended", _listed(self.outcomes)),
            ("unexpected", str(len(self.unexpected))),
            *(
                (f"compared, {dtype}", f"{self.identical[dtype]} of {n} identical")
                for dtype, n in self.compared.items()
            ),
            (f"after {first.runs} runs, most, end", ""),
            *((name, " ".join(str(getattr(one, name)) for one in (first, most, last))) for name in Reading._fields[1:]),
        ]
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name:{width}}  {figure}".rstrip() for name, figure in rows)

    def to_json(self) -> dict:
        """All of it as plain JSON types."""
        return {**vars(self), "readings": [one._asdict() for one in self.readings], "wrong": self.judge()}


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))


def soak(player: Player, runs: int, warm_up: int, seed: int = 0) -> Report:
    """Run so many requests. The baseline is what the process holds after the first ``warm_up``."""
    report, began = Report(), time.monotonic()
    for request in requests(seed, runs, player.dtypes, list(player.mistakes)):
        played = player.play(request)
        report.runs += 1
        report.kinds[request.kind] += 1
        report.outcomes[played.outcome] += 1
        if unexpected := _unexpected(player, request, played):
            report.unexpected.append(unexpected)
        comparable = played.codes is not None and request.lantern is None and request.mistake is None
        if comparable and report.outcomes["finished"] % COMPARED == 0:
            same = (played.codes == plain_codes(player.target(request), request, played.codes)).all(1)
            report.compared[request.dtype] += len(same)
            report.identical[request.dtype] += int(same.sum())
        measured = report.runs == warm_up or report.runs > warm_up and report.runs % EVERY == 0
        if measured or report.runs == runs:
            player.rest()
            report.readings.append(Reading.of(player.pid, report.runs))
            report.seconds = time.monotonic() - began
            print(f"{report.seconds:.0f} s: {report.readings[-1]}, {_listed(report.outcomes)}", flush=True)
    report.complaints = player.complaints()
    return report


def _unexpected(player: Player, request: Request, played: Played) -> str:
    """A sentence about a run that ended as it should not; empty for all others."""
    words = player.mistakes[request.mistake] if request.mistake else ""
    if played.outcome in request.outcomes and words in played.said:
        return ""
    return f"Run {request.number} was {played.outcome}: {played.said or 'nothing was said'} ({request})"


def plain_codes(target: Target, request: Request, codes: Tensor) -> Tensor:
    """The codes [B, cells] of the same images without drafts. codes: with drafts, whose beginning may be given."""
    job = Job(target, Recipe(Sampling(**request.sampling), Drafting(PLAIN), negative=request.negative))
    kept = codes[:, : request.kept(target)]
    return decode(new_decoding(job, request.texts, request.indices, prefix=kept)).grid_codes().flatten(1)
