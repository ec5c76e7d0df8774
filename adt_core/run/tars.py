"""Tar files in WebDataset's convention: the images of a list, 1,000 per file.

Finished images are first written as single PNGs, so that a killed run loses only the images in work. When all images of
a tar are finished, the tar is written under a temporary name and moved, and then its PNGs are deleted. So a tar is
complete or absent. `index.json` lists the tars in the format of WebDataset's `wids`.
"""

from __future__ import annotations

import importlib.util
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ..errors import AdtError, pip_install
from ..files import inside, is_link, opened, parse_json, read_text, to_json, write_in, write_in_with
from ..messages import message
from ..untrusted_tar import small_members
from .folder_lock import FolderLock
from .images import read_settings
from .jobs import Job, JobList
from .store import Identity, PngStore, existing_images, file_name, stem

TAR_SIZE = 1000
"""Number of images of a tar."""
INDEX = "index.json"
INDEX_KIND = "wids-shard-index-v1"
MAX_INDEX_MIB = 64
"""Maximum size of an index in MiB."""
_TAR_NAME = re.compile(r"([0-9]+-of-[0-9]+-)?[0-9]{5,}\.tar")
_TAR_ERRORS = (OSError, ValueError)


def is_tar(name: str) -> bool:
    """Return whether a file has the name of a tar of this pack."""
    return _TAR_NAME.fullmatch(name) is not None


def check(folder: Path) -> None:
    """Raise AdtError if `webdataset` is not installed, or the folder has another program's index."""
    if importlib.util.find_spec("webdataset") is None:
        command = pip_install("webdataset")
        raise AdtError("webdataset.no_library", command=command)
    index = folder / INDEX
    if index.exists() and not is_link(index) and not _is_index(index):
        raise AdtError("webdataset.other_index", path=index)


def _is_index(path: Path) -> bool:
    try:
        index = parse_json(read_text(path, MAX_INDEX_MIB))
    except (OSError, ValueError):
        return False
    return isinstance(index, dict) and index.get("__kind__") == INDEX_KIND


def clashing_files(folder: Path, others: Sequence[Path]) -> list[Path]:
    """Return the index and the tars of a folder that could be one of the other files, which must not be replaced."""
    named = {path.name.lower() for path in others}
    tars = [path.name for path in folder.glob("*.tar")] if folder.is_dir() else []
    return [folder / INDEX, *(folder / name for name in sorted({*tars, *named}) if is_tar(name))]


