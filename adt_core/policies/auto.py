"""The `auto` policy: choose the draft mode and tree size with the highest expected throughput on this device.

By the cost profile of the device (:mod:`.costs`), a round with n drafts takes c(n) plain steps. It is expected to
decide w(n) tokens per image:

    w(n) = 1 + multiplier * expected_accepted(n)
    multiplier = image_bias * region_bias

- `expected_accepted` is the average of the draft mode over many images (:class:`.base.DraftMode`), times the gain of
  the mode in earlier decodings with the same sampling (:mod:`.cost_model`).
- `image_bias` is the ratio of accepted to expected drafts of a mode in this image. It forgets slowly, so a mode that
  did poorly is tried again later.
- `region_bias` is the same ratio over the last few rounds of all modes, relative to their image biases. It is high in
  regions of the image that are easy to predict.

Each round maximises the throughput w(n) / c(n) among the draft modes and sizes that the image can afford; n = 0, a
plain step, is one of them. Images that are decoded together share a forward pass, which takes as long as its largest
tree. Therefore they share mode and size, and w is summed over them. The first round of an image has no drafts, because
nothing was observed yet.

The second round may be a *trial*: a few drafts of a mode that the profile advises against. Its time corrects the
profile of later images in case the profile is wrong.

The policy reads no clock. Its choices depend only on the profile and on the active images, not on earlier images. By
the profile, no image takes more than `MAX_LOSS` longer than plain decoding: when this budget is used up, drafting stops
for all active images.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ..rules.trace import Round
from .base import NO_DRAFTS, Context, DraftMode, DraftSettings, Policy, Shape, Slot

SIZES = (4, 8, 12, 16, 24, 31, 63)
"""Numbers of drafts to choose from.

In batch-invariant mode a GPU multiplies tiles of 64 rows. With guidance each token has 2 rows, so 31 drafts and the
root fill one tile and 63 drafts fill two. 32 drafts would need a second tile.
"""
LONGEST_CHAIN = 31
"""Maximum number of drafts in a chain."""
LONGEST_SPINE = 42
"""Maximum number of drafts in the spine of a tree."""
WIDTH = 4
"""Maximum number of candidates at a position of a tree."""
REGION_DECAY = 0.9
"""Weight per round with which `region_bias` forgets earlier rounds."""
IMAGE_DECAY = 0.995
"""Weight per round with which `image_bias` forgets earlier rounds."""
REGION_PRIOR = 8.0
"""Accepted drafts, as expected, that `region_bias` starts from."""
IMAGE_PRIOR = 100.0
"""Accepted drafts, as expected, that `image_bias` starts from."""
MIN_SPEED_UP = 1.1
"""Expected speed-up over plain decoding below which an image is decoded plainly after its trial."""
STAY_BONUS = 1.2
"""Factor on the throughput of the shape that the last round had.

The window is what earlier rounds have made of it: after a shorter one or another mode, fewer drafts are accepted.
"""
MAX_LOSS = 0.1
"""Budget of an image for rounds that decide too few tokens, as a share of its time in plain decoding."""
MAX_ROUND_SHARE = 0.1
"""Share of the remaining budget that one round may use.

