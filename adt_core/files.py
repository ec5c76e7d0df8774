"""Files: reading what anybody may have written, of a bounded size; and writing files that are never half-written."""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any
from uuid import uuid4

from .errors import AdtError

LARGEST_JSON, LARGEST_LIST = 64, 256
"""MiB of a configuration, and of a list of prompts."""
PART = ".adt-tree.part"
"""The end of a file's name while it is being written."""
_TROUBLES = {
    errno.ENOSPC: ("the disk is full", "make room"),
    errno.EDQUOT: ("your share of the disk is full", "make room"),
    errno.EFBIG: ("it is larger than a file may be here", "raise that limit"),
}
"""Errors of writing -> what is wrong, and what to do."""


def read_text(path: Path, most: int) -> str:
    """The text of a file, UTF-8 with or without a byte order mark. most: MiB.

    Raises OSError or UnicodeDecodeError. A pipe is refused before it is opened, since that would wait for a writer.
    """
    size = path.stat().st_size
    if not path.is_file():
        raise OSError("it is no regular file")
    if size > most * 2**20:
        raise OSError(f"it has {size / 2**20:.0f} MiB, and {most} at most are read")
    return path.read_text(encoding="utf-8-sig")


def is_device(name: str) -> bool:
    """Does a file's name stand for a device on Windows, whatever its ending, such as "nul.png"?"""
    stem = name.split(".")[0].strip().upper()
    return stem in ("CON", "PRN", "AUX", "NUL") or re.fullmatch("(COM|LPT)[0-9¹²³]", stem) is not None


def parse_json(text: str | bytes) -> Any:
    """What JSON says. Raises ValueError for what is none, or is nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def write_json(path: Path, content: dict) -> None:
    """Write ``content`` as JSON."""
    write(path, json.dumps(content, ensure_ascii=False).encode() + b"\n")


def write(path: Path, content: bytes | memoryview) -> None:
    """Write a file whole or not at all. It is written under another name in the same folder, and then renamed.

    Where the path is a link, the file that it leads to is written, and the link stays. Raises as :func:`writing`.
    """
    with writing(path):
        place = Path(os.path.realpath(path))
        place.parent.mkdir(parents=True, exist_ok=True)
        _tidy(place.parent)
        part = place.with_name(f".{uuid4().hex}{PART}")  # no longer than names may be
        try:
            _put(part, content, place)
        finally:
            part.unlink(missing_ok=True)


def add_line(path: Path, line: str) -> None:
    """Add a line to a file; it is on the disk when this returns. Raises as :func:`writing`.

    Several processes may do so. Where one was killed half-way, the next line stands behind half a line, and is written
    once more.
    """
    content = f"{line}\n".encode()
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            start = file.tell() - len(content)
        with path.open("rb") as file:
            file.seek(max(0, start - 1))
            is_whole = start == 0 or file.read(1) == b"\n"
    if not is_whole:
        add_line(path, line)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Where the block can't write the file, an AdtError says why, and what to do."""
    try:
        yield
    except OSError as error:
        unknown = error.strerror or str(error), "give access, or name another place"
        reason, remedy = _TROUBLES.get(error.errno or 0, unknown)
        raise AdtError(
            f"'{path}' can't be written ({reason}); {remedy}, and start the same again: what is finished is kept."
        ) from error


def _put(part: Path, content: bytes | memoryview, place: Path) -> None:
    """Write ``part``, and move it to ``place`` once it is on the disk."""
    with part.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    try:
        os.replace(part, place)
    except FileNotFoundError:  # another process has tidied up meanwhile, as each does once for a folder
        _put(part, content, place)


@cache
def _tidy(folder: Path) -> None:
    """Remove what killed processes left in a folder. A process that is alive writes again what this takes from it."""
    for part in folder.glob(f".*{PART}"):
        with suppress(OSError):
            part.unlink()
