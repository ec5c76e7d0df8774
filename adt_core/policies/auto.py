"""The `auto` policy: choose the draft mode and tree size with the highest expected throughput on this device.

A draft mode is one of the ways in which a drafter can draft (:class:`.base.DraftMode`). A plain round is the time of a
target forward pass in decoding without a drafter. For a round with n drafts per image, c(n) is the cost in plain
rounds, from the cost profile of the device (:mod:`.cost_profile`). w(n) is the expected number of tokens per image:

    w(n) = 1 + multiplier * expected_accepted(n)
    multiplier = image_bias * region_bias

- `expected_accepted` is the mode's average number of accepted drafts over many images
  (`DraftMode.expected_accepted`), times the gain of the mode. The gain is the ratio of accepted to expected drafts in
  earlier decodings with the same sampling settings (:mod:`.cost_model`).
- `image_bias` is the ratio of accepted to expected drafts of the mode in this image. For a mode that was not used in
  this image, it is estimated from the other modes (`SHARED_BIAS`). Old rounds slowly lose their weight, so a mode with
  few accepted drafts is tried again later.
- `region_bias` compares the last few rounds, in any mode, with the image's average: it is the ratio of accepted drafts
  to `image_bias * expected_accepted`. It is high in regions of the image that are easy to predict.

For each round, the policy chooses the draft mode and the number n with the highest throughput w(n) / c(n). n = 0, a
round without drafts, is also a choice. Images that are decoded together share a forward pass, and the time of this pass
depends on the largest tree. Therefore all of these images get the same mode and the same n, and w is summed over the
images.

A round in which all active images are new is a *trial*: a round that the policy usually would not choose by the
profile. If the profile is wrong, the measured time of the trial corrects the profile for later images.

The policy reads no clock. Its choices depend only on the profile and on the active images, not on earlier images.

There is a budget for lost time: by the costs in the profile, the active images may on average take 10 % longer
(`MAX_LOSS`) than with plain decoding. Except for the trial, the policy chooses only rounds that fit into the budget. If
no round with drafts fits, drafting stops for all active images.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import NamedTuple

from ..trace import Round
from .base import PLAIN_SHAPE, ActiveImage, Context, DraftMode, DraftSettings, Policy, Shape

SIZES = (4, 8, 12, 16, 24, 31, 63)
"""Numbers of drafts per image from which the policy chooses on a CPU. In batch-invariant mode a GPU multiplies tiles of
64 rows. With guidance each token has 2 rows, so 31 drafts and the root fill one tile, and 63 drafts fill two."""
GPU_SIZES = (4, 7, 15, 31, 63)
"""Numbers of drafts from which the policy chooses if rounds are captured as CUDA graphs. With the root, 7, 15 and 31
drafts fill the 16, 32 and 64 rows that a program of the Triton kernel `linear` multiplies. 8 and 16 drafts would need
the next larger program, or read the weights twice. Each size needs a graph for each number of cache positions."""
STREAMED_SIZE = 95
"""Largest number of drafts if layers of the model are streamed: a pass takes nearly the same time for any tree. With
the bundled model (8 captions, temperature 1), trees of 95 drafts gave 12 % more tokens per pass than trees of 63, and
trees of 127 drafts gave no more. The estimates of accepted drafts have the same ratio."""
LONGEST_CHAIN = 31
"""Maximum number of drafts in a chain."""
LONGEST_SPINE = 42
"""Maximum number of drafts in the spine of a tree; in trees of `STREAMED_SIZE` it is `LONGEST_STREAMED_SPINE`. The
spine is the path with the most probable draft at each position. The other drafts of the tree are its branches."""
LONGEST_STREAMED_SPINE = 63
WIDTH = 4
"""Maximum number of candidates at a position of a tree."""
REGION_DECAY = 0.9
"""Factor by which each round reduces the weight of earlier rounds in `region_bias`."""
IMAGE_DECAY = 0.995
"""Factor by which each round reduces the weight of earlier rounds in `image_bias`."""
REGION_PRIOR = 8.0
"""`region_bias` starts as if this many drafts had been expected, and exactly these had been accepted."""
IMAGE_PRIOR = 100.0
"""`image_bias` starts as if this many drafts had been expected, and exactly these had been accepted."""
MIN_SPEED_UP = 1.1
"""Minimum speed-up over plain decoding. On a CPU, if less is expected, there are no drafts after the trial."""
SHARED_BIAS = 0.5
"""Exponent of the image bias of a mode that was not used in the image: its bias is the ratio of accepted to expected
drafts in all modes, raised to this power. An image that is hard for one mode is usually hard for all modes."""
STAY_BONUS = 1.2
"""Factor on the expected throughput of the shape of the last round, which makes changes less frequent. The drafts of a
round are made from the drafts of earlier rounds. So after a round with fewer drafts or another mode, fewer drafts are
accepted than expected. A trial gets no bonus."""
MAX_LOSS = 0.1
"""Time that images may lose by drafting (the budget), as a share of their time in plain decoding."""
MAX_ROUND_SHARE = 0.1
"""Share of the remaining budget that one round may use. So a shrinking budget first excludes large trees. The cheapest
round with drafts may use up to the entire remaining budget. Drafting stops when this round costs more."""


class Choice(NamedTuple):
    """A draft mode and a number of drafts from which the policy can choose for a round.

    Attributes:
        shape: Shape of the trees.
        expected_accepted: Expected number of accepted drafts per image, without the multiplier of an image.
        cost: Time of the round in plain rounds, by the profile.
    """

    shape: Shape
    expected_accepted: float
    cost: float

    @property
    def speed_up(self) -> float:
        """Expected number of tokens per image in the time of a plain round."""
        return (1 + self.expected_accepted) / self.cost


def spine_length(drafts: int, width: int) -> int:
    """Return the number of drafts on the spine of a tree.

    A chain has only a spine, and so has a tree of at most 4 drafts. In a larger tree, five sixths of the drafts are on
    the spine, but at most `LONGEST_SPINE`.
    """
    longest = LONGEST_STREAMED_SPINE if drafts == STREAMED_SIZE else LONGEST_SPINE
    return drafts if width == 1 or drafts <= 4 else min(round(drafts * 5 / 6), longest)


def sizes_of(mode: DraftMode, replayed: bool, most: int = SIZES[-1]) -> tuple[int, ...]:
    """Return the numbers of drafts to choose from in a draft mode, up to the `most` for which there is memory."""
    sizes = (*(GPU_SIZES if replayed else SIZES), STREAMED_SIZE)
    return tuple(size for size in sizes if size <= (LONGEST_CHAIN if mode.width == 1 else most))


def shape_of(mode: DraftMode, drafts: int) -> Shape:
    """Return the shape of a tree with this number of drafts in a draft mode."""
    width = min(mode.width, WIDTH)
    return Shape(spine_length(drafts, width), width, drafts, mode=mode.name) if drafts else PLAIN_SHAPE


class Auto(Policy):
    """Policy that chooses one draft mode and one size for all images of a round."""

    help = "the number of drafts that is fastest on this device"
    chooses = True
    sizes = (*SIZES, STREAMED_SIZE)

    def __init__(self, context: Context):
        super().__init__(context)
        profile = context.profile
        assert profile is not None
        measured = [mode for mode in context.modes if mode.name in profile.costs]
        most = context.largest.drafts
        self._choices = [
            self._choice(mode, size) for mode in measured for size in sizes_of(mode, context.replayed, most)
        ]
        self._plain = Choice(PLAIN_SHAPE, 0.0, profile.plain)
        self._pays = self.expected_speed_up() >= MIN_SPEED_UP
        self._chosen = self._plain
        self._last: Shape | None = None
        self._trial = self._find_trial()
        self._images: dict[int, _ImageHistory] = {}

    def _choice(self, mode: DraftMode, size: int) -> Choice:
        shape = shape_of(mode, size)
        profile = self.context.profile
        assert profile is not None
        # If the spine is longer than the maximum depth (for example, in an image with few tokens), the deepest levels
        # are cut off. Each of these levels has at least one draft.
        cut_levels = max(shape.depth - self.context.largest.depth, 0)
        accepted = profile.gains.get(mode.name, 1.0) * mode.expected_accepted(size - cut_levels)
        return Choice(shape, accepted, profile.cost(mode.name, size))

    @classmethod
    def largest(cls, settings: DraftSettings) -> Shape:
        return Shape(spine_length(SIZES[-1], WIDTH), WIDTH, SIZES[-1])

    @classmethod
    def largest_streamed(cls, settings: DraftSettings) -> Shape:
        return Shape(spine_length(STREAMED_SIZE, WIDTH), WIDTH, STREAMED_SIZE)

    def expected_speed_up(self) -> float:
        """Return the expected speed-up of the best choice over plain decoding; 0 without draft modes."""
        return max((choice.speed_up for choice in self._choices), default=0.0)

    def begin(self) -> bool:
        """Forget all images, and return whether any round can have drafts."""
        self._images = {}
        self.is_drafting = self._pays or self._trial.shape.drafts > 0
        return self.is_drafting

    def _find_trial(self) -> Choice:
        """Return the choice for the trial: a plain round, or the smallest tree of a mode.

        The choices take turns from decoding to decoding. If a mode has the required speed-up (`MIN_SPEED_UP`), these
        are the plain round and the modes other than the best one. The turn begins with the plain round: for a trial
        with drafts, a GPU would capture another graph for the first image. If no mode has the required speed-up, these
        are all modes, beginning with the best one. A batch of B images then has a trial with drafts only in every B-th
        decoding, because the trial leaves its images at different positions, and all later rounds take longer.

        The trial counts with the cost of a plain round. Its cost in the profile may be far too high, and would
        then use up the budget.
        """
        profile = self.context.profile
        assert profile is not None
        smallest = [choice for choice in self._choices if choice.shape.drafts == SIZES[0]]
        turns = sorted(smallest, key=lambda choice: -choice.speed_up)
        turn = profile.decodings
        if self._pays:
            best = max(self._choices, key=lambda choice: choice.speed_up).shape.mode
            turns = [self._plain, *(choice for choice in turns if choice.shape.mode != best)]
        else:
            turn, part = divmod(turn, profile.images)
            turns = turns if part == profile.images - 1 else []
        trial = turns[turn % len(turns)] if turns else self._plain
        return trial._replace(cost=self._plain.cost)

    def choose(self, slots: Sequence[ActiveImage]) -> list[Shape]:
        images = [self._images.setdefault(slot.image, _ImageHistory()) for slot in slots]
        self._last = self._chosen.shape if self._chosen is not self._trial else None
        self._chosen = self._best(images) if any(image.tokens for image in images) else self._trial
        return [self._chosen.shape] * len(slots)

    def _best(self, images: Sequence[_ImageHistory]) -> Choice:
        """Return the choice with the highest throughput that these images can afford."""
        choices = [self._plain, *self._affordable(images)]
        modes = {choice.shape.mode for choice in choices}
        multipliers = {mode: sum(image.multiplier(mode) for image in images) for mode in modes}

        def throughput(choice: Choice) -> float:
            """Return the expected tokens of all images per plain round, times `STAY_BONUS` for the same shape again."""
            tokens = len(images) + multipliers[choice.shape.mode] * choice.expected_accepted
            return tokens / choice.cost * (STAY_BONUS if choice.shape == self._last else 1)

        return max(choices, key=throughput)

    def _affordable(self, images: Sequence[_ImageHistory]) -> list[Choice]:
        """Return the choices with drafts that fit into the budget. If there are none, stop drafting."""
        budget = MAX_LOSS * self.context.remaining + fmean(image.tokens - image.cost for image in images)
        cheapest = min(choice.cost for choice in self._choices) - 1
        self.is_drafting = cheapest <= budget
        most = max(MAX_ROUND_SHARE * budget, cheapest)
        return [choice for choice in self._choices if self.is_drafting and choice.cost - 1 <= most]

    def on_verified(self, round: Round) -> None:
        for record in round.images:
            self._images[record.image].update(record.accepted, self._chosen)
        if self._chosen.shape.drafts and not self._pays and not self.context.replayed:
            self.is_drafting = False  # If rounds are captured as CUDA graphs, drafting goes on.


@dataclass
class _Bias:
    """Ratio of accepted to expected drafts, smoothed over rounds.

    Attributes:
        prior: Added to the accepted and to the expected drafts, so that the ratio starts at 1 and changes slowly.
        decay: Factor by which each round reduces the weight of earlier rounds.
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
        self.accepted = self.decay * self.accepted + accepted
        self.expected = self.decay * self.expected + expected


