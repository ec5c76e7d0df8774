"""LANTERN's budget: how many tokens of each image may still be substituted.

LANTERN (arXiv 2410.03355) accepts some drafts that differ from the token that the target would emit, but that look
similar. Such a draft takes the place of the target's token: the target's token is *substituted*.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..settings import Lantern
from ..trace import ImageRound
from .slots import Slots


class Budget:
    """Number of substituted tokens of each image of a decoding, and the limit on this number."""

    def __init__(self, lantern: Lantern | None, images: int):
        """Start with no substituted tokens. Without LANTERN (None), no substitution is allowed."""
        self._lantern = lantern
        self._substituted = [0] * images

    def allowed(self, slots: Slots) -> list[int]:
        """Return, for each slot, how many tokens of its image may still be substituted."""
        if self._lantern is None:
            return [0] * len(slots)
        images = list(zip(slots.images, slots.positions))
        emitted = [slots.request.kept.generated(image, position) for image, position in images]
        return [self._lantern.allowed(count, self._substituted[image]) for count, image in zip(emitted, slots.images)]

    def spend(self, record: ImageRound) -> None:
        """Count the tokens that were substituted in an image in one round."""
        self._substituted[record.image] += record.substituted

    def reset(self, images: Iterable[int]) -> None:
        """Set the number of substituted tokens to 0 for images that are decoded again from the beginning."""
        for image in images:
            self._substituted[image] = 0
