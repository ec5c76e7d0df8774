"""The cost-aware policy: of all sources and sizes of drafts, what should bring the most tokens for its time.

A round with n drafts takes c(n) plain steps, which the device's cost profile tells (:mod:`.costs`). It is expected to
bring w(n) tokens. A whole image has the most tokens per time when every round maximises

    w(n) - pace * c(n),    n = 0 (a plain step) included,

where pace is the tokens per plain step's time that the image achieves (Dinkelbach, Management Science 13, 1967: the
best ratio of two sums is found by maximising their weighted difference). Plain decoding has pace 1.

What w(n) is: a Jacobi window tells it before it drafts, by how stale its guesses are and how often such guesses were
right in this image. For other drafters it is 1 + ease * ((1 + n) ** growth - 1). The growth was fitted to recorded
images. The ease is the accepted drafts over those that growth alone had expected, in the image's latest rounds; it is
drawn to 1, so a size that was given up is tried again after a while. An image's first round has no drafts: nothing is
known of it yet.

No clock is read. What is decided depends on the profile and on the image's own rounds alone, not on those of others
that are drawn with it, nor on images before it. By the same profile, no image loses more than LOSS of plain decoding's
time: then its drafting ends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..rules.trace import Round
from .base import NO_DRAFTS, Lane, Policy, Scene, Settings, Shape, spine_length

SIZES = (4, 8, 12, 16, 24, 32, 48, 64)
"""Numbers of drafts to choose from."""
LONGEST_CHAIN, WIDTH = 32, 4
"""Drafts of a chain, and candidates at a position of a tree, at most."""
GROWTH = {"chain": 0.36, "window": 0.38, "both": 0.47}
"""By source: how tokens grow with the drafts of a round, before anything was seen of the image."""
OTHER_GROWTH = 0.37
"""Of a source that is not in the table."""
MEMORY, PRIOR = 0.98, 12.0
"""Weight of an image's earlier rounds, round by round, and accepted drafts that the assumption counts for."""
PACE_PRIOR = 20.0
"""Plain steps that the pace expected of an image counts for."""
WORTH_TRYING = 1.05
"""Pace that is expected of a source before it is tried."""
LOSS, STAKE = 0.03, 0.15
"""What drafts may lose of an image's plain decoding time, by the profile's numbers, and how much of what is left of
that a round may take beyond a plain step. So sizes shrink before drafting ends, which it does when not even the
smallest can be paid."""


def sizes_of(candidates: int) -> tuple[int, ...]:
    """Numbers of drafts to choose from, for a source with so many candidates at a position."""
    return tuple(size for size in SIZES if size <= LONGEST_CHAIN) if candidates == 1 else SIZES


class Auto(Policy):
    """Every image has shapes of its own. The source is the same for all that begin together."""

    help = "as many guesses as pay on this device"
    many_sources = True

    def __init__(self, settings: Settings, scene: Scene):
        super().__init__(settings, scene)
        assert scene.profile is not None
        self._profile, self._images = scene.profile, dict[int, _Image]()
        self.source, self._width, self._pace = "", 1, 1.0
        self._sizes: tuple[int, ...] = ()

    @classmethod
    def largest(cls, settings: Settings) -> Shape:
        return Shape(spine_length(SIZES[-1], WIDTH), WIDTH, SIZES[-1])

    def begin(self, together: int) -> int | None:
        """The source that has the best pace at its best size, if that is clearly faster than plain decoding."""
        self._images, known = {}, [source for source in self.scene.sources if source in self._profile.costs]
        paces = {source: max(self._paces(source)) for source in known}
        self.source = max(known, key=paces.__getitem__, default="")
        if paces.get(self.source, 0.0) < WORTH_TRYING:
            return None
        self._pace, self._width = paces[self.source], min(self.scene.sources[self.source], WIDTH)
        self._sizes = sizes_of(self._width)
        self.drafts = True
        return list(self.scene.sources).index(self.source)

    def _paces(self, source: str) -> list[float]:
        """What to expect of every size before anything is seen."""
        image = _Image(GROWTH.get(source, OTHER_GROWTH), 0.0)
        sizes = sizes_of(self.scene.sources[source])
        return [image.tokens_with(size) / self._profile.of(source, size) for size in sizes]

    @property
    def asks(self) -> tuple[int, ...]:  # type: ignore[override]
        return self._sizes

    def choose(self, lanes: Sequence[Lane]) -> list[Shape]:
        shapes = [self._choose(self._image(lane.image), lane) for lane in lanes]
        self.steps = self._profile.of(self.source, max(shape.nodes for shape in shapes))
        return shapes

    def _image(self, number: int) -> _Image:
        new = _Image(GROWTH.get(self.source, OTHER_GROWTH), self._pace)
        return self._images.setdefault(number, new)

    def pace(self, image: int) -> float:
        """Tokens per plain step's time that this image achieves."""
        return self._image(image).pace

    def _choose(self, image: _Image, lane: Lane) -> Shape:
        def gain(size: int) -> float:
            return image.tokens_with(size, lane.worths) - image.pace * self._profile.of(self.source, size)

        room = LOSS * self.scene.length + image.tokens - image.cost
        extra = {n: self._profile.of(self.source, n) - 1 for n in self._sizes}
        smallest = extra[self._sizes[0]]
        image.given_up |= smallest > room
        sizes = [n for n in self._sizes if extra[n] <= max(STAKE * room, smallest)]
        image.drafts = 0 if image.given_up or not image.tokens else max((0, *sizes), key=gain)
        if not image.drafts:
            return NO_DRAFTS
        return Shape(spine_length(image.drafts, self._width), self._width, image.drafts)

    def observe(self, round: Round) -> None:
        for share in round.images:
            image = self._images[share.image]
            image.learn(share.accepted, self._profile.of(self.source, image.drafts))
        self.drafts = not all(self._images[share.image].given_up for share in round.images)


@dataclass
class _Image:
    """What an image's own rounds have taught.

    growth, expected_pace: of its source, before they began. drafts: of its next round. tokens, cost: what its rounds
    brought, and took in plain steps. accepted, expected: drafts, of the latest rounds.
    """

    growth: float
    expected_pace: float
    drafts: int = 0
    tokens: int = 0
    cost: float = 0.0
    accepted: float = 0.0
    expected: float = 0.0
    given_up: bool = False

    @property
    def pace(self) -> float:
        return max(1.0, (self.tokens + PACE_PRIOR * self.expected_pace) / (self.cost + PACE_PRIOR))

    @property
    def ease(self) -> float:
        return (self.accepted + PRIOR) / (self.expected + PRIOR)

    def _usual(self, size: int) -> float:
        """Drafts that are accepted of so many in a usual image."""
        return (1 + size) ** self.growth - 1

    def tokens_with(self, size: int, told: Mapping[int, float] = {}) -> float:
        """Tokens that a round with so many drafts should bring. told: by the drafter, without the one that is sure."""
        return 1 + (told[size] if size in told else self.ease * self._usual(size))

    def learn(self, accepted: int, cost: float) -> None:
        """A round is over: so many drafts were accepted, and it took as many plain steps."""
        self.tokens, self.cost = self.tokens + accepted + 1, self.cost + cost
        self.accepted = MEMORY * self.accepted + accepted
        self.expected = MEMORY * self.expected + self._usual(self.drafts)
