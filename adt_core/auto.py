"""The cost-aware policy: as many drafts as pay for themselves on this device, from the source that pays best.

A round with n drafts takes the time of c(n) plain steps, measured, and brings 1 + (sum of the drafts' acceptance probabilities) tokens, which
calibrated drafters know beforehand. Over a whole image tokens per time are highest when every round maximises
``tokens - pace * c(n)``, where pace is the tokens per plain step's time that the policy achieves (Dinkelbach, Management Science 13, 1967:
the best ratio of two sums is found by maximising their weighted difference). Plain decoding has pace 1 and is the floor.

Whether drafting pays at all shows only after a while: the first rows of a first image, where no window has learned anything, may lose what the
rest brings back many times over. One account over all images bounds what finding out may cost: STAKE of an image once, ALLOWANCE of every later
image. N images lose at most about STAKE + N * ALLOWANCE of one image's time, and the few rounds in which a slow drafter is recognised. Pictures
differ, and gains carry over the one that drafting is no good for: to finish it plainly after its first losses would also stop many that make up for them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch

from .shape import AUTO_WIDTH, SIZES, TreeShape, spine
from .trace import ImageRound

MEASURED = (1, 9, 17, 33, 65)
"""Nodes of the forwards that are timed; what lies between is interpolated."""
REPEATS = 3
"""Readings, of which the least counts: noise only adds, and a captured forward comes into its own with the third."""
DEAR = 2.0
"""Plain steps. Above a size that takes longer none is timed, since it would be a waste in a batch of many images: costs go on rising as they did."""
STAKE = 0.08
"""Plain decoding time, in images, that drafting may lose before it has gained any: enough for most slow starts, and with its overshoot below 3 % of eight."""
ALLOWANCE = 0.01
"""What every image thereafter gives back of a lost stake; once it is whole, there is another try."""
RICHES = 1.0
"""Gains are remembered up to here, in images: enough for a few pictures that lose a quarter each, and drafting is still given up where it has ceased to pay."""
FEW = 3
"""Images drawn together that may lose a whole STAKE; of more, the share that keeps eight of them below 3 %, too."""
MODEST = 16
"""Drafts of a round at most while the account holds no gains."""
CHAIN = 16
"""Drafts of a chain."""
OVERHEAD = 0.5
"""Plain steps that drafting takes, before any was seen."""
LEARNING = 0.2
MEMORY = 0.9
"""Weight of the past, per image, in how fast a source is."""
CURIOSITY = 0.2
"""A source that was seen for one image may be this much faster than it seemed; for n images, 1 / sqrt(n) of it."""

_measured: WeakKeyDictionary[torch.nn.Module, dict[tuple, Costs]] = WeakKeyDictionary()
_experience: WeakKeyDictionary[object, dict[tuple, Experience]] = WeakKeyDictionary()


class Costs(NamedTuple):
    """plain: seconds of a plain step. steps: how many of those a target forward takes, by its nodes; the nodes are MEASURED."""

    plain: float
    steps: dict[int, float]

    def of(self, nodes: int) -> float:
        """Plain steps' time of a forward over 1 to 65 nodes."""
        low, high = max(n for n in MEASURED if n <= nodes), min(n for n in MEASURED if n >= nodes)
        share = (nodes - low) / (high - low) if high > low else 0.0
        return self.steps[low] + share * (self.steps[high] - self.steps[low])


def verify_costs(forward: Callable[[int], object], decoder: torch.nn.Module, rows: int) -> Costs:
    """What target forwards cost. ``forward`` runs one over so many nodes and waits for it.

    Measured once for a decoder on its device, in its dtype and with this number of rows.
    """
    key = (rows, str(decoder.embedding.device), decoder.embedding.dtype)
    known = _measured.setdefault(decoder, {})
    if key not in known:
        plain = min(_timed(forward, 1) for _ in range(REPEATS))
        steps = {1: 1.0}
        for nodes in MEASURED[1:]:
            last = max(steps)
            if steps[last] > DEAR:
                first = MEASURED[MEASURED.index(last) - 1]
                steps[nodes] = steps[last] + (steps[last] - steps[first]) / (last - first) * (nodes - last)
            else:
                steps[nodes] = max(steps[last], min(_timed(forward, nodes) for _ in range(REPEATS)) / plain)
        known[key] = Costs(plain, steps)
    return known[key]


def _timed(forward: Callable[[int], object], nodes: int) -> float:
    started = time.perf_counter()
    forward(nodes)
    return time.perf_counter() - started


