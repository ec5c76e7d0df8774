"""JSON Lines files with one line per image: tokens, traces and statistics of a run of `generate`.

A line is appended before the PNG of its image is written. So every image that is present has its line. If a process is
killed between the two, the image is generated again, and its last line counts. At the end of a run, the lines are
sorted, so that the file does not depend on interruptions.

Each shard appends to its own file, because appending to one file from several machines is not safe on network disks.
Every run reads the files of all shards.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from ..errors import AdtError
from ..files import add_line, opened, parse_json, reason, write_with
from .image_list import ImageList


class _Place(NamedTuple):
    """Place of a line."""

    path: Path
    offset: int


class ImageLines:
    """Lines of one kind, such as traces.

    Attributes:
        path: File that this run appends to. The name of a shard's file ends with its number, as in t-2-of-3.jsonl.
    """

    def __init__(self, path: Path, images: ImageList, identity: Callable[[int], Mapping[str, Any]]):
        """Find the files. A run that does not resume deletes the lines of earlier runs.

        Args:
            identity: Function from the number of an image to the entries that its lines must have to be valid.
        """
        number, count = images.shard
        self._named = path
        self._images = images
        self._identity = identity
        self.path = path if count == 1 else path.with_name(f"{path.stem}-{number}-of-{count}{path.suffix}")
        if not images.resumes and path.is_file():
            write_with(path, lambda file: None)

    def append(self, number: int, content: Mapping[str, Any]) -> None:
        """Append the line of an image, and flush it to the disk.

        Raises:
            AdtError: If the file cannot be written.
        """
        entry = self._images.entry(number)
        named = {"image": number, "id": entry.id, "file": self._images.path(number).name}
        add_line(self.path, json.dumps({**named, **self._identity(number), **content}))

    def finish(self) -> dict[int, _Place]:
        """Sort the lines of the file and remove damaged and outdated ones.

        Returns:
            The place of the last valid line of each image of this shard, in the files of all shards.
        """
        places = self._places()
        if self.path.exists():
            own = [place for _, place in sorted(places.items()) if place.path == self.path]
            if [place.offset for place in own] != [offset for offset, _ in _lines(self.path)]:
                write_with(self.path, lambda file: _copy(own, file))
                places = self._places()
        return places

    def records(self, places: Mapping[int, _Place]) -> Iterator[dict]:
        """Yield the contents of lines, in the order of the images.

        Args:
            places: Result of `finish`.
        """
        files = {path: opened(path) for path in {place.path for place in places.values()}}
        try:
            for _, (path, offset) in sorted(places.items()):
                files[path].seek(offset)
                yield parse_json(files[path].readline())
        finally:
            for file in files.values():
                file.close()

    def _places(self) -> dict[int, _Place]:
        places: dict[int, _Place] = {}
        wanted = self._images.numbers
        for path in self._paths():
            for offset, line in _lines(path):
                record = _parsed(line)
                number = record.get("image")
                if type(number) is int and number in wanted and self._identity(number).items() <= record.items():
                    places[number] = _Place(path, offset)
        return places

    def _paths(self) -> list[Path]:
        """Return the files of all shards. This run's file comes last, so that its lines count."""
        path = self._named
        pattern = re.compile(rf"{re.escape(path.stem)}(-[0-9]+-of-[0-9]+)?{re.escape(path.suffix)}")
        found = [file for file in path.parent.iterdir() if pattern.fullmatch(file.name)] if path.parent.is_dir() else []
        return sorted(found, key=lambda file: (file == self.path, file.name))


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the offset and the content of each line."""
    try:
        with opened(path) as file:
            offset = 0
            for line in file:
                yield offset, line
                offset += len(line)
    except OSError as error:
        raise AdtError(f"'{path}' can't be read ({reason(error)}); delete it, or choose another file.") from error


def _copy(places: list[_Place], file: BinaryIO) -> None:
    for place in places:
        with opened(place.path) as source:
            source.seek(place.offset)
            file.write(source.readline())


def _parsed(line: bytes) -> dict:
    try:
        value = parse_json(line)
    except ValueError:  # a kill has cut the line
        return {}
    return value if isinstance(value, dict) else {}
