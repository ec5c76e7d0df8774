"""The cost-aware policy: of all sources and sizes of drafts, what should bring the most tokens for its time.

A round with n drafts takes c(n) plain steps, which the device's cost profile tells (:mod:`.costs`). It is expected to
bring w(n) tokens. Images that are drawn together share a forward, which takes as long as its largest tree; so they
share n, and w is the sum over them. A whole image has the most tokens per time when every round maximises

    w(n) - pace * c(n),    n = 0 (a plain step) included,

where pace is the tokens per plain step's time that the image achieves (Dinkelbach, Management Science 13, 1967: the
best ratio of two sums is found by maximising their weighted difference). Plain decoding has pace 1.

What w(n) is: 1 + ease * hope(n). A Jacobi window tells what to hope for before it drafts, by how stale its guesses are
and how often such guesses were right in this image. For other drafters it is (1 + n) ** growth - 1, with a growth that
was fitted to recorded images. The ease is the accepted drafts over those that were hoped for, in the image's latest
rounds; it is drawn to 1, so a size that was given up is tried again after a while. An image's first round has no
drafts: nothing is known of it yet.

No clock is read. What is decided depends on the profile and on the images at work alone, not on images before them. By
the same profile, no image loses more than LOSS of plain decoding's time: then drafting ends, for all at work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..rules.trace import Round
from .base import NO_DRAFTS, DraftSettings, Lane, Policy, Scene, Shape, spine_length

SIZES = (4, 8, 12, 16, 24, 32, 48, 64)
"""Numbers of drafts to choose from."""
LONGEST_CHAIN, WIDTH = 32, 4
"""Drafts of a chain, and candidates at a position of a tree, at most."""
GROWTH = {"chain": 0.36, "window": 0.38, "both": 0.47}
"""By source: how tokens grow with the drafts of a round, before anything was seen of the image."""
OTHER_GROWTH = 0.37
"""Of a source that is not in the table."""
MEMORY, PRIOR = 0.95, 4.0
"""Weight of an image's earlier rounds, round by round, and accepted drafts that the assumption counts for."""
PACE_PRIOR = 20.0
"""Plain steps that the pace expected of an image counts for."""
WORTH_TRYING = 1.1
"""Pace that is expected of a source before it is tried."""
LOSS, STAKE = 0.08, 0.1
"""Drafting may cost an image at most LOSS of its plain decoding time, by the profile's numbers. This is its budget. One
round may spend at most STAKE of the rest of the budget. So trees shrink first; drafting ends when the smallest tree is
too dear."""


def sizes_of(candidates: int) -> tuple[int, ...]:
    """Numbers of drafts to choose from, for a source with so many candidates at a position."""
    return tuple(size for size in SIZES if size <= LONGEST_CHAIN) if candidates == 1 else SIZES


def shape_of(drafts: int, width: int) -> Shape:
    """The shape of a tree with so many drafts, and so many candidates at a position."""
    return Shape(spine_length(drafts, width), width, drafts) if drafts else NO_DRAFTS


class Auto(Policy):
    """One shape for all images of a round, and one source for all that begin together."""

    help = "as many guesses as pay on this device"
    many_sources = True

    def __init__(self, settings: DraftSettings, scene: Scene):
        super().__init__(settings, scene)
        assert scene.profile is not None
        self._profile, self._images = scene.profile, dict[int, _Image]()
        self.source, self._width, self._pace, self._drafts = "", 1, 1.0, 0

    @classmethod
    def largest(cls, settings: DraftSettings) -> Shape:
        return shape_of(SIZES[-1], WIDTH)

    def begin(self, together: int) -> int | None:
        """The source that has the best pace at its best size, if that is clearly faster than plain decoding."""
        self._images, known = {}, [source for source in self.scene.sources if source in self._profile.costs]
        paces = {source: max(self._paces(source)) for source in known}
        self.source = max(known, key=paces.__getitem__, default="")
        if paces.get(self.source, 0.0) < WORTH_TRYING:
            return None
        self._pace, self._width = paces[self.source], min(self.scene.sources[self.source], WIDTH)
        self.asks, self.drafts = sizes_of(self._width), True
        return list(self.scene.sources).index(self.source)

    def _paces(self, source: str) -> list[float]:
        """What to expect of every size before anything is seen."""
        growth, sizes = GROWTH.get(source, OTHER_GROWTH), sizes_of(self.scene.sources[source])
        return [(1 + size) ** growth / self._profile.of(source, size) for size in sizes]

    def choose(self, lanes: Sequence[Lane]) -> list[Shape]:
        images = [self._images.setdefault(lane.image, self._new()) for lane in lanes]

        def gain(size: int) -> float:
            tokens = sum(image.tokens_with(size, lane.worths) for image, lane in zip(images, lanes))
            return tokens - sum(image.pace for image in images) * self._cost(size)

        self._drafts = max((0, *self._affordable(images)), key=gain)
        for image, lane in zip(images, lanes):
            image.hoped = image.hope(self._drafts, lane.worths)
        self.steps = self._cost(self._drafts)
        return [shape_of(self._drafts, self._width)] * len(lanes)

    def _cost(self, drafts: int) -> float:
        """Plain steps of a round."""
        return self._profile.of(self.source, drafts)

    def _new(self) -> _Image:
        return _Image(GROWTH.get(self.source, OTHER_GROWTH), self._pace)

    def _affordable(self, images: Sequence[_Image]) -> list[int]:
        """Sizes whose round all images can pay for: the last one decides when a batch is done. Else drafting ends."""
        room = LOSS * self.scene.length + min(image.tokens - image.cost for image in images)
        extra = {size: self._cost(size) - 1 for size in self.asks}
        smallest = extra[self.asks[0]]
        self.drafts = smallest <= room
        return [size for size in self.asks if self.drafts and extra[size] <= max(STAKE * room, smallest)]

    def observe(self, round: Round) -> None:
        for share in round.images:
            self._images[share.image].learn(share.accepted, self._cost(self._drafts))


@dataclass
class _Image:
    """What an image's own rounds have taught.

    growth, expected_pace: of its source, before they began. tokens, cost: what its rounds brought, and took in plain
    steps. accepted, expected: drafts, of the latest rounds. hoped: of those that were chosen last.
    """

    growth: float
    expected_pace: float
    tokens: int = 0
    cost: float = 0.0
    accepted: float = 0.0
    expected: float = 0.0
    hoped: float = 0.0

    @property
    def pace(self) -> float:
        """Tokens per plain step's time."""
        return max(1.0, (self.tokens + PACE_PRIOR * self.expected_pace) / (self.cost + PACE_PRIOR))

    @property
    def ease(self) -> float:
        return (self.accepted + PRIOR) / (self.expected + PRIOR)

    def hope(self, size: int, told: Mapping[int, float]) -> float:
        """Expected number of accepted drafts of ``size``. told: what the drafter expects in this image, by size. For
        other sizes it is that of a usual image."""
        return told[size] if size in told else (1 + size) ** self.growth - 1

    def tokens_with(self, size: int, told: Mapping[int, float] = {}) -> float:
        """Tokens that a round with so many drafts should bring. told: by the drafter, without the one that is sure."""
        return 1 + self.ease * self.hope(size, told) if self.tokens else 1.0

    def learn(self, accepted: int, cost: float) -> None:
        """A round is over: so many drafts were accepted, and it took as many plain steps."""
        self.tokens, self.cost = self.tokens + accepted + 1, self.cost + cost
        self.accepted = MEMORY * self.accepted + accepted
        self.expected = MEMORY * self.expected + self.hoped
