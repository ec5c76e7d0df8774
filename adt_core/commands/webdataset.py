"""Tar files in WebDataset's convention: the images of a list, 1,000 per file.

Finished images are first written as single PNGs, so that a killed run loses only the images in work. When all images of
a tar are finished, the tar is written under a temporary name and moved, and then its PNGs are deleted. So a tar is
complete or absent. `index.json` lists the tars in the format of WebDataset's `wids`.
"""

from __future__ import annotations

import importlib.util
import io
import re
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ..app.images import read_settings
from ..app.saved import difference
from ..errors import AdtError, pip_install
from ..files import opened, parse_json, to_json, write, write_json, write_with
from .image_list import ImageList
from .png_folder import ImageIdentity, PngFolder

TAR_SIZE = 1000
"""Number of images of a tar."""
INDEX = "index.json"
_TAR_NAME = re.compile(r"([0-9]+-of-[0-9]+-)?[0-9]{5,}\.tar")
_END = bytes(2 * tarfile.BLOCKSIZE)
"""Last bytes of a complete tar. `tarfile` accepts a tar that was cut."""
_TAR_ERRORS = (OSError, tarfile.TarError, ValueError, EOFError)


def check(images: ImageList) -> None:
    """Check that the images of a run can be written as tar files.

    Raises:
        AdtError: If `output` is not a folder, there is no list of prompts, or `webdataset` is not installed.
    """
    if not images.resumes or images.folder != images.output:
        raise AdtError("`format` webdataset needs a list of prompts, and a folder as `output`.")
    if importlib.util.find_spec("webdataset") is None:
        command = pip_install("webdataset")
        raise AdtError(f"`format` webdataset needs the package webdataset, which is not installed; run {command}")


class TarFolder(PngFolder):
    """Folder of tars. An image is present if a tar contains it, or if its PNG waits for its tar."""

    def __init__(self, images: ImageList, identity: ImageIdentity, overwrite: bool):
        super().__init__(images, identity, overwrite)
        self._waiting: set[int] = set()  # finished images that are in no tar yet
        self._missing: dict[int, set[int]] = {}  # by the number of the tar
        self._counts: dict[Path, int] = {}  # number of images in each tar

    def missing(self) -> list[int]:
        packed = {number for path in self._tars() for number in self._packed(path)}
        for number in packed & self._images.existing().keys():  # a kill has prevented their deletion
            self._delete(number)
        missing = [number for number in super().missing() if number not in packed]
        self._waiting = set(self._images.numbers) - packed - set(missing)
        for number in missing:
            self._missing.setdefault(self._tar(number), set()).add(number)
        return missing

    def add(self, number: int, png: bytes, codes: list[list[int]]) -> None:
        array = io.BytesIO()
        np.save(array, np.array(codes, dtype=np.int32))
        write(self._tokens(number), array.getvalue())
        super().add(number, png, codes)
        self._waiting.add(number)
        self._done(number)

    def leave_out(self, number: int) -> None:
        self._done(number)

    def finish(self) -> None:
        for tar in sorted({self._tar(number) for number in self._waiting}):
            self._pack(tar)
        self._write_index()

    def _done(self, number: int) -> None:
        tar = self._tar(number)
        self._missing[tar].discard(number)
        if not self._missing[tar]:
            self._pack(tar)

    def _tar(self, number: int) -> int:
        """Return the number of an image's tar, from 0."""
        return self._images.numbers.index(number) // TAR_SIZE

    def _tokens(self, number: int) -> Path:
        return self._images.folder / f"{self._images.key(number)}.tokens.npy"

    def _tars(self) -> list[Path]:
        folder = self._images.folder
        return sorted(path for path in folder.glob("*.tar") if _TAR_NAME.fullmatch(path.name))

    def _pack(self, tar: int) -> None:
        """Write a tar of the images that wait for it, and delete their single files."""
        numbers = sorted(number for number in self._waiting if self._tar(number) == tar)
        if not numbers:
            return
        write_with(self._free_name(tar), lambda file: self._write_tar(numbers, file))
        self._waiting -= set(numbers)
        self._write_index()
        for number in numbers:
            self._delete(number)

    def _free_name(self, tar: int) -> Path:
        """Return the path of a new tar. The name of a tar is taken if the list was shorter in an earlier run."""
        number, count = self._images.shard
        shard = "" if count == 1 else f"{number}-of-{count}-"
        while (path := self._images.folder / f"{shard}{tar:05}.tar").exists():
            tar += 1
        return path

    def _write_tar(self, numbers: Sequence[int], file: BinaryIO) -> None:
        from webdataset import TarWriter

        def content(path: Path) -> bytes:
            with opened(path) as single:
                return single.read()

        with TarWriter(file, mtime=0) as writer:  # a fixed time, so that equal images give equal tars
            for number in numbers:
                path = self._images.path(number)
                settings = {"id": self._images.entry(number).id, **read_settings(path)}
                sample = {"__key__": self._images.key(number), "png": content(path), "json": to_json(settings)}
                writer.write({**sample, "tokens.npy": content(self._tokens(number))})

    def _delete(self, number: int) -> None:
        self._images.path(number).unlink(missing_ok=True)
        self._tokens(number).unlink(missing_ok=True)

    def _packed(self, path: Path) -> list[int]:
        """Return the numbers of this run's images in a tar. A tar with other images is deleted or refused."""
        try:
            settings = dict(_settings(path))
            problem = next(filter(None, map(self._problem, settings, settings.values())), "")
        except _TAR_ERRORS:
            problem = "is damaged"
        if problem and not self._overwrite:
            raise AdtError(
                f"`output`: '{path}' {problem}; choose another folder, or give `overwrite` to replace such files."
            )
        if problem:
            path.unlink()
            return []
        self._counts[path] = len(settings)
        return [number for key in settings if (number := self._images.number(key)) is not None]

    def _problem(self, key: str, saved: dict[str, Any]) -> str:
        number = self._images.number(key)
        if number is None:
            return ""
        problem = difference(saved, self._identity.of(self._images, number))
        return problem and f"has an image that {self._identity.explained(saved, problem)}"

    def _write_index(self) -> None:
        """List all tars. Other shards may write the index too, so repeat this until the folder stays the same."""
        listed = None
        while listed != (tars := self._tars()):
            listed = tars
            for path in tars:
                if path not in self._counts:
                    self._counts[path] = sum(1 for _ in _settings(path))
            shards = [
                {"url": path.name, "nsamples": self._counts[path], "filesize": path.stat().st_size} for path in tars
            ]
            index = {"__kind__": "wids-shard-index-v1", "wids_version": 1, "shardlist": shards}
            write_json(self._images.folder / INDEX, index)


def _settings(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the key and the settings of each image in a tar.

    Raises:
        tarfile.ReadError: If the end of the tar is missing.
    """
    with opened(path) as file:
        size = file.seek(0, io.SEEK_END)
        file.seek(max(0, size - len(_END)))
        if file.read() != _END:
            raise tarfile.ReadError("its end is missing")
        file.seek(0)
        yield from _json_members(file)


def _json_members(file: BinaryIO) -> Iterator[tuple[str, dict[str, Any]]]:
    with tarfile.TarFile(fileobj=file) as tar:
        for member in tar:
            key, _, kind = member.name.partition(".")
            content = tar.extractfile(member) if kind == "json" else None
            if content is not None:
                settings = parse_json(content.read())
                yield key, settings if isinstance(settings, dict) else {}
