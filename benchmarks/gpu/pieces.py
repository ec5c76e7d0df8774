"""Components of a round and their distance from the limit of the device; random weights, one image with guidance.

A *forward* passes a chain of tokens through layers and head and does nothing else. A *round* is the engine's. *Steps*
is the time in plain rounds of the same weights, launched the same way. *Share of the limit* is the time of reading the
weights at the device's highest memory rate, divided by the measured time. *Idle* is the share of the time in which no
kernel ran. *Kernels* ran on the device; *launches* are the host's calls for them. A *drafter level* is the time that
one more forward of the drafter's network adds to a round, and *the rest* is the time of a round beyond the forward of
its tree and its levels. For Emu3, an image with half as many rows and columns is timed.
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
    job_of,
    random_network,
    random_target,
    shape_of,
    tree_job,
    weight_bytes,
    with_quarter_grid,
)

Key = tuple[str, str]
"""Name of a piece, and how it is launched."""
NODES = (1, 8, 32, 64)
WIDTH = 8
DEPTHS = (3, 6)
DRAFTS = 31
"""Trees of the same size and different depth, which separate the time of a level from the rest of a round."""
LONGEST = 4096
"""Maximum tokens of a timed image; generating the noise of longer ones for all streams would take minutes."""
ROUND = "round: "
FORWARD = "forward of "
LEVEL = "drafter level"
REST = "the rest"
PLAIN_ROUND = f"{ROUND}plain"
TREES = [f"{ROUND}tree of depth {depth}" for depth in DEPTHS]


def _jobs(target: Target, network: Drafter, guidance: float) -> dict[str, Job]:
    """Return the jobs whose rounds are timed, by piece."""
    methods = (PLAIN, ADT_TREE, WINDOW, BOTH)
    jobs = {f"{ROUND}{TITLES[method]}": job_of(target, network, method, guidance=guidance) for method in methods}
    trees = [tree_job(target, network, depth, WIDTH, DRAFTS, guidance=guidance) for depth in DEPTHS]
    return jobs | dict(zip(TREES, trees))


class Pieces:
    """All timed pieces of one model.

    Args:
        target: Target model.
        network: Drafter network.
        guidance: Guidance scale.
        warm_up: Untimed rounds of each stream.

    Attributes:
        streams: Rounds by key.
        calls: Forwards by key.
        failed: Errors by the name of the piece.
    """

    def __init__(self, target: Target, network: Drafter, guidance: float, warm_up: int):
        self.streams: dict[Key, Stream] = {}
        self.calls: dict[Key, Callable[[], object]] = {}
        self.failed: dict[str, str] = {}
        short = with_quarter_grid(target) if target.length > LONGEST else target
        forwards = forwards_of(short, NODES)
        for mode in device.modes():
            for piece, job in _jobs(short, network, guidance).items():
                self._add(self.streams, (piece, mode), partial(Stream, job, mode, warm_up=warm_up))
            for nodes, call in forwards.items():
                call()  # warm-up
                make = partial(device.capture, call) if mode == CAPTURED else partial(lambda call: call, call)
                self._add(self.calls, (f"{FORWARD}{nodes}", mode), make)

    def _add(self, group: dict, key: Key, make: Callable[[], object]) -> None:
        try:
            group[key] = make()
        except Exception as error:  # continue with the other pieces
            self.failed[" ".join(key)] = device.describe_error(error)
            device.synchronise()  # raises if the device has failed

    def timed(self, repeats: int) -> dict[Key, list[float]]:
        """Return the seconds of every piece from interleaved runs."""
        timers = {key: stream.seconds for key, stream in self.streams.items()}
        timers |= {key: partial(device.seconds_of, call) for key, call in self.calls.items()}
        keys = {" ".join(key): key for key in timers}
        times, failed = device.measure_interleaved({name: timers[key] for name, key in keys.items()}, repeats)
        self.failed |= failed
        return {keys[name]: seconds for name, seconds in times.items()}

    def profiled(self, key: Key, rounds: int) -> Activity | None:
        """Return the activity of the device in a forward, or the mean activity of some rounds."""
        return self.streams[key].profiled(rounds) if key in self.streams else device.profiled(self.calls[key])

    def network_calls(self, key: Key) -> float:
        """Return the median number of drafter forwards in a round."""
        return statistics.median(round.drafter_forwards for round in self.streams[key].rounds)

    def close(self) -> None:
        """Free the caches."""
        for stream in self.streams.values():
            stream.close()


def _row(
    key: Key, seconds: list[float], plain: float | None, activity: Activity | None, weights: int, rate: float
) -> dict:
    """Return the row of a piece.

    Args:
        key: Piece and launch mode.
        seconds: Measured times.
        plain: Median seconds of a plain round.
        activity: Profile of the piece.
        weights: Bytes of the weights.
        rate: Highest memory rate of the device in bytes per second.
    """
    median = statistics.median(seconds)
    return {
        "piece": key[0],
        "launched": key[1],
        "ms": spread(seconds, 1000),
        "steps": plain and median / plain,
        "GB/s of weights": weights / median / 1e9,
        "share of the limit": weights / median / rate,
        "kernels": activity and activity.kernels,
        "launches": activity and activity.launches,
        "idle": activity and max(0.0, 1 - activity.busy / median),
    }


def differences(times: dict[Key, list[float]], network_calls: list[float], mode: str) -> list[dict]:
    """Derive the rows of a drafter level and of the rest of a round.

    With trees of the same size, round = forward of the tree + network calls * level + rest.

    Args:
        times: Seconds by piece.
        network_calls: Drafter forwards in a round for each of `TREES`.
        mode: How the pieces were launched.

    Returns:
        Two rows, or none if a piece is missing.
    """
    needed = [(piece, mode) for piece in (*TREES, f"{FORWARD}{DRAFTS + 1}", PLAIN_ROUND)]
    if any(key not in times for key in needed):
        return []
    shallow, deep, verify, plain = (statistics.median(times[key]) for key in needed)
    level = (deep - shallow) / (network_calls[1] - network_calls[0])
    rest = shallow - verify - network_calls[0] * level
    return [
        {"piece": piece, "launched": mode, "ms": 1000 * seconds, "steps": seconds / plain}
        for piece, seconds in ((LEVEL, level), (REST, rest))
    ]


def _measure(name: str, weights: str | None, rehearse: bool, exact: bool = True) -> Iterator[dict]:
    shape = shape_of(name, rehearse)
    rate = device.highest_memory_rate(rehearse)
    repeats, warm_up, profiled = (2, 1, 1) if rehearse else (20, 8, 4)
    target = random_target(name, shape, torch.bfloat16, weights)
    target.decoder.exact = exact
    pieces = Pieces(target, random_network(target), shape.guidance, warm_up)
    head = {"table": "Pieces", "shape": name, "weights": (weights or "bf16") + ("" if exact else ", not exact")}
    size = weight_bytes(target)
    try:
        times = pieces.timed(repeats)
        for mode in device.modes():
            plain = times.get((PLAIN_ROUND, mode))
            step = statistics.median(plain) if plain else None
            for key in [key for key in times if key[1] == mode]:
                yield head | _row(key, times[key], step, pieces.profiled(key, profiled), size, rate)
            trees = [(tree, mode) for tree in TREES]
            calls = [pieces.network_calls(key) for key in trees if key in times]
            yield from (head | row for row in differences(times, calls, mode))
    finally:
        yield from ({"what": f"{name} {what}", "error": error} for what, error in pieces.failed.items())
        pieces.close()


def cases(rehearse: bool) -> list[Case]:
    """Return the cases of this part: the first shape with all weights, the others in bfloat16."""
    first, *others = SHAPES
    order = [(first, weights) for weights in (None, "int8", "fp8")] + [(name, None) for name in others]
    found = [(f"{name} {weights or 'bf16'}", partial(_measure, name, weights, rehearse)) for name, weights in order]
    return [*found, (f"{first} bf16, not exact", partial(_measure, first, None, rehearse, exact=False))]
