"""Measurement of cost profiles: how long rounds with drafts take on this device, relative to plain steps.

It runs once per model and device, after a decoding, when everything is warm. Plain steps and rounds with drafts are
timed alternately, so that a busy machine slows both. The time of each round is divided by the median time of the plain
steps of its turn, and the profile stores the median of these ratios.
"""

from __future__ import annotations

import logging
import platform
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from statistics import median

import torch
from torch import Tensor

from ...policies import NO_DRAFTS, CostProfile, Shape
from ...policies.costs import Curve, rounded
from .. import pool
from ..graphs import disabled_reason
from ..queue import ImageQueue
from ..request import Request
from ..round import run_round
from ..slots import Slots
from .memory import cpu_memory_shortage, gpu_memory_shortage

MAX_READINGS = 9
"""Readings of each shape at most."""
SETS_OF_SLOTS = 3
"""Sets of slots in memory at a time: for plain steps, for one draft mode, and for images that have started again."""
TIME_LIMIT = 0.7
"""Seconds per draft mode after which no further readings begin. Each shape is read at least once."""


def profile_name(request: Request) -> str:
    """Return the name of a cost profile: everything that the cost of a round depends on except the batch size.

    The name does not identify the machine or its user.
    """
    decoder = request.target.decoder
    config = decoder.config
    device = decoder.embedding.device
    cpu = f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}, threads: {request.threads}"
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else cpu
    model = f"{request.target.name} {config.num_layers}x{config.hidden_size}, {request.target.length} tokens"
    network = request.job.drafter.network if request.job.drafter is not None else None
    size = sum(part.numel() for part in network.parameters()) if network is not None else 0
    modes = "+".join(mode.name for mode in request.modes)
    numbers, drawn = request.recipe.cost_key()
    rows = f"{request.groups} rows, {drawn}"
    if decoder.tile:
        numbers += f", tiles of {decoder.tile}"
    if decoder.fallback is not None and not decoder.fallback.far:
        numbers += ", no far keys"
    if request.replayed and disabled_reason(decoder):
        where += ", no graphs"
    return f"{where}, torch {torch.__version__}; {model}, {numbers}; {modes} {size}; {rows}"[:200]


def measure(request: Request, images: int, codes: Tensor) -> CostProfile:
    """Measure the cost of a request's rounds.

    The first half of each image is kept as a prefix, and rounds are timed in the tokens after it. The decoded tokens
    are discarded.

    Args:
        request: Gives the models, the settings, and the policy whose `measured_shapes` are timed.
        images: Batch size.
        codes: Tokens [B, T] of generated images.

    Returns:
        The profile, which is not saved yet.

    Raises:
        MemoryError: If memory is too short for measuring.
    """
    began = time.perf_counter()
    request = replace(request, prefix=codes[:, : max(request.start, request.target.length // 2)])
    shortage = cpu_memory_shortage(request, SETS_OF_SLOTS * images)
    pooled = pool.held_bytes(request.target.decoder)
    shortage = shortage or gpu_memory_shortage(request, SETS_OF_SLOTS * images, pooled)
    if shortage:
        raise MemoryError(shortage)
    pool.release(request.target.decoder)  # makes room for the sets of slots
    plain = _TimedRounds(request, images, drafts=False)
    costs = {}
    for mode in request.modes:
        shapes = request.drafting.policy.measured_shapes(mode)
        costs[mode.name] = _curve(plain, _TimedRounds(request, images, drafts=True), shapes)
    profile = CostProfile(profile_name(request), images, costs)
    logging.getLogger(__name__).info(
        "Measured the cost of drafts on this device in %.1f s: profile %s.",
        time.perf_counter() - began,
        profile.digest,
    )
    return profile


def _curve(plain: _TimedRounds, drafting: _TimedRounds, shapes: Sequence[Shape]) -> Curve:
    """Return the cost of a round of each shape, by its number of drafts; a plain step costs 1."""
    began = time.perf_counter()
    ratios: dict[Shape, list[float]] = {shape: [] for shape in shapes}
    for turn in range(1 + MAX_READINGS):
        readings = [(plain.seconds(NO_DRAFTS), drafting.seconds(shape)) for shape in shapes]
        is_warm_up = turn == 0
        if is_warm_up:
            continue
        step = median(seconds for seconds, _ in readings)
        for ratio, (_, seconds) in zip(ratios.values(), readings):
            ratio.append(seconds / step)
        if time.perf_counter() - began > TIME_LIMIT:
            break
    steps = accumulate(map(median, ratios.values()), max)  # more drafts are never cheaper
    return tuple((shape.nodes, rounded(cost)) for shape, cost in zip(ratios, steps))


class _TimedRounds:
    """Rounds of the same images, which start again before they are finished."""

    def __init__(self, request: Request, images: int, drafts: bool):
        self._request = request
        self._images = images
        self._queue = ImageQueue(request, lambda: drafts, lambda *_: None)
        self._queue.begin([], images)

    def seconds(self, shape: Shape) -> float:
        """Run a round with trees of this shape and return its time in seconds.

        A round that was captured as a graph is repeated, because its time includes the capture.
        """
        while True:
            slots = self._unfinished_slots()
            shapes = [self._request.cut(shape)] * len(slots)
            attempts = slots.graphs.attempts
            with torch.inference_mode():
                started = time.perf_counter()
                run_round(slots, shapes, [0] * len(slots))
                seconds = time.perf_counter() - started
            if slots.graphs.attempts == attempts:
                return seconds

    def _unfinished_slots(self) -> Slots:
        """Return the slots; all images start again once one has decoded half of the tokens after the prefix."""
        slots = self._queue.slots
        length = self._request.target.length
        if slots is None or max(slots.positions) >= (length + self._request.start) // 2:
            slots = self._queue.restart(list(range(self._images)))
        return slots
