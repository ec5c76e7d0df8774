"""LANTERN's budget: how many tokens of each image may still differ from the exact sample."""

from __future__ import annotations

from collections.abc import Iterable

from ..rules.settings import Lantern
from ..rules.trace import ImageRound
from .slots import Slots


class Budget:
    """Of the images of one decoding. lantern: None for exact acceptance, where none may."""

    def __init__(self, lantern: Lantern | None, images: int):
        self._lantern, self._substituted = lantern, [0] * images

    def allowed(self, slots: Slots) -> list[int]:
        """Substitutions that the image of every slot may still make."""
        if self._lantern is None:
            return [0] * len(slots)
        emitted = [position + 1 - slots.request.start for position in slots.positions]
        return [self._lantern.allowed(count, self._substituted[image]) for count, image in zip(emitted, slots.images)]

    def spend(self, share: ImageRound) -> None:
        """A round of an image is over."""
        self._substituted[share.image] += share.substituted

    def forget(self, images: Iterable[int]) -> None:
        """These images begin anew."""
        for image in images:
            self._substituted[image] = 0
