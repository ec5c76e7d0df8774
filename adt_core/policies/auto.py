"""The cost-aware policy: as many drafts as pay for themselves on this device, from the source that pays best.

A round with n drafts takes the time of c(n) plain steps and brings 1 + (sum of the drafts' acceptance probabilities) tokens, which
calibrated drafters know beforehand. Over a whole image tokens per time are highest when every round maximises
``tokens - pace * c(n)``, where pace is the tokens per plain step's time that the policy achieves (Dinkelbach, Management Science 13, 1967:
the best ratio of two sums is found by maximising their weighted difference). Plain decoding has pace 1 and is the floor.

c(n) is measured in passing: every round with drafts is set against the last plain step that was timed, of which there is one now and then, and the
median of such ratios counts. So a machine that turns slower, for both alike, is not mistaken for drafts that have ceased to pay.

Whether drafting pays at all shows only after a while: the first rows of a first image, where no window has learned anything, may lose what the
rest brings back many times over. One account over all images bounds what finding out may cost: STAKE of an image once, ALLOWANCE of every later
image. N images lose at most about STAKE + N * ALLOWANCE of one image's time, and the few rounds in which a slow drafter is recognised. Pictures
differ, and gains carry over the one that drafting is no good for: to finish it plainly after its first losses would also stop many that make up for them.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from weakref import WeakKeyDictionary

from ..rules.trace import ImageRound
from .shape import AUTO_WIDTH, SIZES, TreeShape, spine

STAKE = 0.16
"""Plain decoding time, in images, that drafting may lose before it has gained any: enough for nearly all slow starts, and below 3 % of eight."""
ALLOWANCE = 0.01
"""What every image thereafter gives back of a lost stake; once it is whole, there is another try."""
RICHES = 1.0
"""Gains are remembered up to here, in images: enough for a few pictures that lose a quarter each, and drafting is still given up where it has ceased to pay."""
FEW = 1.75
"""Images drawn together that may lose a whole STAKE. Of more, far less: they fill a forward as well as drafts do, and a few prompts make fewer sets of them."""
LEAST = 4.0
"""Plain steps that may be lost in any case: those that are timed, and a round or two."""
MODEST = 16
"""Drafts of a round at most while the account holds no gains."""
CHAIN, SHORTEST = 16, 4
"""Drafts of a chain, and of that of many images drawn together, for which every draft costs more."""
ROUNDS_BETWEEN = 8, 256
"""Rounds from one timed plain step to the next, beside that with which images begin: at first, when all that follows rests on a few, and later. What lies
between doubles. Of images drawn together later means sooner, for the further they are the longer their steps take."""
UNKNOWN = 1.5, 1 / 32
"""Plain steps that a round with drafts takes, and every draft of every image in it, before any was seen."""
ENOUGH, REMEMBERED = 3, 15
"""Readings of a size, of which the median counts, and the least before there are enough."""
MEMORY = 0.9
"""Weight of the past, per image, in how fast a source is."""
CURIOSITY = 0.2
"""A source that was seen for one image may be this much faster than it seemed; for n images, 1 / sqrt(n) of it."""

_experience: WeakKeyDictionary[object, dict[tuple, Experience]] = WeakKeyDictionary()


class Costs:
    """What rounds with drafts take, in plain steps, by their number of drafts."""

    def __init__(self, images: int) -> None:
        """images: those whose rounds are one."""
        self._per_draft = UNKNOWN[1] * images
        self._readings: dict[int, deque[float]] = {}
        self._typical: dict[int, float] = {}

    def saw(self, size: int, steps: float) -> None:
        """A round of this size took so many plain steps. The first says nothing of the next, since much is done for the first time in it."""
        if size not in self._readings:
            self._readings[size] = deque(maxlen=REMEMBERED)
            return
        readings = self._readings[size]
        readings.append(steps)
        self._typical[size] = statistics.median(readings) if len(readings) >= ENOUGH else min(readings)

    def knows(self, size: int) -> bool:
        return size in self._typical

    def of(self, size: int) -> float:
        """That of the size, or of the nearest that was seen, as if every draft of that took the same time."""
        if not self._typical:
            return UNKNOWN[0] + self._per_draft * size
        nearest = min(self._typical, key=lambda seen: abs(seen - size))
        steps = self._typical[nearest]
        return max(1.0, steps + max((steps - UNKNOWN[0]) / nearest, self._per_draft) * (size - nearest))


class Source:
    """What is remembered of one source of drafts: the tokens it brought, the plain steps' time that took, and what its rounds cost."""

    def __init__(self, together: int = 1) -> None:
        self.tokens = self.cost = 0.0
        self.costs = Costs(together)

    @property
    def pace(self) -> float:
        """Tokens per plain step's time; a little of plain decoding's is mixed in, for a start."""
        return (self.tokens + 10) / (self.cost + 10)

    def promise(self, length: int) -> float:
        """The pace that it may well have."""
        return self.pace * (1 + CURIOSITY * math.sqrt(length / self.tokens)) if self.tokens else math.inf