Trees therefore shrink first; drafting stops when the smallest tree exceeds the budget.
"""


class Choice(NamedTuple):
    """A draft mode and size that a round may have.

    Attributes:
        shape: Shape of the trees.
        expected_accepted: Average number of accepted drafts, over many images.
        cost: Time of the round in plain steps.
    """

    shape: Shape
    expected_accepted: float
    cost: float

    @property
    def speed_up(self) -> float:
        """Expected tokens per plain step."""
        return (1 + self.expected_accepted) / self.cost


def spine_length(nodes: int, width: int) -> int:
    """Return the number of drafts on the spine of a window; the others are branches.

    Chains and trees of at most 4 drafts are all spine. In larger trees five sixths are, at most `LONGEST_SPINE`.
    """
    return nodes if width == 1 or nodes <= 4 else min(round(nodes * 5 / 6), LONGEST_SPINE)


def sizes_of(mode: DraftMode) -> tuple[int, ...]:
    """Return the numbers of drafts to choose from in a draft mode."""
    return tuple(size for size in SIZES if size <= LONGEST_CHAIN) if mode.width == 1 else SIZES


def shape_of(mode: DraftMode, drafts: int) -> Shape:
    """Return the shape of a tree with this number of drafts in a draft mode."""
    width = min(mode.width, WIDTH)
    return Shape(spine_length(drafts, width), width, drafts, mode=mode.name) if drafts else NO_DRAFTS


class Auto(Policy):
    """Policy that chooses one draft mode and one size for all images of a round."""

    help = "the number of drafts that is fastest on this device"
    chooses = True
    sizes = SIZES

    def __init__(self, context: Context):
        super().__init__(context)
        profile = context.profile
        assert profile is not None
        measured = [mode for mode in context.modes if mode.name in profile.costs]
        self._choices = [self._choice(mode, size) for mode in measured for size in sizes_of(mode)]
        self._plain = Choice(NO_DRAFTS, 0.0, profile.plain)
        self._pays = self.expected_speed_up() >= MIN_SPEED_UP
        self._chosen = self._plain
        self._last = NO_DRAFTS
        self._trial = self._find_trial()
        self._images: dict[int, _ImageHistory] = {}

    def _choice(self, mode: DraftMode, size: int) -> Choice:
        shape = shape_of(mode, size)
        profile = self.context.profile
        assert profile is not None
        # Levels below the largest shape are cut off, and each has at least one draft.
        cut_levels = max(shape.depth - self.context.largest.depth, 0)
        accepted = profile.gains.get(mode.name, 1.0) * mode.expected_accepted(size - cut_levels)
        return Choice(shape, accepted, profile.cost(mode.name, size))

    @classmethod
    def largest(cls, settings: DraftSettings) -> Shape:
        return Shape(spine_length(SIZES[-1], WIDTH), WIDTH, SIZES[-1])

    def expected_speed_up(self) -> float:
        """Return the average speed-up of the best mode and size over plain decoding; 0 without draft modes."""
        return max((choice.speed_up for choice in self._choices), default=0.0)

    def begin(self) -> bool:
        """Forget all images, and return whether there are draft modes."""
        self._images = {}
        self.drafts = bool(self._choices)
        return self.drafts

    def _find_trial(self) -> Choice | None:
        """Return the smallest tree of the mode to try, or None.

        If drafts are not expected to pay off, it is the cheapest mode. Otherwise all modes but the best take turns from
        decoding to decoding. A fresh profile tries none of them, so that a GPU captures no graphs for trials.
        """
        profile = self.context.profile
        assert profile is not None
        smallest = [choice for choice in self._choices if choice.shape.nodes == SIZES[0]]
        if not self._pays:
            return min(smallest, key=lambda choice: choice.cost, default=None)
        best = max(self._choices, key=lambda choice: choice.speed_up).shape.mode
        others = [choice for choice in smallest if choice.shape.mode != best]
        return others[profile.decodings % len(others)] if others and profile.decodings else None

    def choose(self, slots: Sequence[Slot]) -> list[Shape]:
        images = [self._images.setdefault(slot.image, _ImageHistory()) for slot in slots]
        self._last = self._chosen.shape
        self._chosen = self._plain
        if any(image.rounds for image in images):
            is_second = all(image.rounds == 1 for image in images)
            # The profile's cost of a trial may be far too high, so it is not deducted from the budget.
            trial = self._trial._replace(cost=self._plain.cost) if is_second and self._trial is not None else None
            self._chosen = trial or self._best(images)
        return [self._chosen.shape] * len(slots)

    def _best(self, images: Sequence[_ImageHistory]) -> Choice:
        """Return the choice with the highest throughput that these images can afford."""
        choices = [self._plain, *self._affordable(images)]
        modes = {choice.shape.mode for choice in choices}
        multipliers = {mode: sum(image.multiplier(mode) for image in images) for mode in modes}

        def throughput(choice: Choice) -> float:
            """Return the expected tokens of all images per plain step, with a bonus for the last round's choice."""
            tokens = len(images) + multipliers[choice.shape.mode] * choice.expected_accepted
            return tokens / choice.cost * (STAY_BONUS if choice.shape == self._last else 1)

        return max(choices, key=throughput)

    def _affordable(self, images: Sequence[_ImageHistory]) -> list[Choice]:
        """Return the choices within the budget of every image, since a batch takes as long as its slowest image.

        If there are none, drafting stops.
        """
        budget = MAX_LOSS * self.context.remaining + min(image.tokens - image.cost for image in images)
        cheapest = min(choice.cost for choice in self._choices) - 1
        self.drafts = cheapest <= budget
        most = max(MAX_ROUND_SHARE * budget, cheapest)
        return [choice for choice in self._choices if self.drafts and choice.cost - 1 <= most]

    def on_verified(self, round: Round) -> None:
        for share in round.images:
            self._images[share.image].update(share.accepted, self._chosen)
        if self._chosen.shape.nodes and not self._pays and not self.context.replayed:
            self.drafts = False  # A GPU goes on, with rounds whose graphs are captured.


@dataclass
class _Bias:
    """Ratio of accepted to expected drafts, smoothed over rounds.

    Attributes:
        prior: Number added to both, so that the ratio starts at 1 and moves slowly.
        decay: Weight of earlier rounds, per round.
        accepted: Weighted number of accepted drafts.
        expected: Weighted number of drafts that were expected to be accepted.
    """

    prior: float
    decay: float
    accepted: float = 0.0
    expected: float = 0.0

    @property
    def ratio(self) -> float:
        return (self.accepted + self.prior) / (self.expected + self.prior)

    def update(self, accepted: float = 0.0, expected: float = 0.0) -> None:
        """Add a round."""
        self.accepted = self.decay * self.accepted + accepted
        self.expected = self.decay * self.expected + expected


@dataclass
class _ImageHistory:
    """Observations of an image's own rounds.

    Attributes:
        rounds: Number of its rounds.
        tokens: Tokens decided in its rounds.
        cost: Time of its rounds in plain steps.
        region_bias: Bias of the last few rounds.
        image_biases: Bias of each draft mode that was used in this image.
    """

    rounds: int = 0
    tokens: int = 0
    cost: float = 0.0
    region_bias: _Bias = field(default_factory=lambda: _Bias(REGION_PRIOR, REGION_DECAY))
    image_biases: dict[str, _Bias] = field(default_factory=dict)

    def image_bias(self, mode: str) -> float:
        return self.image_biases[mode].ratio if mode in self.image_biases else 1.0

    def multiplier(self, mode: str) -> float:
        """Return the factor on a mode's average number of accepted drafts for this image now; 0 in its first round."""
        return self.region_bias.ratio * self.image_bias(mode) if self.tokens else 0.0

    def update(self, accepted: int, choice: Choice) -> None:
        """Add a round in which this number of drafts was accepted."""
        mode = choice.shape.mode
        self.rounds += 1
        self.tokens += accepted + 1
        self.cost += choice.cost
        self.region_bias.update(accepted, self.image_bias(mode) * choice.expected_accepted)
        if mode:
            self.image_biases.setdefault(mode, _Bias(IMAGE_PRIOR, IMAGE_DECAY))
        for name, bias in self.image_biases.items():
            if name == mode:
                bias.update(accepted, choice.expected_accepted)
            else:
                bias.update()
