"""Stores: where the images of a list are kept, so that an interrupted list can be continued anywhere.

The command line and the nodes use the same names and the same rule of identity. So either continues a list that the
other has begun:

- The name of an image is its number in the list, such as 000012.png. From number 10,000 on, images are in subfolders of
  1,000, such as 012/012345.png, because network disks and file managers are slow in folders with very many files.
- A file is this image if its prompt, its seed, its noise index, and the digest of all other settings are those of the
  job. A file of another identity is never replaced, unless the user wants to generate all images again.

Each PNG contains the record of its image: its settings, its tokens and its statistics.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TypeGuard

from ..errors import AdtError, Check, shown
from ..files import is_link, write_in
from ..messages import message
from ..recipe import Recipe
from ..untrusted import list_of, whole_number
from .identity import digest, settings_key
from .images import is_intact, read_settings
from .jobs import Job, JobList
from .runner import CAPTION, SETTINGS_KEY, Runner
from .stats import are_image_stats

_UNCOMPARED = "model", "drafter", "image_index", "seed"
"""Settings that do not explain a different digest: paths, and settings of the jobs."""


class Store(Protocol):
    """Images of a list that are finished."""

    def missing(self) -> list[int]:
        """Return the numbers of the images to generate.

        Raises:
            AdtError: If a file has the name of an image, but is not this image, and must not be replaced.
        """
        ...

    def add(self, job: Job, png: bytes | None, record: Mapping[str, Any]) -> None:
        """Store a finished image.

        Args:
            png: Content of its PNG, or None if a worker has written it to the same folder.
            record: Record of the image, which the PNG contains if the image belongs to a list.

        Raises:
            AdtError: If the file cannot be written.
        """
        ...

    def leave_out(self, number: int) -> None:
        """Note that an image will not be generated, because its prompt is invalid."""
        ...

    def finish(self) -> None:
        """End a complete run."""
        ...

    def records(self) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """Yield the number and the record of each image of this shard that is stored, in the order of the list."""
        ...


@dataclass(frozen=True)
class Identity:
    """Properties by which the images of a run are recognised.

    Attributes:
        key: Digest of all settings except prompts and noise (`identity.settings_key`).
        size: Width and height in pixels.
        grid: Rows and columns of tokens.
        num_codes: Size of the codebook.
        settings: Settings of the recipe, to explain a different digest.
    """

    key: str
    size: tuple[int, int]
    grid: tuple[int, int]
    num_codes: int
    settings: Mapping[str, Any]

    @classmethod
    def of(cls, pipeline: Runner, check: Check | None = None, has_key: bool = True) -> Identity:
        """Return the identity of a pipeline's images.

        Args:
            has_key: Whether to compute the digest, which reads all weights the first time; else it is "".
        """
        target = pipeline.target
        rows, columns = target.grid
        size = columns * target.downsample, rows * target.downsample
        values = pipeline.settings("")
        compared = {name: values[name] for name in ("model_name", *Recipe.names()) if name in values}
        settings = {name: value for name, value in compared.items() if name not in _UNCOMPARED}
        key = settings_key(pipeline, check) if has_key else ""
        return cls(key, size, target.grid, target.num_codes, settings)

    def of_job(self, job: Job) -> Identity:
        """Return the properties of an image, which may have its own settings."""
        if not job.settings:
            return self
        own = dict(job.settings)
        width, height = size = own.get("size", self.size)
        side = self.size[0] // self.grid[1]
        key = digest([self.key, job.settings])
        return replace(
            self, key=key, size=size, grid=(height // side, width // side), settings={**self.settings, **own}
        )

    def expected(self, job: Job) -> dict[str, Any]:
        """Return the settings that an image's record and lines must have."""
        key = self.of_job(job).key
        return {"prompt": job.prompt, "seed": job.seed, "image_index": job.index, SETTINGS_KEY: key}

    def problem(self, record: Mapping[str, Any], job: Job) -> str:
        """Return why a record is not of an image, or "" if it is. If only the digests differ, name a setting."""
        problem = difference(record, self.expected(job))
        own = self.of_job(job)
        if SETTINGS_KEY in problem:
            problem = difference(record, own.settings)
            return problem or message("stored.other_weights")
        if not problem and not own._is_complete(record):
            problem = message("stored.no_figures")
        return problem

    def _is_complete(self, record: Mapping[str, Any]) -> TypeGuard[Mapping[str, Any]]:
        rows, columns = self.grid
        tokens = list_of(list_of(whole_number(0, self.num_codes - 1), columns, columns), rows, rows)
        return tokens.fits(record.get("tokens")) and are_image_stats(record.get("figures"))


def difference(record: Mapping[str, Any], expected: Mapping[str, Any]) -> str:
    """Return the first difference between saved and expected settings in words, or "".

    Args:
        expected: Settings that the image must have. "prompt" is the complete prompt, if it was truncated.
    """
    found = {**record, "prompt": record.get(CAPTION, record.get("prompt"))}
    for name, value in expected.items():
        if found.get(name) != value:
            return message("stored.other_value", name=name, found=shown(found.get(name)), value=shown(value))
    return ""


