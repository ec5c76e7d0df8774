"""Files: reading what anybody may have written, of a bounded size; and writing files that are never half-written.

A path that the user has named may be a link, and is followed. In a folder of ours nothing is written through one:
whoever made the folder may be a stranger.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path, PurePath
from typing import Any, BinaryIO
from uuid import uuid4

from .errors import AdtError

LARGEST_JSON, LARGEST_LIST = 64, 256
"""MiB of a configuration, and of a list of prompts."""
PART = ".adt-tree.part"
"""The end of a file's name while it is being written."""
_TROUBLES = {
    errno.ENOSPC: ("the disk is full", "free some space"),
    errno.EDQUOT: ("your disk quota is used up", "free some space"),
    errno.EFBIG: ("it exceeds the maximum file size", "raise that limit"),
}
"""Errors of writing -> what is wrong, and what to do."""
_AT_ONCE = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
"""Flags with which nothing waits for the other end of a pipe, and no terminal takes the process over."""
_JUNCTION = 0xA0000003
"""How Windows marks a folder that stands for another one."""


def regular(path: str | Path, flags: int) -> int:
    """An ``opener`` for ``open``. OSError for what is no regular file: to read a pipe or a device may take for ever.

    It is looked at once it is open, so it can't be exchanged in between.
    """
    number = os.open(path, flags | _AT_ONCE, 0o666)
    try:
        if not stat.S_ISREG(os.fstat(number).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    except OSError:
        os.close(number)
        raise
    return number


def opened(path: Path) -> BinaryIO:
    """A file to read from. Raises OSError, also for what is no regular file."""
    return open(path, "rb", opener=regular)


def is_regular(path: Path) -> bool:
    """Is it a file that :func:`opened` opens? For libraries that open files themselves."""
    try:
        opened(path).close()
    except OSError:
        return False
    return True


def check_utf8(path: Path, named: str) -> None:
    """Check that libraries in Rust can open a path: safetensors and tokenizers.

    Args:
        path: Where the file is, or will be. Undecodable bytes are surrogate escapes, as ``os.fsdecode`` makes them.
        named: The path, and the input that it comes from, for the error.
    Raises:
        AdtError: If the path is not UTF-8 on the disk.
    """
    try:
        os.fsencode(path).decode("utf-8")
    except UnicodeError:
        raise AdtError(
            f"{named} is not UTF-8, and safetensors can't open such paths; rename the file or folder."
        ) from None


def read_text(path: Path, most: int, errors: str = "strict") -> str:
    """The text of a file, UTF-8 with or without a byte order mark. most: MiB. errors: as for ``bytes.decode``.

    Raises OSError, also for what is no regular file, or UnicodeDecodeError.
    """
    with open(path, encoding="utf-8-sig", errors=errors, opener=regular) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most * 2**20:
            raise OSError(errno.EFBIG, f"it has {size / 2**20:.0f} MiB, but at most {most} are read")
        return file.read(most * 2**20)  # it may have grown meanwhile


def reason(error: Exception) -> str:
    """Why a file can't be read, for a sentence that names the file."""
    return getattr(error, "strerror", None) or str(error)


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


def to_json(content: dict) -> bytes:
    """``content`` as the text of a JSON file. Half of a surrogate pair, which has no UTF-8, is spelled out."""
    return json.dumps(content, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n"


def write_json(path: Path, content: dict) -> None:
    """:func:`write` ``content`` as JSON."""
    write(path, to_json(content))


def write(path: Path, content: bytes | memoryview) -> None:
    """Write a file that the user has named, whole or not at all. Raises as :func:`writing`.

    It is written under another name in the same folder, and then renamed. Where the path is a link, the file that it
    leads to is written, and the link stays.
    """
    with writing(path):
        _replace(Path(os.path.realpath(path)), content)


def write_in(folder: Path, name: str, content: bytes | memoryview) -> None:
    """The same in a folder of ours, through folders below it if ``name`` has some. A link of this name is replaced.

    Raises as :func:`inside`, too.
    """
    *between, last = PurePath(name).parts
    place = inside(folder, *between) / last
    with writing(place):
        _replace(place, content)


def inside(folder: Path, *names: str) -> Path:
    """The path below a folder of ours. AdtError if it leads through a link, perhaps out of the folder."""
    path = folder
    for name in names:
        path = path / name
        if is_link(path):
            raise AdtError(
                f"'{path}' is a link, and files below '{folder}' are not written through links; "
                "remove it, and run this again."
            )
    return path


def is_link(path: Path) -> bool:
    """Does another path stand here? A folder of Windows may do so without being a symbolic link."""
    try:
        status = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISLNK(status.st_mode) or getattr(status, "st_reparse_tag", 0) == _JUNCTION


def refuse_links(path: Path) -> None:
    """AdtError for a file in a folder of ours that is to be written in its place, if it lies elsewhere, too."""
    inside(path.parent, path.name)
    if path.exists() and path.stat().st_nlink > 1:
        raise AdtError(f"'{path}' is also in another folder (a hard link); replace it with a copy, and run this again.")


def add_line(path: Path, line: str) -> None:
    """Add a line to a file in a folder of ours; it is on the disk when this returns. Raises as :func:`writing`.

    Several processes may do so. Where one was killed half-way, the next line stands behind half a line, and is written
    once more. A link, also a hard one, is refused: it can't be replaced, since others may be adding to the file.
    """
    content = f"{line}\n".encode()
    with writing(path):
        refuse_links(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "ab", opener=regular) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            start = file.tell() - len(content)
        with opened(path) as file:
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
        other = reason(error), "allow access, or choose another place"
        problem, remedy = _TROUBLES.get(error.errno or 0, other)
        raise AdtError(
            f"'{path}' can't be written ({problem}); {remedy}, and run this again: finished results were kept."
        ) from error


def _replace(place: Path, content: bytes | memoryview) -> None:
    """Write a file under another name, and rename it."""
    place.parent.mkdir(parents=True, exist_ok=True)
    _tidy(place.parent)
    part = place.with_name(f".{uuid4().hex}{PART}")  # no longer than names may be
    try:
        _put(part, content, place)
    finally:
        part.unlink(missing_ok=True)


def _put(part: Path, content: bytes | memoryview, place: Path) -> None:
    """Write ``part``, and move it to ``place`` once it is on the disk."""
    with open(part, "wb") as file:
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
