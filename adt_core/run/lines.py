"""JSON Lines files with one line per image: tokens, traces and statistics of a list.

A line is appended when its image is finished. At the end of a run, the lines of this list are sorted, so that the file
does not depend on interruptions. Lines of other lists, seeds or settings stay in the file.

Each shard appends to its own file, because appending to one file from several machines is not safe on network disks.
Every run reads the files of all shards.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from filelock import FileLock

from ..errors import AdtError
from ..files import LARGEST_JSON, add_line, bounded_lines, opened, parse_json, reason, refuse_links, write_with, writing
from .jobs import Job, JobList
from .runner import SETTINGS_KEY

BEGINNING = b'{"image": '
"""First bytes of every line."""


class _Place(NamedTuple):
    """Place of a line, and its size in bytes."""

    path: Path
    offset: int
    size: int


def shard_path(path: Path, shard: tuple[int, int]) -> Path:
    """Return the path of a shard's file. The name ends with the shard, as in t-2-of-3.jsonl."""
    number, count = shard
    return path if count == 1 else path.with_name(f"{path.stem}-{number}-of-{count}{path.suffix}")


def shard_files(path: Path) -> list[Path]:
    """Return the existing files of all shards by name. `path` is the file without shards."""
    pattern = re.compile(rf"{re.escape(path.stem)}(-[0-9]+-of-[0-9]+)?{re.escape(path.suffix)}")
    found = path.parent.iterdir() if path.parent.is_dir() else ()
    return sorted((file for file in found if pattern.fullmatch(file.name)), key=lambda file: file.name)


def check_lines(path: Path, name: str) -> None:
    """Raise AdtError if the file of an option exists, and does not begin with a line of this module."""
    if path.is_file():
        with opened(path) as file:
            first = file.read(len(BEGINNING))
        if not BEGINNING.startswith(first):  # a kill may have cut the first line
            raise AdtError("lines.other_content", input=name, path=path)


class ImageLines:
    """Lines of one kind, such as traces.

    Attributes:
        path: File that this run appends to.
    """

    def __init__(self, path: Path, jobs: JobList, identity: Callable[[Job], Mapping[str, Any]]):
        """Find the files.

        Args:
            path: File of all shards together.
            identity: Function from a job to the entries that its lines must have to be valid.
        """
        self._named = path
        self._jobs = jobs
        self._identity = identity
        self.path = shard_path(path, jobs.shard)
        # Not the file itself, because `finish` replaces it. Runs of other lists may append to the same file.
        self._lock = FileLock(self.path.with_name(f".adt-tree-{self.path.name}.lock"))

    def append(self, job: Job, content: Mapping[str, Any]) -> None:
        """Append the line of an image, and flush it to the disk. Raise AdtError if the file cannot be written."""
        with self._locked():
            add_line(self.path, json.dumps({"image": job.number, "id": job.id, **self._identity(job), **content}))

    def finish(self, contents: Iterable[tuple[int, Mapping[str, Any]]] = ()) -> set[int]:
        """Add missing lines, sort the lines of this list, and remove damaged and repeated ones.

        Args:
            contents: Number and content of the lines of finished images, for images without a line: the run may have
                begun without this file.

        Returns:
            The images of this shard that have a line.
        """
        with self._locked():
            places, others = self._places()
            for number, content in contents:
                if number not in places:
                    self.append(self._jobs.job(number), content)
            places, others = self._places()
            if self.path.exists():
                own = [place for _, place in sorted(places.items()) if place.path == self.path]
                kept = [*others, *own]
                if [place.offset for place in kept] != [offset for offset, _ in _lines(self.path)]:
                    write_with(self.path, lambda file: _copy(kept, file))
            with suppress(OSError):  # Windows doesn't delete an open file
                Path(self._lock.lock_file).unlink()
        return set(places)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Wait until no other process writes to the file, and keep others from it inside a `with` block."""
        place = Path(self._lock.lock_file)
        with writing(place):
            refuse_links(place)
            place.parent.mkdir(parents=True, exist_ok=True)
            self._lock.acquire()
        try:
            yield
        finally:
            self._lock.release()

    def _places(self) -> tuple[dict[int, _Place], list[_Place]]:
        """Return the last valid line of each image of this shard, and the other valid lines of this run's file."""
        places: dict[int, _Place] = {}
        others = []
        # This run's file comes last, so that its lines count.
        for path in sorted(shard_files(self._named), key=lambda file: (file == self.path, file.name)):
            for offset, line in _lines(path):
                record = _parsed(line)
                number = record.get("image")
                if type(number) is int and number in self._jobs.numbers and self._is_of(record, number):
                    places[number] = _Place(path, offset, len(line))
                elif type(number) is int and path == self.path:
                    others.append(_Place(path, offset, len(line)))
        return places, others

    def _is_of(self, record: Mapping[str, Any], number: int) -> bool:
        return self._identity(self._jobs.job(number)).items() <= record.items()


def merge_lines(path: Path, add: Callable[[Mapping[str, Any]], None]) -> None:
    """Write the lines of all shards into one file, sorted by settings and image, without repeated and damaged ones.

    The files of the shards stay as they are. If two lines are of the same image, the line of the merged file counts.

    Args:
        path: Path of the file without shards.
        add: Receives each line of the merged file as a dictionary.

    Raises:
        AdtError: If a file cannot be read or written.
    """
    places: dict[tuple[str, int, str], _Place] = {}
    for file in sorted(shard_files(path), key=lambda file: (file == path, file.name)):
        for offset, line in _lines(file):
            record = _parsed(line)
            number = record.get("image")
            if type(number) is int:
                noise = json.dumps([record.get(name) for name in ("prompt", "seed", "image_index")])
                places[str(record.get(SETTINGS_KEY)), number, noise] = _Place(file, offset, len(line))
    ordered = [places[key] for key in sorted(places)]
    write_with(path, lambda file: _copy(ordered, file))
    for _, line in _lines(path):
        add(_parsed(line))


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the offset and the content of each line."""
    try:
        offset = 0
        for line in bounded_lines(path, LARGEST_JSON * 2**20):
            yield offset, line
            offset += len(line)
    except OSError as error:
        raise AdtError("lines.unreadable", path=path, reason=reason(error)) from error


def _copy(places: list[_Place], file: BinaryIO) -> None:
    for place in places:
        with opened(place.path) as source:
            source.seek(place.offset)
            file.write(source.read(place.size))


def _parsed(line: bytes) -> dict:
    try:
        value = parse_json(line)
    except ValueError:  # a kill has cut the line
        return {}
    return value if isinstance(value, dict) else {}
