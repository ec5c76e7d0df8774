"""Numbered PNGs of a run of `generate`, which can be resumed after every image."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ..app.images import is_intact
from ..app.saved import SETTINGS_KEY, difference, read_saved
from ..errors import AdtError
from ..files import write
from .image_list import ImageList


class ImageIdentity(NamedTuple):
    """Properties of an image by which a run recognises it.

    Attributes:
        key: Digest of all settings that determine the images of the run, apart from prompts
            (`batch_folder.settings_key`).
        seed: Seed of the run.
        size: Width and height in pixels.
        settings: Settings of the recipe, to explain a different digest.
    """

    key: str
    seed: int
    size: tuple[int, int]
    settings: Mapping[str, Any]

    def of(self, images: ImageList, number: int) -> dict[str, Any]:
        """Return the settings that an image's PNG and lines must have."""
        own = {"prompt": images.entry(number).text, "seed": self.seed, "image_index": images.index(number)}
        return {**own, SETTINGS_KEY: self.key}

    def explained(self, saved: Mapping[str, Any], problem: str) -> str:
        """Return why an image differs. If only the digests differ, name a setting.

        Args:
            problem: Result of `saved.difference`.
        """
        if SETTINGS_KEY not in problem:
            return problem
        return difference(saved, self.settings) or "was made with other weights, or with another version of this pack"


class PngFolder:
    """PNGs of a run. An image is present if the PNG of its number has its settings."""

    def __init__(self, images: ImageList, identity: ImageIdentity, overwrite: bool):
        """Make a folder, without writing anything.

        Args:
            identity: Properties by which the images are recognised.
            overwrite: Whether to replace other files that have the name of an image.
        """
        self._images = images
        self._identity = identity
        self._overwrite = overwrite

    def missing(self) -> list[int]:
        """Return the numbers of the images to generate.

        Raises:
            AdtError: If a file has the name of an image, but is not this image, and must not be overwritten.
        """
        numbers = self._images.numbers
        existing = self._images.existing() if self._images.resumes else {}
        return [number for number in numbers if number not in existing or not self._is_present(number)]

    def _is_present(self, number: int) -> bool:
        path = self._images.path(number)
        saved, problem = read_saved(path, self._identity.of(self._images, number))
        if not problem and not is_intact(path, self._identity.size):
            problem = "is damaged, or has another size"
        if problem and not self._overwrite:
            raise AdtError(
                f"`output`: '{path}' {self._identity.explained(saved, problem)}; choose another folder, or give "
                "`overwrite` to replace such files."
            )
        return not problem

    def add(self, number: int, png: bytes, codes: list[list[int]]) -> None:
        """Write an image.

        Args:
            codes: Codebook indices, row by row.

        Raises:
            AdtError: If the file cannot be written.
        """
        write(self._images.path(number), png)

    def leave_out(self, number: int) -> None:
        """Note that an image will not be generated, because its prompt is invalid."""

    def finish(self) -> None:
        """End a complete run."""
