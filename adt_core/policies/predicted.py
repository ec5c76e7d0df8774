"""The policy `predicted`: make each tree as deep as the number of drafts that it will probably get accepted.

It is not from a paper. :mod:`.adt_tree` has the rule of the ADT-Tree paper.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..settings import choice
from ..trace import Round
from .adt_tree import BoundedSettings
from .base import ActiveImage, Context, Policy, Shape

LEFT = "left"
ABOVE = "above"
BOTH = "both"
SOURCES = (LEFT, ABOVE, BOTH)
"""Values of the option `predict_from`."""
CELLS_ABOVE = 4
"""Number of cells in the row above that are used, from the column of the next token on."""
_SOURCES_HELP = (
    "Predicted: rounds that predict the next one, besides the mean of the image: the last round (left), the rounds of "
    "the tokens above, or both."
)


@dataclass(frozen=True)
class PredictedSettings(BoundedSettings):
    """Settings of :class:`Predicted`."""

    predict_from: str = choice(BOTH, _SOURCES_HELP, SOURCES)


class Predicted(Policy):
    """Policy that makes a tree as deep as the predicted number of accepted drafts, divided by `beta`.

    The prediction is the mean of up to three numbers:

    - accepted drafts of the last round; left out if `predict_from` is `above`.
    - average accepted drafts of the rounds that emitted the tokens in the row above, from the column of the next token
      on (`CELLS_ABOVE` tokens); left out if `predict_from` is `left`.
    - average accepted drafts of all rounds of the image so far.

    A tree of the depth `depth_min` has the width `width_max`, and a tree of the depth `depth_max` has the width
    `width_min`. Between these depths, the width falls linearly.
    """

    settings_type = PredictedSettings
    help = "a tree as deep as the number of drafts that will probably be accepted; larger trees pay only on a GPU"

    def __init__(self, context: Context):
        super().__init__(context)
        self._images: dict[int, _ImageState] = {}

    @classmethod
    def largest(cls, settings: PredictedSettings) -> Shape:
        return settings.largest

    def begin(self) -> bool:
        self._images = {}
        return True

    def choose(self, slots: Sequence[ActiveImage]) -> list[Shape]:
        expected = self.settings.beta * self.settings.bounded(self.settings.depth, 0).depth
        self._images = {slot.image: self._images.get(slot.image) or _ImageState(expected) for slot in slots}
        return [self._shape_for(self._predicted(self._images[slot.image], slot.position)) for slot in slots]

    def _predicted(self, image: _ImageState, position: int) -> float:
        """Return the expected number of accepted drafts of the tree with the root at `position`."""
        mean = image.total / image.count
        first = position + 1 - self.context.columns
        above = [image.accepted[cell] for cell in range(first, first + CELLS_ABOVE) if cell in image.accepted]
        parts = [mean]
        if self.settings.predict_from != ABOVE:
            parts.append(image.accepted.get(position, mean))
        if self.settings.predict_from != LEFT:
            parts.append(sum(above) / len(above) if above else mean)
        return sum(parts) / len(parts)

    def _shape_for(self, accepted: float) -> Shape:
        """Return the shape of a tree of which `accepted` drafts are expected to be accepted."""
        s = self.settings
        depth = round(min(accepted / max(s.beta, 0.01), s.depth_max))
        share = (depth - s.depth_min) / max(s.depth_max - s.depth_min, 1)
        return s.bounded(depth, round(s.width_max - share * (s.width_max - s.width_min)))

    def on_verified(self, round: Round) -> None:
        for record in round.images:
            if record.depth:
                image = self._images[record.image]
                cells = range(record.first, record.first + record.accepted + 1)
                image.accepted |= dict.fromkeys(cells, record.accepted)
                image.total += record.accepted
                image.count += 1


@dataclass
class _ImageState:
    """State of an image.

    Attributes:
        total: Number of accepted drafts in all rounds so far, plus beta * initial depth for an imaginary first round.
        count: Number of these rounds, including the imaginary one.
        accepted: For the raster position of each token, the number of accepted drafts of the round that emitted it.
    """

    total: float
    count: int = 1
    accepted: dict[int, int] = field(default_factory=dict)
