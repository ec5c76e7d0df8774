"""The cost-aware policy: as many drafts as pay for themselves on this device, from the source that pays best.

A round with n drafts takes as long as c(n) plain steps. It brings 1 + (sum of the drafts' acceptance probabilities)
tokens, which calibrated drafters know beforehand. A whole image has the most tokens per time when every round maximises
``tokens - pace * c(n)``, where pace is the tokens per plain step's time that the policy achieves (Dinkelbach,
Management Science 13, 1967: the best ratio of two sums is found by maximising their weighted difference). Plain
decoding has pace 1.

c(n) is measured in passing: the median of rounds with drafts, each divided by the last plain step that was timed. Plain
steps are timed again now and then, so a machine that turns slower is not mistaken for drafts that have ceased to pay.

The first rows of a first image may lose what the rest brings back many times over. One account over all images bounds
what finding out may cost: N images lose at most about (STAKE + N * ALLOWANCE) of one image's time, and the few rounds
in which a slow drafter is recognised. What setting up costs once in a process (kernels are loaded, graphs are captured)
is not in that account: it says nothing of the drafts.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Hashable, Sequence
from weakref import WeakKeyDictionary

from ..rules.trace import Round
from .base import Lane, Policy, Scene, Settings, Shape, spine_length

SIZES = (4, 8, 12, 16, 24, 32, 48, 64)
"""Numbers of drafts to choose from."""
WIDTH = 4
"""Candidates at a position, at most."""
STAKE = 0.16
"""What drafting may lose before it has gained anything, in plain decoding times of an image."""
ALLOWANCE = 0.01
"""What every further image gives back of a lost stake. When it is whole again, there is another try."""
MOST_SAVED = 1.0
"""Gains count up to this many images: enough for a few pictures that lose. Drafting that stops paying still ends."""
IMAGES_OF_A_STAKE = 1.75
"""Images drawn together that may lose a whole STAKE. More images may lose less, by the square of the ratio."""
LEAST_STAKE = 4.0
"""Plain steps that may be lost in any case: those that are timed, and a round or two."""
SIZE_WITHOUT_GAINS = 16
"""Most drafts of a round while the account holds no gains."""
CHAIN_LENGTH, SHORTEST_CHAIN = 16, 4
"""Drafts of a chain for one image, and of one for many images together, where every draft costs more."""
ROUNDS_BETWEEN_PLAIN_STEPS = 8, 256
"""From one timed plain step to the next: at first, and at most. What lies between doubles."""
UNKNOWN_COST, UNKNOWN_COST_PER_DRAFT = 1.5, 1 / 32
"""Plain steps that a round with drafts takes, and every draft of every image in it, before any was seen."""
FIRST_ROUNDS = 2
"""Rounds of a size in which much is done for the first time: kernels are loaded, then a graph is captured."""
READINGS_FOR_A_MEDIAN, READINGS_KEPT = 3, 15
"""The median of a size's readings counts; the least of them, before there are enough."""
MEMORY = 0.9
"""Weight of the past, per image, in how fast a source is."""
CURIOSITY = 0.2
"""A source seen for one image may be this much faster than it seemed; one seen for n images, 1 / sqrt(n) of it."""


class Costs:
    """What rounds with drafts cost, in plain steps, by their number of drafts. together: images that share a round."""

    def __init__(self, together: int) -> None:
        self._per_draft = UNKNOWN_COST_PER_DRAFT * together
        self._readings: dict[int, deque[float]] = {}
        self._typical: dict[int, float] = {}
        self._guesses: dict[int, list[float]] = {}

    def charge(self, size: int, steps: float, prepared: bool = False) -> float:
        """A round of this size took so many plain steps. Returns what drafting is charged for it: the typical cost.

        prepared: of the round. Such a round and the first ones tell nothing, and one reading may be a slow one. Until
        there are two, rounds are charged what was expected, and what was wrong about that is added then.
        """
        guesses, expected = self._guesses.setdefault(size, []), self.of(size)
        if not prepared and (size in self._readings or len(guesses) >= FIRST_ROUNDS):
            readings = self._readings.setdefault(size, deque(maxlen=READINGS_KEPT))
            readings.append(steps)
            enough = len(readings) >= READINGS_FOR_A_MEDIAN
            typical = self._typical[size] = statistics.median(readings) if enough else min(readings)
            if len(readings) > 1:
                owed = sum(typical - guess for guess in guesses)
                guesses.clear()
                return typical + owed
        guesses.append(expected)
        return expected

    def knows(self, size: int) -> bool:
        return size in self._typical

    def of(self, size: int) -> float:
        """The cost of a size; of one that was not seen, by the nearest that was, as if all its drafts cost the same."""
        if not self._typical:
            return UNKNOWN_COST + self._per_draft * size
        nearest = min(self._typical, key=lambda seen: abs(seen - size))
        steps = self._typical[nearest]
        per_draft = max((steps - UNKNOWN_COST) / nearest, self._per_draft)
        return max(1.0, steps + per_draft * (size - nearest))


class Source:
    """What is remembered of a source of drafts: the tokens it brought, what they cost in plain steps, and its costs."""

    def __init__(self, together: int = 1) -> None:
        self.tokens = self.cost = 0.0
        self.costs = Costs(together)

    @property
    def pace(self) -> float:
        """Tokens per plain step's time. Ten tokens of plain decoding are mixed in, for a start."""
        return (self.tokens + 10) / (self.cost + 10)

    def promise(self, length: int) -> float:
        """The pace that it may well have. length: tokens of an image."""
        return self.pace * (1 + CURIOSITY * math.sqrt(length / self.tokens)) if self.tokens else math.inf