class Source:
    """What is remembered of one source of drafts: the tokens it brought, the plain steps' time that took, and what drafting costs beside the forward."""

    def __init__(self) -> None:
        self.tokens = self.cost = 0.0
        self.overhead: dict[int, float] = {}  # plain steps, by size

    @property
    def pace(self) -> float:
        """Tokens per plain step's time; a little of plain decoding's is mixed in, for a start."""
        return (self.tokens + 10) / (self.cost + 10)

    def promise(self, length: int) -> float:
        """The pace that it may well have."""
        return self.pace * (1 + CURIOSITY * math.sqrt(length / self.tokens)) if self.tokens else math.inf

    def overhead_at(self, size: int) -> float:
        """That of the size, or of the nearest one that has been tried."""
        if not self.overhead:
            return OVERHEAD
        return self.overhead[min(self.overhead, key=lambda tried: abs(tried - size))]

    def saw_overhead(self, size: int, steps: float) -> None:
        known = self.overhead_at(size)
        self.overhead[size] = known + LEARNING * (min(max(steps, 0.0), known + 1) - known)  # a slow round, as when warming up, costs one step at most


class Experience:
    """What outlives an image: the account, in plain steps, and the sources.

    length: tokens of an image. sources: how many there are to choose from. together: images that are drawn at the same time, whose rounds are one.
    """

    def __init__(self, length: int, sources: int = 1, together: int = 1) -> None:
        self._stake = STAKE * length * min(1.0, FEW / together)
        self.length, self.sources = length, [Source() for _ in range(sources)]
        self.balance, self.given_up = 0.0, False

    def begin(self, images: float = 1) -> Source | None:
        """The source of the next images' drafts; None while what was lost is not made up for. images: how many are drawn one after another."""
        if self.given_up:
            self.balance += ALLOWANCE * self.length * images
            self.given_up = self.balance < 0
        if self.given_up:
            return None
        for source in self.sources:
            source.tokens, source.cost = MEMORY * source.tokens, MEMORY * source.cost
        return max(self.sources, key=lambda source: source.promise(self.length))

    def earned(self, gain: float) -> bool:
        """A round with drafts brought so many tokens more than it took plain steps. Should the image go on with drafts?"""
        self.balance = min(self.balance + gain, RICHES * self.length)
        self.given_up |= self.balance < -self._stake
        return not self.given_up


def experience(drafter: object, key: tuple, length: int, sources: int, together: int) -> Experience:
    """That of a drafter under settings ``key``."""
    return _experience.setdefault(drafter, {}).setdefault((*key, length, together), Experience(length, sources, together))


class CostAware:
    """One for all images of a batch, whose rounds cost what they cost together; prices and tokens are per image."""

    def __init__(self, costs: Costs, experience: Experience, source: Source, images: int, width: int = AUTO_WIDTH):
        """width: candidates of a slot that the source may try. ``drafts``: False once they have not paid, for the rest of a decoding."""
        self._costs, self._known, self._source, self._images, self._width = costs, experience, source, images, width
        self._level, self.drafts = 1, True

    @property
    def pace(self) -> float:
        return max(1.0, self._source.pace)

    def _cost(self, drafts: int) -> float:
        """Plain steps' time of a round with ``drafts`` drafts, drafting included."""
        return self._costs.of(drafts + 1) + self._source.overhead_at(drafts)

    def choose(self, position: int) -> TreeShape:
        """All sizes up to one above the last, and what each has to bring.

        Of a chain it is not known beforehand what it will bring, so all are of one length.
        """
        if self._width == 1:
            return TreeShape(CHAIN, 1)
        sizes = [size for size in SIZES[: self._level + 2] if size <= MODEST or self._known.balance > 0]
        return TreeShape(spine(sizes[-1]), self._width, tuple((n, self.pace * self._cost(n)) for n in sizes))

    def update(self, share: ImageRound, seconds: float) -> None:
        """Learn from an image's share of a round that took ``seconds``."""
        source, cost = self._source, 1.0
        if share.depth > 0:
            size = next(size for size in SIZES if size >= share.nodes)
            source.saw_overhead(size, seconds / self._costs.plain - self._costs.of(size + 1))
            cost = self._cost(size)
            self._level = SIZES.index(size)
            self.drafts &= self._known.earned((share.accepted + 1 - cost) / self._images)
        source.tokens, source.cost = source.tokens + share.accepted + 1, source.cost + cost