@dataclass
class _ImageHistory:
    """Observations of an image's own rounds.

    Attributes:
        tokens: Tokens decided in its rounds.
        cost: Time of its rounds in plain rounds.
        region_bias: Bias over the last few rounds, in any mode.
        shared_bias: Bias over all rounds, in any mode.
        image_biases: Bias of each draft mode that was used in this image.
    """

    tokens: int = 0
    cost: float = 0.0
    region_bias: _Bias = field(default_factory=lambda: _Bias(REGION_PRIOR, REGION_DECAY))
    shared_bias: _Bias = field(default_factory=lambda: _Bias(IMAGE_PRIOR, IMAGE_DECAY))
    image_biases: dict[str, _Bias] = field(default_factory=dict)

    def image_bias(self, mode: str) -> float:
        own = self.image_biases.get(mode)
        return self.shared_bias.ratio**SHARED_BIAS if own is None else own.ratio

    def multiplier(self, mode: str) -> float:
        """Return the factor on the `expected_accepted` of a mode for this image's next round."""
        return self.region_bias.ratio * self.image_bias(mode)

    def update(self, accepted: int, choice: Choice) -> None:
        """Add a round in which this number of drafts was accepted."""
        mode = choice.shape.mode
        self.tokens += accepted + 1
        self.cost += choice.cost
        self.region_bias.update(accepted, self.image_bias(mode) * choice.expected_accepted)
        self.shared_bias.update(accepted, choice.expected_accepted)
        if mode:
            self.image_biases.setdefault(mode, _Bias(IMAGE_PRIOR, IMAGE_DECAY))
        for name, bias in self.image_biases.items():
            if name == mode:
                bias.update(accepted, choice.expected_accepted)
            else:
                bias.update()
