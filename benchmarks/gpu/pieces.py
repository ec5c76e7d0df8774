"""What a round is made of, and how near it comes to what the device could do. Random weights, one image with guidance.

*Forward* reads a chain of tokens through layers and head and does nothing else. A *round* is the engine's. *Steps* is
the time in plain rounds of the same weights launched the same way. *Share of the limit*: the time that reading the
weights takes at this device's best rate, by the time measured. *Idle*: the part of the time in which no kernel ran.
*Kernels* ran on the device; *launches* are the host's calls for them. A drafter's *level* is what another forward of
its network adds to a round, and *the rest* is what a round takes beyond the forward of its tree and its levels. Of Emu3
an image of a quarter of its size is timed.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from functools import partial

import torch

from adt_core import Target
from adt_core.drafters import Drafter
from adt_core.engine.job import Job
from adt_core.policies import PLAIN

from . import device
from .device import CAPTURED, Activity, Case, spread
from .models import (
    ADT_TREE,
    BOTH,
    SHAPES,
    TITLES,
    WINDOW,
    Stream,
    forwards_of,
    halved,
    job_of,
    random_network,
    random_target,
    shape_of,
    tree_job,
    weight_bytes,
)

Key = tuple[str, str]
"""A piece, and how it is launched."""
NODES = (1, 8, 32, 64)
WIDTH, DEPTHS, DRAFTS = 8, (3, 6), 31
"""Trees that tell a level from the rest of a round: their sizes are equal, and their depths are not."""
LONGEST = 4096  # tokens of an image; longer ones would make the noise of all streams take minutes
ROUND, FORWARD, LEVEL, REST = "round: ", "forward of ", "drafter level", "the rest"
PLAIN_ROUND, TREES = f"{ROUND}plain", [f"{ROUND}tree of depth {depth}" for depth in DEPTHS]


def _jobs(target: Target, network: Drafter, guidance: float) -> dict[str, Job]:
    """The rounds that are timed."""
    methods = (PLAIN, ADT_TREE, WINDOW, BOTH)
    jobs = {f"{ROUND}{TITLES[method]}": job_of(target, network, method, guidance=guidance) for method in methods}
    trees = [tree_job(target, network, depth, WIDTH, DRAFTS, guidance=guidance) for depth in DEPTHS]
    return jobs | dict(zip(TREES, trees))


class Pieces:
    """Everything that is timed of one model. failed: errors by what could not be made or measured."""

    def __init__(self, target: Target, network: Drafter, guidance: float, warm: int):
        self.streams: dict[Key, Stream] = {}
        self.calls: dict[Key, Callable[[], object]] = {}
        self.failed: dict[str, str] = {}
        short = halved(target) if target.length > LONGEST else target
        forwards = forwards_of(short, NODES)
        for mode in device.modes():
            for piece, job in _jobs(short, network, guidance).items():
                self._add(self.streams, (piece, mode), partial(Stream, job, mode, warm=warm))
            for nodes, call in forwards.items():
                call()  # the first call is slow
                made = partial(device.recorded, call) if mode == CAPTURED else partial(lambda one: one, call)
                self._add(self.calls, (f"{FORWARD}{nodes}", mode), made)

    def _add(self, group: dict, key: Key, make: Callable[[], object]) -> None:
        try:
            group[key] = make()
        except Exception as error:  # the other pieces are measured none the less
            self.failed[" ".join(key)] = device.last_line(error)
            device.synchronise()  # raises if nothing can be

    def timed(self, repeats: int) -> dict[Key, list[float]]:
        """Seconds of every piece; they take turns."""
        clocks = {key: stream.seconds for key, stream in self.streams.items()}
        clocks |= {key: partial(device.seconds_of, call) for key, call in self.calls.items()}
        keys = {" ".join(key): key for key in clocks}
        taken, failed = device.interleaved({name: clocks[key] for name, key in keys.items()}, repeats)
        self.failed |= failed
        return {keys[name]: values for name, values in taken.items()}

    def profiled(self, key: Key, rounds: int) -> Activity | None:
        return self.streams[key].profiled(rounds) if key in self.streams else device.profiled(self.calls[key])

    def network_calls(self, key: Key) -> float:
        """Forwards of the drafter's network in a round."""
        return statistics.median(round.drafter_forwards for round in self.streams[key].rounds)

    def close(self) -> None:
        for stream in self.streams.values():
            stream.close()


def _row(key: Key, seconds: list[float], plain: float | None, seen: Activity | None, weights: int, rate: float) -> dict:
    """weights: bytes. rate: bytes a second at best."""
    median = statistics.median(seconds)
    return {
        "piece": key[0],
        "launched": key[1],
        "ms": spread(seconds, 1000),
        "steps": plain and median / plain,
        "GB/s of weights": weights / median / 1e9,
        "share of the limit": weights / median / rate,
        "kernels": seen and seen.kernels,
        "launches": seen and seen.launches,
        "idle": seen and max(0.0, 1 - seen.busy / median),
    }


def differences(taken: dict[Key, list[float]], network_calls: list[float], mode: str) -> list[dict]:
    """A level and the rest, from pieces launched in this way. network_calls: of the two TREES in a round."""
    needed = [(piece, mode) for piece in (*TREES, f"{FORWARD}{DRAFTS + 1}", PLAIN_ROUND)]
    if any(key not in taken for key in needed):
        return []
    short, long, verify, plain = (statistics.median(taken[key]) for key in needed)
    level = (long - short) / (network_calls[1] - network_calls[0])
    rest = short - verify - network_calls[0] * level
    return [
        {"piece": piece, "launched": mode, "ms": 1000 * seconds, "steps": seconds / plain}
        for piece, seconds in ((LEVEL, level), (REST, rest))
    ]


def _measure(name: str, weights: str | None, rehearse: bool, exact: bool = True) -> Iterator[dict]:
    shape, rate = shape_of(name, rehearse), device.limit(rehearse)
    repeats, warm, profiled = (2, 1, 1) if rehearse else (20, 8, 4)
    target = random_target(name, shape, torch.bfloat16, weights)
    target.decoder.exact = exact
    pieces = Pieces(target, random_network(target), shape.guidance, warm)
    head = {"table": "Pieces", "shape": name, "weights": (weights or "bf16") + ("" if exact else ", not exact")}
    try:
        taken, size = pieces.timed(repeats), weight_bytes(target)
        for mode in device.modes():
            plain = taken.get((PLAIN_ROUND, mode))
            step = statistics.median(plain) if plain else None
            keys = [key for key in taken if key[1] == mode]
            yield from (head | _row(key, taken[key], step, pieces.profiled(key, profiled), size, rate) for key in keys)
            trees = [(tree, mode) for tree in TREES]
            calls = [pieces.network_calls(key) for key in trees if key in taken]
            yield from (head | row for row in differences(taken, calls, mode))
    finally:
        yield from ({"what": f"{name} {what}", "error": error} for what, error in pieces.failed.items())
        pieces.close()


def cases(rehearse: bool) -> list[Case]:
    first, *others = SHAPES
    order = [(first, weights) for weights in (None, "int8", "fp8")] + [(name, None) for name in others]
    found = [(f"{name} {weights or 'bf16'}", partial(_measure, name, weights, rehearse)) for name, weights in order]
    return [*found, (f"{first} bf16, not exact", partial(_measure, first, None, rehearse, exact=False))]