class Experience:
    """What outlives an image: the account, in plain steps, and the sources.

    length: tokens of an image. sources: how many there are. together: images that share a round.
    """

    def __init__(self, length: int, sources: int = 1, together: int = 1) -> None:
        self._stake = max(STAKE * length * min(1.0, (IMAGES_OF_A_STAKE / together) ** 2), LEAST_STAKE)
        self._together, self.length, self.sources = together, length, [Source(together) for _ in range(sources)]
        self.balance, self.given_up = 0.0, False
        self.plain_seconds = math.nan
        self._age = self._lasts = ROUNDS_BETWEEN_PLAIN_STEPS[0] // 2

    def begin(self) -> int | None:
        """Number of the source for the next images; None while what was lost is not made up for."""
        if self.given_up:
            self.balance += ALLOWANCE * self.length
            self.given_up = self.balance < 0
        if self.given_up:
            return None
        self._age = self._lasts
        for source in self.sources:
            source.tokens, source.cost = MEMORY * source.tokens, MEMORY * source.cost
        return max(range(len(self.sources)), key=lambda i: self.sources[i].promise(self.length))

    def earn(self, gain: float) -> None:
        """Enter tokens brought less plain steps taken. Ends drafting if too much is lost."""
        self.balance = min(self.balance + gain, MOST_SAVED * self.length)
        self.given_up |= self.balance < -self._stake

    @property
    def wants_plain_step(self) -> bool:
        return self._age >= self._lasts

    def saw_plain(self, readings: Sequence[float]) -> None:
        """A plain step took so many seconds each time. The least counts, since noise only adds. All are paid for."""
        self.earn(-len(readings))
        first, last = ROUNDS_BETWEEN_PLAIN_STEPS
        self._lasts = min(2 * self._lasts, max(last // self._together, first))
        self.plain_seconds, self._age = min(readings), 0

    def saw(self, source: Source, size: int, seconds: float, prepared: bool = False) -> float:
        """A round with so many drafts took so long. Returns what it is charged, in plain steps."""
        self._age += 1
        return source.costs.charge(size, seconds / self.plain_seconds, prepared)


_experiences: WeakKeyDictionary[object, dict[Hashable, Experience]] = WeakKeyDictionary()


class Auto(Policy):
    """All images that are drawn together have one shape, since their rounds cost what they cost together."""

    help = "as many guesses as pay on this device"
    many_sources = True

    def __init__(self, settings: Settings, scene: Scene):
        super().__init__(settings, scene)
        self.experience, self._source = Experience(scene.length), Source()
        self._width, self._level, self._together = WIDTH, 0, 1

    @classmethod
    def largest(cls, settings: Settings) -> Shape:
        return Shape(spine_length(SIZES[-1]), WIDTH, SIZES[-1])

    def begin(self, together: int) -> int | None:
        scene, known = self.scene, _experiences.setdefault(self.scene.owner, {})
        new = Experience(scene.length, len(scene.source_widths), together)
        self.experience = known.setdefault((scene.conditions, scene.length, together), new)
        chosen = self.experience.begin()
        if chosen is not None:
            self._source, self._width = self.experience.sources[chosen], min(scene.source_widths[chosen], WIDTH)
            self._level, self._together, self.drafts = int(together == 1), together, True
        return chosen

    @property
    def plain_steps(self) -> int:  # type: ignore[override]
        return 2 if self.experience.wants_plain_step else 0

    @property
    def pace(self) -> float:
        return max(1.0, self._source.pace)

    @property
    def asks(self) -> tuple[int, ...]:  # type: ignore[override]
        """The sizes to choose from: up to one above the last."""
        if self._width == 1:
            return ()
        gained = self.experience.balance > 0
        return tuple(size for size in SIZES[: self._level + 2] if size <= SIZE_WITHOUT_GAINS or gained)

    def choose(self, lanes: Sequence[Lane]) -> list[Shape]:
        """The size whose tokens exceed what its time is worth by most.

        What a chain will bring is not known beforehand, so all have one length. The first tell how dear drafts are.
        """
        costs = self._source.costs
        if self._width == 1:
            length = max(CHAIN_LENGTH // self._together, SHORTEST_CHAIN)
            if not costs.knows(SHORTEST_CHAIN) or costs.of(length) > length + 1:  # more than it can bring
                length = SHORTEST_CHAIN
            return [Shape(length, 1, length)] * len(lanes)
        told = [lane.worths for lane in lanes if lane.worths]
        size = SIZES[0]
        if told:
            size = max(told[0], key=lambda one: self._gain(one, sum(worths[one] for worths in told) / len(told)))
        return [Shape(spine_length(size), self._width, size)] * len(lanes)

    def _gain(self, size: int, worth: float) -> float:
        return worth - self.pace * self._source.costs.of(size)

    def observe(self, round: Round) -> None:
        if round.plain_seconds and not round.prepared:  # else they are timed again in the next round
            self.experience.saw_plain(round.plain_seconds)
        nodes, cost = max(share.nodes for share in round.images), 1.0
        if nodes:
            size = next(size for size in SIZES if size >= nodes)
            seconds = round.seconds - sum(round.plain_seconds)
            cost = self.experience.saw(self._source, size, seconds, round.prepared)
            if self._source.costs.knows(size):  # what is dear shows before the next size is tried
                self._level = SIZES.index(size)
        for share in round.images:
            brought, spent = share.accepted + 1, cost if share.depth else 1.0
            self.experience.earn((brought - spent) / self._together)
            self._source.tokens += brought
            self._source.cost += spent
        self.drafts = not self.experience.given_up
