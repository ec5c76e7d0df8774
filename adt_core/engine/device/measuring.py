"""What rounds cost on this device: they are timed once, when a decoding has ended and all is warm.

Plain steps and rounds with drafts take turns, so that a machine which is busy for a while slows both. A round counts in
the median of its turn's plain steps, and of these ratios the median counts.
"""

from __future__ import annotations

import logging
import platform
import time
from dataclasses import replace
from itertools import accumulate
from statistics import median

import torch
from torch import Tensor

from ...policies import NO_DRAFTS, CostProfile, Source
from ...policies.auto import shape_of
from ...policies.costs import Curve, rounded
from .. import pool
from ..graphs import disabled_reason
from ..queue import ImageQueue
from ..request import Request
from ..round import run_round
from ..slots import Slots
from .memory import cpu_memory_shortage, gpu_memory_shortage

CHAINS, TREES = (0, 4, 16, 31), (0, 8, 31, 63)
"""Numbers of drafts that are timed; costs of others lie on lines between them. With guidance and one image a GPU's
product has room for 31 in the exact mode, and two products for 63."""
READINGS = 9
"""Of every size, at most."""
SETS = 3
"""Sets of slots that are there together: of plain steps, of a source, and of images that are begun anew."""
ENOUGH_SECONDS = 0.7
"""Of a source: after these no further readings are begun, but each size has one in any case."""


def name_of(request: Request) -> str:
    """What a profile is measured for: all that the costs of this request's rounds depend on but how many images there are.

    It says nothing of whose machine it is.
    """
    decoder, config = request.target.decoder, request.target.decoder.config
    device = decoder.embedding.device
    cpu = f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}, threads: {request.threads}"
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else cpu
    model = f"{request.target.name} {config.num_layers}x{config.hidden_size}, {request.target.length} tokens"
    network = request.drafter.network if request.drafter is not None else None
    size = sum(part.numel() for part in network.parameters()) if network is not None else 0
    sources = "+".join(source.name for source in request.sources)
    numbers, drawn = request.recipe.costs()
    rows = f"{request.groups} rows, {drawn}"
    if decoder.tile:
        numbers += f", tiles of {decoder.tile}"
    if decoder.fallback is not None and not decoder.fallback.far:
        numbers += ", no far keys"
    if request.replayed and disabled_reason(decoder):
        where += ", no graphs"
    return f"{where}, torch {torch.__version__}; {model}, {numbers}; {sources} {size}; {rows}"[:200]


def measure(request: Request, images: int, codes: Tensor) -> CostProfile:
    """The costs of this request's rounds with so many images together. codes: tokens [B, T], best those that it has drawn.

    The lower half of these images is drawn again and again; nothing is kept of it. MemoryError if there is no room.
    """
    began = time.perf_counter()
    request = replace(request, prefix=codes[:, : max(request.start, request.target.length // 2)])
    if said := cpu_memory_shortage(request, SETS * images) or gpu_memory_shortage(request, SETS * images):
        raise MemoryError(said)
    pool.release(request.target.decoder)  # or there might be too little memory for more sets of slots
    plain = _Rounds(request, None, images)
    costs = {source.name: _curve(plain, _Rounds(request, source, images), source) for source in request.sources}
    profile = CostProfile(name_of(request), images, costs)
    took = time.perf_counter() - began
    logging.getLogger(__name__).info(
        "Measured the cost of drafts on this device in %.1f s: profile %s.", took, profile.digest
    )
    return profile


def _curve(plain: _Rounds, drafting: _Rounds, source: Source) -> Curve:
    """Plain steps that the rounds of a source take, by their number of drafts."""
    began = time.perf_counter()
    ratios: dict[int, list[float]] = {size: [] for size in (CHAINS if source.width == 1 else TREES)}
    for turn in range(1 + READINGS):
        readings = [(plain.seconds(0), drafting.seconds(size)) for size in ratios]
        step = median(seconds for seconds, _ in readings)
        if turn:  # in the first, things are done for the first time
            for ratio, (_, seconds) in zip(ratios.values(), readings):
                ratio.append(seconds / step)
        if turn and time.perf_counter() - began > ENOUGH_SECONDS:
            break
    steps = accumulate(map(median, ratios.values()), max)  # more drafts are never cheaper
    return tuple(zip(ratios, map(rounded, steps)))


class _Rounds:
    """Rounds of one source, or without drafts, one after the other, in the lower half of images."""

    def __init__(self, request: Request, source: Source | None, images: int):
        self._request, self._images, self._source = request, images, source
        self._queue = ImageQueue(request, lambda: source is not None, lambda *_: None)
        self._queue.begin([], images)

    def seconds(self, size: int) -> float:
        """Of a round with so many drafts for every image."""
        slots = self._ready()
        shape = shape_of(self._source, size) if self._source else NO_DRAFTS
        shapes = [self._request.cut(shape)] * len(slots)
        with torch.inference_mode():
            started, attempts = time.perf_counter(), slots.graphs.attempts
            run_round(slots, shapes, [0] * len(slots))
            seconds = time.perf_counter() - started
        return seconds if slots.graphs.attempts == attempts else self.seconds(size)  # it took the capture's time, too

    def _ready(self) -> Slots:
        """Slots whose images have not reached their last quarter; if they have, they begin again."""
        slots, length = self._queue.slots, self._request.target.length
        if slots is None or max(slots.positions) >= (length + self._request.start) // 2:
            slots = self._queue.restart(list(range(self._images)))
        return slots
