"""The cost-aware policy: of all sources and sizes of drafts, what should bring the most tokens for its time.

A round with n drafts of a source takes c(n) plain steps, which the device's cost profile tells (:mod:`.costs`). It is
expected to bring w(n) tokens. Every token of an image must be drawn, those of its hard parts too, and each part is
passed soonest by what maximises w(n) / c(n) there; n = 0, a plain step, is one of the choices. Images that are drawn
together share a forward, which takes as long as its largest tree; so they share source and size, and w is the sum over
them.

What w(n) is: 1 + ease * skill * hope(n). Hope is what the source usually brings with so many drafts in every round
(:class:`.base.Source`). Skill compares the source's rounds in this image with that, and forgets slowly, so that a
source that was given up is tried again after a while. Ease compares the latest rounds, whatever drafted, with what the
skills make expect: it is high in an easy part of the image. An image's first round has no drafts: nothing is known of
it yet.

No clock is read. What is decided depends on the profile and on the images at work alone, not on images before them. By
the same profile, no image loses more than LOSS of plain decoding's time: then drafting ends, for all at work.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ..rules.trace import Round
from .base import NO_DRAFTS, DraftSettings, Policy, Scene, Shape, Slot, Source

SIZES = (4, 8, 12, 16, 24, 31, 63)
"""Numbers of drafts to choose from. The largest leave room for the root: in the exact mode a GPU multiplies 64 rows at
a time, which with guidance are 31 drafts. With 32 it would be a product more."""
MEASURED_CHAINS = (0, 4, 16, 31)
"""Numbers of drafts for which chains are timed; the cost of others is interpolated linearly. They include the largest
chain of each number of tiles."""
MEASURED_TREES = (0, 8, 31, 63)
"""Numbers of drafts for which trees are timed, likewise."""
LONGEST_CHAIN, LONGEST_SPINE, WIDTH = 31, 42, 4
"""Drafts of a chain, and of a tree's spine, and candidates at a position of a tree, at most."""
EASE_MEMORY, SKILL_MEMORY = 0.9, 0.995
"""Weights of an image's earlier rounds, round by round."""
EASE_PRIOR, SKILL_PRIOR = 8.0, 100.0
"""Accepted drafts for which the usual counts."""
WORTH_TRYING = 1.1
"""Tokens per plain step's time that must be expected of an image before drafts are tried."""
LOSS, STAKE = 0.1, 0.1
"""Drafting may cost an image at most LOSS of its plain decoding time, by the profile's numbers. This is its budget. One
round may spend at most STAKE of the rest of the budget. So trees shrink first; drafting ends when the smallest tree is
too dear."""


class Choice(NamedTuple):
    """What a round may be. hope: drafts that are usually accepted. cost: in plain steps."""

    shape: Shape
    hope: float
    cost: float


def spine_length(nodes: int, width: int) -> int:
    """Drafts on the spine of a window with ``nodes`` drafts: all of a chain and of a few, else five sixths.

    The rest are branches.
    """
    return nodes if width == 1 or nodes <= 4 else min(round(nodes * 5 / 6), LONGEST_SPINE)


def sizes_of(source: Source) -> tuple[int, ...]:
    """Numbers of drafts to choose from."""
    return tuple(size for size in SIZES if size <= LONGEST_CHAIN) if source.width == 1 else SIZES


def shape_of(source: Source, drafts: int) -> Shape:
    """The shape of a tree with so many drafts of a source."""
    width = min(source.width, WIDTH)
    return Shape(spine_length(drafts, width), width, drafts, source=source.name) if drafts else NO_DRAFTS


