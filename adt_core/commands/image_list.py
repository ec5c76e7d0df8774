"""Images of a run of `generate`: their numbers, prompts and file names."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..app.prompts import PromptEntry
from ..errors import AdtError

MAX_IMAGES = 10**6
"""Maximum number of images of one command."""
_IMAGE_SUFFIXES = (".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff")
"""Suffixes that a folder's name may not have: the user probably expects images of this format."""


@dataclass(frozen=True)
class ImageList:
    """Images of a run, numbered from 1. The images of the first prompt come first.

    The number of an image depends only on the list and on `per_prompt`. So the shards of a list use the same numbers
    and file names as a run without shards.

    Attributes:
        prompts: Prompts of the complete list, or the single prompt.
        output: A PNG, or the folder of numbered PNGs.
        per_prompt: Number of images per prompt.
        first_index: Index of the first image of each prompt. The index is a part of the key of the noise.
        shard: (I, N): this run generates every N-th image, from the I-th on.
        resumes: Whether images that exist are kept. Only the images of a list are.

    Raises:
        AdtError: If there are too many images, or `output` does not fit.
    """

    prompts: Sequence[PromptEntry]
    output: Path
    per_prompt: int = 1
    first_index: int = 0
    shard: tuple[int, int] = (1, 1)
    resumes: bool = False

    def __post_init__(self) -> None:
        suffix = self.output.suffix.lower()
        if suffix != ".png" and (not self.resumes or suffix in _IMAGE_SUFFIXES):
            folder = ", or name a folder" if self.resumes else ""
            raise AdtError(f"`output`: '{self.output}' must end in .png{folder}.")
        if self.count > MAX_IMAGES:
            raise AdtError(
                f"`batch_size`: this makes {self.count} images, but at most {MAX_IMAGES} are allowed; use a smaller "
                "number."
            )
        if not self.numbers:
            raise AdtError(f"`shard` is {self.shard[0]}/{self.shard[1]}, but there are only {self.count} images.")

    @property
    def count(self) -> int:
        """Number of images of all shards together."""
        return len(self.prompts) * self.per_prompt

    @property
    def numbers(self) -> range:
        """Numbers of the images of this shard."""
        return range(self.shard[0], self.count + 1, self.shard[1])

    def entry(self, number: int) -> PromptEntry:
        """Return the prompt of an image."""
        return self.prompts[(number - 1) // self.per_prompt]

    def index(self, number: int) -> int:
        """Return the index of an image among the images of its prompt."""
        return self.first_index + (number - 1) % self.per_prompt

    @property
    def folder(self) -> Path:
        """Folder of the images."""
        return self.output.parent if self._is_file else self.output

    def key(self, number: int) -> str:
        """Return the file name of an image without its suffix."""
        if self._is_file:
            return f"{self.output.stem}-{number:04}" if self.count > 1 else self.output.stem
        return f"{number:06}"

    def path(self, number: int) -> Path:
        """Return the PNG of an image."""
        return self.folder / f"{self.key(number)}.png"

    @property
    def _is_file(self) -> bool:
        return self.output.suffix.lower() == ".png"

    def number(self, key: str) -> int | None:
        """Return the number of the image with a file name; None if no image of the list has this name.

        Args:
            key: File name without suffix.
        """
        if key == self.key(1):
            return 1
        digits = re.search(r"((?<![0-9])[0-9]+)$", key)
        number = int(digits[1]) if digits and len(digits[1]) < 9 else 0
        return number if 1 <= number <= self.count and self.key(number) == key else None

    def existing(self) -> dict[int, os.DirEntry]:
        """Return the PNGs of the list that exist, by number. The folder is listed once, because lists can be long."""
        if not self.folder.is_dir():
            return {}
        with os.scandir(self.folder) as entries:
            names = {name: entry for entry in entries if (name := entry.name).endswith(".png")}
        found = {self.number(name.removesuffix(".png")): entry for name, entry in names.items()}
        return {number: entry for number, entry in found.items() if number is not None}

    def written(self, others: Iterable[Path]) -> Iterator[Path]:
        """Yield the paths of images that could be one of the other files of the run.

        These are the first image, images with the name of another file, and existing images that are links or have the
        inode number of another file. A long list has too many images to check all of them.

        Args:
            others: Files that the images must not replace.
        """
        others = list(others)
        inodes = {os.stat(path).st_ino for path in others if os.path.exists(path)}
        linked = {n for n, entry in self.existing().items() if entry.is_symlink() or entry.inode() in inodes}
        named = {self.number(path.stem) for path in others if path.suffix.lower() == ".png"}
        for number in sorted({self.numbers[0], *linked, *(number for number in named if number is not None)}):
            yield self.path(number)