class PngStore:
    """Folder with one PNG for each image of a list.

    Attributes:
        jobs: The images.
        folder: Path of the folder. It may not exist yet.
        identity: Properties by which the images are recognised.
        overwrite: Whether to generate all images again and to replace files that have the name of an image.
        remedy: Key of the end of the error message for a file that is not the image of its name.
        check: Cancellation callback, or None.
    """

    def __init__(
        self,
        jobs: JobList,
        folder: Path,
        identity: Identity,
        overwrite: bool = False,
        remedy: str = "remedy.other_folder",
        check: Check | None = None,
    ):
        self.jobs = jobs
        self.folder = folder
        self.identity = identity
        self.overwrite = overwrite
        self.remedy = remedy
        self.check = check

    def missing(self) -> list[int]:
        present = {number for number, _ in self.present()}
        return [number for number in self.jobs.numbers if number not in present]

    def present(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the number and the record of each existing image. Raise AdtError if it is damaged or another image."""
        existing = {} if self.overwrite else existing_images(self.folder)
        for number in self.jobs.numbers:
            if number in existing:
                if self.check is not None:
                    self.check()
                yield number, self._checked(self.folder / file_name(number), self.jobs.job(number))

    def _checked(self, path: Path, job: Job) -> dict[str, Any]:
        try:
            record = read_settings(path)
            problem = self.identity.problem(record, job)
        except AdtError as error:
            record = {}
            problem = str(error).removeprefix(f"{path} ").partition(";")[0].rstrip(".")
        if not problem and not is_intact(path, self.identity.of_job(job).size):
            problem = message("stored.damaged")
        if problem:
            raise AdtError("output.other_image", path=path, problem=problem, remedy=message(self.remedy))
        return record

    def add(self, job: Job, png: bytes | None, record: Mapping[str, Any]) -> None:
        if png is not None:
            write_in(self.folder, file_name(job.number), png)

    def leave_out(self, number: int) -> None:
        pass

    def finish(self) -> None:
        pass

    def records(self) -> Iterator[tuple[int, dict[str, Any]]]:
        existing = existing_images(self.folder)
        for number in self.jobs.numbers:
            if number in existing:
                yield number, read_settings(self.folder / file_name(number))


FLAT = 10_000
"""First number of an image that is in a subfolder. The name of an image must not depend on the length of its list."""
PER_FOLDER = 1000
"""Number of images of a subfolder."""
_NAME = re.compile(r"([0-9]{6,7})\.png")
_SUBFOLDER = re.compile(r"[0-9]{3,4}")


def stem(number: int) -> str:
    """Return the name of an image without folder and suffix, such as 000012 for number 12."""
    return f"{number:06}"


def file_name(number: int) -> str:
    """Return the path of the PNG of an image in its store, such as 000012.png or 012/012345.png."""
    name = f"{stem(number)}.png"
    return name if number < FLAT else f"{number // PER_FOLDER:03}/{name}"


def image_number(name: str) -> int | None:
    """Return the number of the image whose PNG has this path in a store, or None if no image has it."""
    match = _NAME.fullmatch(name.rpartition("/")[2])
    return int(match[1]) if match and name == file_name(int(match[1])) else None


def existing_images(folder: Path) -> dict[int, os.DirEntry]:
    """Return the files with the name of an image, by number. Links are omitted; they are replaced, never followed."""
    if not folder.is_dir():
        return {}
    with os.scandir(folder) as entries:
        found = list(entries)
    subfolders = [entry.path for entry in found if _SUBFOLDER.fullmatch(entry.name) and entry.is_dir()]
    for subfolder in subfolders:
        if not is_link(Path(subfolder)):
            with os.scandir(subfolder) as entries:
                found += entries
    named = [(_NAME.fullmatch(entry.name), entry) for entry in found]
    numbered = {int(match[1]): entry for match, entry in named if match and not is_link(Path(entry.path))}
    return {number: entry for number, entry in numbered.items() if Path(entry.path) == folder / file_name(number)}


def clashing_images(folder: Path, count: int, others: Iterable[Path]) -> Iterator[Path]:
    """Yield the paths of images of a list that could be one of the other files, which they must not replace.

    These are the first image, images with the name of another file, and existing images that have the inode number of
    another file. A list of `count` images can be too long to check all of them.
    """
    others = list(others)
    inodes = {os.stat(path).st_ino for path in others if os.path.exists(path)}
    linked = {number for number, entry in existing_images(folder).items() if entry.inode() in inodes}
    named = {int(match[1]) for path in others if (match := _NAME.fullmatch(path.name.lower()))}
    for number in sorted({1, *linked, *named}):
        if 1 <= number <= count:
            yield folder / file_name(number)
