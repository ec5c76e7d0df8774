"""LANTERN's budget: the number of tokens of each image that may still be substituted."""

from __future__ import annotations

from collections.abc import Iterable

from ..rules.settings import Lantern
from ..rules.trace import ImageRound
from .slots import Slots


class Budget:
    """Substitutions of the images of one decoding."""

    def __init__(self, lantern: Lantern | None, images: int):
        """Start without any substitutions.

        Args:
            lantern: Relaxed acceptance; None for exact acceptance, which allows no substitution.
            images: Number of images of the decoding.
        """
        self._lantern = lantern
        self._substituted = [0] * images

    def allowed(self, slots: Slots) -> list[int]:
        """Return the number of substitutions that the image of each slot may still make."""
        if self._lantern is None:
            return [0] * len(slots)
        emitted = [position + 1 - slots.request.start for position in slots.positions]
        return [self._lantern.allowed(count, self._substituted[image]) for count, image in zip(emitted, slots.images)]

    def spend(self, entry: ImageRound) -> None:
        """Count the substitutions of an image's round."""
        self._substituted[entry.image] += entry.substituted

    def reset(self, images: Iterable[int]) -> None:
        """Forget the substitutions of images that start again."""
        for image in images:
            self._substituted[image] = 0
