"""Components of a round ("pieces"), compared with the limit of the device.

The models have random weights and decode one image with guidance. For Emu3, the image has half as many rows and
columns.

Pieces:

- *Forward*: the layers and the head process a chain of tokens. Nothing else happens.
- *Round*: a complete round of the engine.
- *Drafter level*: the time that one more forward of the drafter's network adds to a round.
- *The rest*: the time of a round without the forward of its tree and without its drafter levels.

Columns:

- *Steps*: the time of the piece, divided by the time of a plain round with the same weights and launch mode.
- *Share of the limit*: the time to read the weights at the highest memory rate of the device, divided by the time of
  the piece.
- *Kernels*: number of kernels that the device ran.
- *Launches*: number of calls with which the host launched kernels.
- *Idle*: share of the piece's time in which no kernel ran.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from functools import partial

import torch

from adt_core import Pipeline, Target
from adt_core.drafters import Drafter
from adt_core.policies import PLAIN

from . import device
from .device import CAPTURED, Activity, Case, spread
from .models import (
    ADT_TREE,
    MERGED,
    SHAPES,
    TITLES,
    WINDOW,
    Stream,
    forwards_of,
    pipeline_of,
    random_network,
    random_target,
    shape_of,
    tree_pipeline,
    weight_bytes,
    with_quarter_grid,
)

Key = tuple[str, str]  # name of a piece, and launch mode (`device.EAGER` or `device.CAPTURED`)
NODES = (1, 8, 32, 64)
WIDTH = 8
DEPTHS = (3, 6)
DRAFTS = 31
"""`WIDTH`, `DEPTHS` and `DRAFTS` define two trees with the same number of drafts and different depths.

Comparing the two depths separates the time of a drafter level from the rest of a round."""
LONGEST = 4096  # maximum number of tokens in a timed image; generating the noise of longer images would take minutes
ROUND = "round: "
FORWARD = "forward of "
LEVEL = "drafter level"
REST = "the rest"
PLAIN_ROUND = f"{ROUND}plain"
TREES = [f"{ROUND}tree of depth {depth}" for depth in DEPTHS]


def _pipelines(target: Target, network: Drafter) -> dict[str, Pipeline]:
    """Return the pipelines whose rounds are timed, by the name of the piece."""
    methods = (PLAIN, ADT_TREE, WINDOW, MERGED)
    pipelines = {f"{ROUND}{TITLES[method]}": pipeline_of(target, network, method) for method in methods}
    trees = [tree_pipeline(target, network, depth, WIDTH, DRAFTS) for depth in DEPTHS]
    return pipelines | dict(zip(TREES, trees))


class Pieces:
    """All timed pieces of one model.

    Args:
        warm_up: Number of untimed rounds at the start of each stream.
    """

    def __init__(self, target: Target, network: Drafter, warm_up: int):
        self.streams: dict[Key, Stream] = {}  # for pieces that are rounds
        self.calls: dict[Key, Callable[[], object]] = {}  # for pieces that are forwards
        self.failed: dict[str, str] = {}  # errors, by the name and launch mode of the piece
        short = with_quarter_grid(target) if target.length > LONGEST else target
        forwards = forwards_of(short, NODES)
        for mode in device.modes():
            for piece, pipeline in _pipelines(short, network).items():
                self._add(self.streams, (piece, mode), partial(Stream, pipeline, mode, warm_up=warm_up))
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
        """Run all pieces interleaved, and return the seconds of every piece."""
        timers = {key: stream.seconds for key, stream in self.streams.items()}
        timers |= {key: partial(device.seconds_of, call) for key, call in self.calls.items()}
        keys = {" ".join(key): key for key in timers}
        times, failed = device.measure_interleaved({name: timers[key] for name, key in keys.items()}, repeats)
        self.failed |= failed
        return {keys[name]: seconds for name, seconds in times.items()}

    def profiled(self, key: Key, rounds: int) -> Activity | None:
        """Return the activity of the device in one forward, or the mean activity of a round."""
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
        seconds: Measured times of the piece in seconds.
        plain: Median time of a plain round in seconds, or None.
        activity: Activity of the device in the piece, or None.
        weights: Size of the weights in bytes.
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
        **device.columns_of(activity, median),
    }


def differences(times: dict[Key, list[float]], network_calls: list[float], mode: str) -> list[dict]:
    """Compute the rows for a drafter level and for the rest of a round from the times of other pieces.

    For both trees, round = forward of the tree + network calls * level + rest. For example, if the rounds with 3 and 6
    network calls take 16 ms and 19 ms, a level takes 1 ms. If the forward takes 12 ms, the rest takes 1 ms.

    Args:
        times: Seconds by piece.
        network_calls: Number of drafter forwards in a round, for each of `TREES`.

    Returns:
        Two rows, or an empty list if a piece is missing.
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
    rate = device.highest_memory_rate(rehearse)
    repeats, warm_up, profiled = (2, 1, 1) if rehearse else (20, 8, 4)
    target = random_target(name, shape_of(name, rehearse), torch.bfloat16, weights)
    target.decoder.exact = exact
    pieces = Pieces(target, random_network(target), warm_up)
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
    """Return the cases of this part: the first shape with all types of weights, then the others in bfloat16."""
    first, *others = SHAPES
    order = [(first, weights) for weights in (None, "int8", "fp8", "int4")] + [(name, None) for name in others]
    found = [(f"{name} {weights or 'bf16'}", partial(_measure, name, weights, rehearse)) for name, weights in order]
    return [*found, (f"{first} bf16, not exact", partial(_measure, first, None, rehearse, exact=False))]