class Experience:
    """What outlives an image: the account, in plain steps, and the sources.

    length: tokens of an image. sources: how many there are to choose from. together: images that are drawn at the same time, whose rounds are one.
    """

    def __init__(self, length: int, sources: int = 1, together: int = 1) -> None:
        self._stake = max(STAKE * length * min(1.0, (FEW / together) ** 2), LEAST)
        self._together, self.length, self.sources = together, length, [Source(together) for _ in range(sources)]
        self.balance, self.given_up = 0.0, False
        self.plain = math.nan
        self._age = self._lasts = ROUNDS_BETWEEN[0] // 2

    def begin(self) -> Source | None:
        """The source of the next images' drafts; None while what was lost is not made up for."""
        if self.given_up:
            self.balance += ALLOWANCE * self.length
            self.given_up = self.balance < 0
        if self.given_up:
            return None
        self._age = self._lasts
        for source in self.sources:
            source.tokens, source.cost = MEMORY * source.tokens, MEMORY * source.cost
        return max(self.sources, key=lambda source: source.promise(self.length))

    def earned(self, gain: float) -> bool:
        """A round with drafts brought so many tokens more than it took plain steps. Should the image go on with drafts?"""
        self.balance = min(self.balance + gain, RICHES * self.length)
        self.given_up |= self.balance < -self._stake
        return not self.given_up

    @property
    def wants_plain(self) -> bool:
        """Is it time to time a plain step?"""
        return self._age >= self._lasts

    def saw_plain(self, readings: list[float]) -> None:
        """A plain step took so many seconds each time. The least counts, since noise only adds, and all are paid for."""
        self.earned(-len(readings))
        self._lasts = min(2 * self._lasts, max(ROUNDS_BETWEEN[1] // self._together, ROUNDS_BETWEEN[0]))
        self.plain, self._age = min(readings), 0

    def saw(self, source: Source, size: int, seconds: float) -> float:
        """A round with so many drafts took so long. Returns what it has cost, in plain steps."""
        self._age += 1
        steps = seconds / self.plain
        source.costs.saw(size, steps)
        return source.costs.of(size) if source.costs.knows(size) else steps


def experience(drafter: object, key: tuple, length: int, sources: int, together: int) -> Experience:
    """That of a drafter under settings ``key``."""
    return _experience.setdefault(drafter, {}).setdefault(
        (*key, length, together), Experience(length, sources, together)
    )


class CostAware:
    """One for all images of a batch, whose rounds cost what they cost together; costs and tokens are per image."""

    def __init__(self, experience: Experience, source: Source, images: int, width: int = AUTO_WIDTH):
        """width: candidates of a slot that the source may try. ``drafts``: False once they have not paid, for the rest of a decoding."""
        self._known, self._source, self._images, self._width = experience, source, images, width
        self._level, self._cost, self.drafts = int(images == 1), 1.0, True

    @property
    def pace(self) -> float:
        return max(1.0, self._source.pace)

    def choose(self, position: int) -> TreeShape:
        """All sizes up to one above the last, and what each has to bring.

        Of a chain it is not known beforehand what it will bring, so all are of one length, but for the first ones, which tell whether drafts are dear.
        """
        if self._width == 1:
            return TreeShape(
                max(CHAIN // self._images, SHORTEST) if self._source.costs.knows(SHORTEST) else SHORTEST, 1
            )
        sizes = [size for size in SIZES[: self._level + 2] if size <= MODEST or self._known.balance > 0]
        return TreeShape(spine(sizes[-1]), self._width, tuple((n, self.pace * self._source.costs.of(n)) for n in sizes))

    def took(self, nodes: int, seconds: float) -> None:
        """A round took ``seconds``, and had so many drafts for an image."""
        if nodes:
            size = next(size for size in SIZES if size >= nodes)
            self._cost = self._known.saw(self._source, size, seconds)
            if self._source.costs.knows(size):  # what is dear is seen before the next is tried
                self._level = SIZES.index(size)

    def update(self, share: ImageRound) -> None:
        """Learn from an image's share of the round."""
        source, brought, cost = self._source, share.accepted + 1, self._cost if share.depth else 1.0
        self.drafts &= self._known.earned((brought - cost) / self._images)
        source.tokens, source.cost = source.tokens + brought, source.cost + cost