class Auto(Policy):
    """One source and one shape for all images of a round."""

    help = "the number of drafts that is fastest on this device"
    chooses = True

    def __init__(self, settings: DraftSettings, scene: Scene):
        super().__init__(settings, scene)
        profile = scene.profile
        assert profile is not None
        priced = [source for source in scene.sources if source.name in profile.costs]
        self._choices = [self._choice(source, size) for source in priced for size in sizes_of(source)]
        self._plain = Choice(NO_DRAFTS, 0.0, profile.plain)
        self._images, self._chosen = dict[int, _Image](), self._plain

    def _choice(self, source: Source, size: int) -> Choice:
        shape, profile = shape_of(source, size), self.scene.profile
        assert profile is not None
        missing = max(shape.depth - self.scene.deepest, 0)  # levels that are cut off, and with each at least a draft
        return Choice(shape, source.hope(size - missing), profile.of(source.name, size))

    @classmethod
    def largest(cls, settings: DraftSettings) -> Shape:
        return Shape(spine_length(SIZES[-1], WIDTH), WIDTH, SIZES[-1])

    @classmethod
    def measured_shapes(cls, source: Source) -> Sequence[Shape]:
        sizes = MEASURED_CHAINS if source.width == 1 else MEASURED_TREES
        return [shape_of(source, size) for size in sizes]

    def expectation(self) -> float:
        """Tokens per plain step's time that the best source and size usually bring; 0 without any."""
        return max(((1 + choice.hope) / choice.cost for choice in self._choices), default=0.0)

    def begin(self) -> bool:
        """Is the best that is to be expected clearly faster than plain decoding?"""
        self._images, self.drafts = {}, self.expectation() >= WORTH_TRYING
        return self.drafts

    def choose(self, slots: Sequence[Slot]) -> list[Shape]:
        images = [self._images.setdefault(slot.image, _Image()) for slot in slots]

        choices = self._plain, *self._affordable(images)
        sources = {choice.shape.source for choice in choices}
        promises = {source: sum(image.promise(source) for image in images) for source in sources}

        def pace(choice: Choice) -> float:
            return (len(images) + promises[choice.shape.source] * choice.hope) / choice.cost

        self._chosen = max(choices, key=pace)
        self.steps = self._chosen.cost
        return [self._chosen.shape] * len(slots)

    def _affordable(self, images: Sequence[_Image]) -> list[Choice]:
        """What all images can pay for: the last one decides when a batch is done. If that is nothing, drafting ends."""
        room = LOSS * self.scene.length + min(image.tokens - image.cost for image in images)
        smallest = min(choice.cost for choice in self._choices) - 1
        self.drafts = smallest <= room
        most = max(STAKE * room, smallest)
        return [choice for choice in self._choices if self.drafts and choice.cost - 1 <= most]

    def on_verified(self, round: Round) -> None:
        for share in round.images:
            self._images[share.image].learn(share.accepted, self._chosen)


@dataclass
class _Record:
    """Accepted drafts, and those that were expected.

    prior: drafts that are added to both, so that their ratio begins at 1 and moves slowly. memory: weight of earlier
    rounds.
    """

    prior: float
    memory: float
    accepted: float = 0.0
    expected: float = 0.0

    @property
    def ratio(self) -> float:
        return (self.accepted + self.prior) / (self.expected + self.prior)

    def learn(self, accepted: float = 0.0, expected: float = 0.0) -> None:
        """A round is over."""
        self.accepted = self.memory * self.accepted + accepted
        self.expected = self.memory * self.expected + expected


@dataclass
class _Image:
    """What an image's own rounds have taught.

    tokens, cost: what its rounds brought, and took in plain steps. ease: of the latest rounds. skills: of the sources
    that have drafted.
    """

    tokens: int = 0
    cost: float = 0.0
    ease: _Record = field(default_factory=lambda: _Record(EASE_PRIOR, EASE_MEMORY))
    skills: dict[str, _Record] = field(default_factory=dict)

    def skill(self, source: str) -> float:
        return self.skills[source].ratio if source in self.skills else 1.0

    def promise(self, source: str) -> float:
        """Factor on a source's usual number of accepted drafts, for this image now; 0 in its first round."""
        return self.ease.ratio * self.skill(source) if self.tokens else 0.0

    def learn(self, accepted: int, choice: Choice) -> None:
        """A round is over, in which so many drafts were accepted."""
        source = choice.shape.source
        self.tokens, self.cost = self.tokens + accepted + 1, self.cost + choice.cost
        self.ease.learn(accepted, self.skill(source) * choice.hope)
        if source:
            self.skills.setdefault(source, _Record(SKILL_PRIOR, SKILL_MEMORY))
        for name, skill in self.skills.items():
            skill.learn(*((accepted, choice.hope) if name == source else ()))
