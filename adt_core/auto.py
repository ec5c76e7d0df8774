"""The cost-aware policy: as many drafts as pay for themselves on this device.

A round with n drafts takes the time of c(n) plain steps, measured, and brings 1 + (sum of the drafts' acceptance probabilities) tokens, which
calibrated drafters know beforehand. Over a whole image tokens per time are highest when every round maximises
``tokens - pace * c(n)``, where pace is the tokens per plain step's time that the policy achieves (Dinkelbach, Management Science 13, 1967:
the best ratio of two sums is found by maximising their weighted difference). Plain decoding has pace 1 and is the floor.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from weakref import WeakKeyDictionary

import torch

from .shape import AUTO_WIDTH, SIZES, TreeShape, spine
from .trace import ImageRound

MEASURED = (1, 9, 17, 33, 65)
"""Nodes of the forwards that are timed; what lies between is interpolated."""
REPEATS = 3
STAKE = 0.025
"""Share of an image's plain decoding time that drafting may lose before it has earned anything; from then on only gains are gambled."""
RICHES = 0.25
"""The same for gains: no more are remembered, so that drafting is soon given up where it has ceased to pay."""
OVERHEAD = 0.5
"""Plain steps that drafting takes, before any was seen."""
LEARNING = 0.1
MEMORY = 0.97
"""Weight of the past, per round, in the pace."""

_measured: WeakKeyDictionary[torch.nn.Module, dict[tuple, dict[int, float]]] = WeakKeyDictionary()
_experience: WeakKeyDictionary[object, dict[tuple, Experience]] = WeakKeyDictionary()


def verify_costs(forward: Callable[[int], object], decoder: torch.nn.Module, rows: int) -> dict[int, float]:
    """Time of a target forward over n nodes, in plain steps, for the n of MEASURED.

    ``forward`` runs one and waits for it. Measured once for a decoder on its device, in its dtype and with this number of rows.
    """
    key = (rows, str(decoder.embedding.device), decoder.embedding.dtype)
    known = _measured.setdefault(decoder, {})
    if key not in known:
        seconds = {n: statistics.median(_timed(forward, n) for _ in range(REPEATS)) for n in MEASURED}
        known[key] = {n: max(1.0, seconds[n] / seconds[1]) for n in MEASURED} | {0: seconds[1]}
    return known[key]


def _timed(forward: Callable[[int], object], nodes: int) -> float:
    forward(nodes)
    started = time.perf_counter()
    forward(nodes)
    return time.perf_counter() - started


class Experience:
    """What outlives an image: how fast rounds were, what drafting costs beside the forward, and what it has earned."""

    def __init__(self, length: int) -> None:
        self.tokens = self.cost = 10.0  # running sums; their ratio is the pace
        self.overhead: dict[int, float] = {}  # plain steps, by size
        self.stake = self.credit = STAKE * length  # plain steps that drafting may still lose
        self.riches = RICHES * length
        self.failures = self.passed_over = 0  # images given up since drafting last paid; images without a try since the last one

    def begin(self) -> bool:
        """Is drafting worth a try in another image? After n failures in a row, 4 ** (n - 1) - 1 images are passed over."""
        if self.failures and self.passed_over < 4 ** (self.failures - 1) - 1:
            self.passed_over += 1
            return False
        self.passed_over = 0
        return True

    def earned(self, gain: float) -> bool:
        """A round with drafts brought so many tokens more than it took plain steps. Should the image go on with drafts?"""
        self.credit = min(self.credit + gain, self.riches)
        if self.credit > 2 * self.stake:
            self.failures = 0
        if self.credit >= 0:
            return True
        self.failures, self.credit = self.failures + 1, self.stake
        return False

    def overhead_at(self, size: int) -> float:
        """That of the size, or of the nearest one that has been tried."""
        if not self.overhead:
            return OVERHEAD
        return self.overhead[min(self.overhead, key=lambda tried: abs(tried - size))]

    def saw_overhead(self, size: int, steps: float) -> None:
        known = self.overhead_at(size)
        self.overhead[size] = known + LEARNING * (min(max(steps, 0.0), known + 1) - known)  # one slow round must not count for much


def experience(drafter: object, key: tuple, length: int) -> Experience:
    """That of a drafter under settings ``key``, whose images have ``length`` tokens."""
    return _experience.setdefault(drafter, {}).setdefault(key, Experience(length))


class CostAware:
    """One for all images of a batch, whose rounds cost what they cost together; prices and tokens are per image."""

    def __init__(self, costs: dict[int, float], experience: Experience, images: int):
        self._costs, self._known, self._images = costs, experience, images
        self._level, self._drafts = 1, experience.begin()

    @property
    def pace(self) -> float:
        return max(1.0, self._known.tokens / self._known.cost)

    def _cost(self, drafts: int) -> float:
        """Plain steps' time of a round with ``drafts`` drafts, drafting included."""
        return self._verify(drafts) + self._known.overhead_at(drafts)

    def _verify(self, drafts: int) -> float:
        n = drafts + 1
        low = max(m for m in MEASURED if m <= n)
        high = min((m for m in MEASURED if m >= n), default=low)
        share = (n - low) / (high - low) if high > low else 0.0
        return self._costs[low] + share * (self._costs[high] - self._costs[low])

    def choose(self, position: int) -> TreeShape:
        """All sizes up to one above the last, and what each has to bring; no drafts any more in an image where they have not paid."""
        if not self._drafts:
            return TreeShape(0, 1)
        sizes = SIZES[: self._level + 2]
        return TreeShape(spine(sizes[-1]), AUTO_WIDTH, tuple((n, self.pace * self._cost(n)) for n in sizes))

    def update(self, share: ImageRound, seconds: float) -> None:
        """Learn from an image's share of a round that took ``seconds``."""
        known, cost = self._known, 1.0
        if share.depth > 0:
            size = next(size for size in SIZES if size >= share.nodes)
            known.saw_overhead(size, seconds / self._costs[0] - self._verify(size))
            cost = self._cost(size)
            self._level = SIZES.index(size)
            self._drafts &= known.earned((share.accepted + 1 - cost) / self._images)
        known.tokens, known.cost = MEMORY * known.tokens + share.accepted + 1, MEMORY * known.cost + cost