class TarStore(PngStore):
    """Folder of tars. An image is present if a tar contains it, or if its PNG waits for its tar.

    Only one process at a time may use the store of a shard.
    """

    def __init__(self, jobs: JobList, folder: Path, identity: Identity, overwrite: bool = False):
        """Make the store, without writing anything. Arguments as in :class:`~adt_core.run.store.PngStore`."""
        super().__init__(jobs, folder, identity, overwrite)
        self._waiting: set[int] = set()  # finished images that are in no tar yet
        self._missing: dict[int, set[int]] = {}  # by the number of the tar
        self._counts: dict[Path, int] = {}  # number of images in each tar
        self._lock = FolderLock(folder, f".adt-tree-{'-of-'.join(map(str, jobs.shard))}.lock")

    def missing(self) -> list[int]:
        self._lock.take()  # until the process ends, or `finish` is called
        if self.overwrite:
            for path in self._tars():
                if self._has_images_of_this_run(path):
                    path.unlink()
        packed = {number for path in self._tars() for number in self._packed(path)}
        for number in packed & existing_images(self.folder).keys():  # a kill has prevented their deletion
            self._delete(number)
        missing = [number for number in super().missing() if number not in packed]
        self._waiting = set(self.jobs.numbers) - packed - set(missing)
        for number in missing:
            self._missing.setdefault(self._tar(number), set()).add(number)
        return missing

    def add(self, job: Job, png: bytes | None, record: Mapping[str, Any]) -> None:
        super().add(job, png, record)
        self._waiting.add(job.number)
        self._done(job.number)

    def leave_out(self, number: int) -> None:
        self._done(number)

    def finish(self) -> None:
        for tar in sorted({self._tar(number) for number in self._waiting}):
            self._pack(tar)
        self._write_index()
        for folder in {(self.folder / file_name(number)).parent for number in self.jobs.numbers} - {self.folder}:
            with suppress(OSError):  # other shards have images there
                folder.rmdir()
        self._lock.release()

    def records(self) -> Iterator[tuple[int, dict[str, Any]]]:
        found = {number: record for path in self._tars() for number, record in self._numbered(path)}
        yield from sorted({**found, **dict(super().records())}.items())

    def _numbered(self, path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
        for key, record in _records(path):
            number = int(key) if key.isdecimal() and len(key) < 8 else 0
            if number in self.jobs.numbers:
                yield number, record

    def _done(self, number: int) -> None:
        tar = self._tar(number)
        self._missing[tar].discard(number)
        if not self._missing[tar]:
            self._pack(tar)

    def _tar(self, number: int) -> int:
        """Return the number of an image's tar, from 0."""
        return self.jobs.numbers.index(number) // TAR_SIZE

    def _tars(self) -> list[Path]:
        files = (path for path in self.folder.glob("*.tar") if is_tar(path.name))
        return sorted(path for path in files if path.is_file() and not is_link(path))

    def _pack(self, tar: int) -> None:
        """Write a tar of the images that wait for it, and delete their single files."""
        numbers = sorted(number for number in self._waiting if self._tar(number) == tar)
        if not numbers:
            return
        write_in_with(self.folder, self._free_name(tar), lambda file: self._write_tar(numbers, file))
        self._waiting -= set(numbers)
        self._write_index()
        for number in numbers:
            self._delete(number)

    def _free_name(self, tar: int) -> str:
        """Return the name of a new tar. The name of a tar is taken if the list was shorter in an earlier run."""
        number, count = self.jobs.shard
        shard = "" if count == 1 else f"{number}-of-{count}-"
        while (self.folder / (name := f"{shard}{tar:05}.tar")).exists():
            tar += 1
        return name

    def _write_tar(self, numbers: Sequence[int], file: BinaryIO) -> None:
        from webdataset import TarWriter

        with TarWriter(file, mtime=0) as writer:
            for number in numbers:
                path = inside(self.folder, file_name(number))
                record = read_settings(path)
                tokens = io.BytesIO()
                np.save(tokens, np.array(record["tokens"], dtype=np.int32))
                with opened(path) as single:
                    png = single.read()
                settings = to_json({"id": self.jobs.job(number).id, **record})
                writer.write({"__key__": stem(number), "png": png, "json": settings, "tokens.npy": tokens.getvalue()})

    def _delete(self, number: int) -> None:
        (self.folder / file_name(number)).unlink(missing_ok=True)

    def _has_images_of_this_run(self, path: Path) -> bool:
        try:
            return next(self._numbered(path), None) is not None
        except _TAR_ERRORS:
            return True

    def _packed(self, path: Path) -> list[int]:
        """Return the numbers of this run's images in a tar. Raise AdtError if it is damaged, or has other settings."""
        try:
            numbers = []
            for number, record in self._numbered(path):
                if problem := self.identity.problem(record, self.jobs.job(number)):
                    raise AdtError("webdataset.other_image", path=path, problem=problem, remedy=message(self.remedy))
                numbers.append(number)
        except AdtError:  # a ValueError, too
            raise
        except _TAR_ERRORS as error:
            raise AdtError("output.damaged_file", path=path, remedy=message(self.remedy)) from error
        return numbers

    def _write_index(self) -> None:
        """List all tars. Other shards may write the index too, so repeat this until the folder stays the same."""
        listed = None
        while listed != (tars := self._tars()):
            listed = tars
            for path in tars:
                if path not in self._counts:
                    self._counts[path] = sum(1 for _ in _records(path))
            shards = [
                {"url": path.name, "nsamples": self._counts[path], "filesize": path.stat().st_size} for path in tars
            ]
            index = {"__kind__": INDEX_KIND, "wids_version": 1, "shardlist": shards}
            write_in(self.folder, INDEX, to_json(index))


def _records(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield key and record of each image in a tar. Raise ValueError if it is damaged, cut off or of another program."""
    with opened(path) as file:
        for name, content in small_members(file, ".json"):
            key, _, kind = name.partition(".")
            if kind == "json":
                record = parse_json(content)
                yield key, record if isinstance(record, dict) else {}
