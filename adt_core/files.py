"""Reading of untrusted files with a size limit, and atomic writing of files.

A *link* is a symbolic link, or a directory junction on Windows. A path that the user has chosen may contain links, and
they are followed. But a folder of this pack, such as a batch folder, may be somebody else's. A link in such a
folder could lead out of it. So files in such a folder are never written through a link.
"""

from __future__ import annotations

import codecs
import errno
import itertools
import json
import os
import re
import stat
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePath
from tempfile import TemporaryFile
from typing import Any, BinaryIO
from uuid import uuid4

from .errors import AdtError
from .messages import message
from .runtime import cached_per_runtime

LARGEST_JSON = 64
"""Maximum size of a JSON file in MiB."""
LARGEST_LIST = 256
"""Maximum size of a list of prompts in MiB."""
LONGEST_PART = 40
"""Maximum number of characters that a file name contains of a prompt, an id or another name."""
IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp")
"""Suffixes of image files that are read from folders."""
PART = ".adt-tree.part"
"""Suffix of a temporary file until it is renamed."""
_WRITE_ERRORS = {errno.ENOSPC: "file.disk_full", errno.EDQUOT: "file.quota", errno.EFBIG: "file.too_large"}
"""Key of the error, by `errno` of an OSError."""
_OPEN_FLAGS = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
"""Flags for opening a path that may not be a regular file.

With O_NONBLOCK, opening a pipe does not wait for its other end. With O_NOCTTY, opening a terminal does not make it the
controlling terminal of the process.
"""
_JUNCTION = 0xA0000003
"""Reparse tag of a directory junction on Windows."""


def regular(path: str | Path, flags: int) -> int:
    """Open a regular file, and reject pipes and devices, because reading them could block forever.

    Use this function as the `opener` of `open`. It checks the type of the file after opening it. So the file cannot be
    replaced between the check and the opening.

    Raises:
        OSError: If the path cannot be opened or is not a regular file.
    """
    number = os.open(path, flags | _OPEN_FLAGS, 0o666)
    try:
        if not stat.S_ISREG(os.fstat(number).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    except OSError:
        os.close(number)
        raise
    return number


def opened(path: Path) -> BinaryIO:
    """Open a regular file for reading bytes.

    Raises:
        OSError: If the path cannot be opened or is not a regular file.
    """
    return open(path, "rb", opener=regular)


def is_regular(path: Path) -> bool:
    """Return whether a path is a readable regular file. Call this function before a library opens the path."""
    try:
        opened(path).close()
    except OSError:
        return False
    return True


def is_hidden(path: str | PurePath) -> bool:
    """Return whether a part of a relative path has a hidden name, which begins with a dot.

    Hidden files are never images, captions, lists or weights. macOS, for example, stores attributes of 1.jpg in ._1.jpg
    on disks and network shares of other systems.
    """
    return any(part.startswith(".") for part in PurePath(path).parts)


def list_visible(folder: Path, pattern: str) -> list[Path]:
    """Return the paths in a folder that match a glob pattern and are not hidden, in sorted order.

    The folder itself may be hidden.
    """
    return sorted(path for path in folder.glob(pattern) if not is_hidden(path.relative_to(folder)))


def list_images(folder: Path, pattern: str) -> list[Path]:
    """Return the regular files of `list_visible` that have one of `IMAGE_SUFFIXES`."""
    found = list_visible(folder, pattern)
    return [path for path in found if path.suffix.lower() in IMAGE_SUFFIXES and is_regular(path)]


def is_writable(folder: Path) -> bool:
    """Return whether files can be created in a folder, or in the nearest folder above it if it does not exist.

    This function creates a temporary file. Permissions do not show whether a network share is read-only.
    """
    existing = next(place for place in (folder.absolute(), *folder.absolute().parents) if place.exists())
    try:
        with TemporaryFile(dir=existing):
            return True
    except OSError:
        return False


def folded(text: str) -> str:
    """Return a text in a form that is equal for upper and lower case, and for both ways to encode accents.

    macOS and some programs encode "é" as two characters (the Unicode normal form NFD).
    """
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", text).casefold())


def path_key(path: str | Path) -> str:
    """Return a text that is equal for all spellings of a path, also if the path does not exist.

    On the usual disks of Windows and macOS, names that differ only in case or Unicode normal form are the same file.
    Everywhere else, such names are rare, so they also count as the same.
    """
    return folded(os.path.realpath(os.path.expanduser(path)))


def check_utf8(path: Path, named: str) -> None:
    """Check that the Rust libraries safetensors and tokenizers can open a path.

    Args:
        path: Path of a file, which need not exist. In the path, bytes that are not UTF-8 are represented by surrogate
            escapes (see `os.fsdecode`).
        named: Beginning of the error message: the name of the setting, and the path.

    Raises:
        AdtError: If the path is not UTF-8 on the disk.
    """
    try:
        os.fsencode(path).decode("utf-8")
    except UnicodeError:
        raise AdtError("file.not_utf8", path=named) from None


def read_text(path: Path, most: int, errors: str = "strict") -> str:
    """Return the text of a regular UTF-8 file, with or without a byte order mark.

    Args:
        most: Maximum size in MiB.

    Raises:
        OSError: If the file cannot be opened, is not a regular file, or is too large.
        UnicodeDecodeError: If the file is not UTF-8 and `errors` is "strict".
    """
    with open(path, encoding="utf-8-sig", errors=errors, opener=regular) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most * 2**20:
            raise OSError(errno.EFBIG, f"it has {size / 2**20:.0f} MiB, but at most {most} are read")
        # Limited, as another process may enlarge the file. Files of the system have the size 0.
        return file.read(size or most * 2**20)


def bounded_lines(path: Path, longest: int) -> Iterator[bytes]:
    """Yield the lines of a regular file with their ends, for files of any size, such as JSON lines.

    Args:
        longest: Maximum length of a line in bytes, with its end.

    Raises:
        OSError: If the file cannot be opened, is not a regular file, or has a longer line.
    """
    with opened(path) as file:
        for number in itertools.count(1):
            line = file.readline(longest + 1)
            if len(line) > longest:
                raise OSError(errno.EFBIG, f"line {number} has more than {longest} bytes")
            if not line:
                return
            yield line


def foreign_text(content: bytes) -> str:
    """Return a description of content that is not UTF-8 text, with its probable encoding, for error messages.

    Args:
        content: Beginning of a file. Text in UTF-16 without a byte order mark can be valid UTF-8 with null characters.
    """
    encoding = "Windows-1252"
    with suppress(UnicodeDecodeError):  # single letters with accents are no pairs of bytes, so they can't be decoded
        if not codecs.getincrementaldecoder("gb2312")().decode(content).isascii():
            encoding = "GBK"
    if b"\0" in content or content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        encoding = "UTF-16"
    return message("kind.other_encoding", encoding=encoding)


def reason(error: Exception) -> str:
    """Return the message of an error without the file name."""
    return getattr(error, "strerror", None) or str(error)


def file_name_part(id: str) -> str:
    """Return an id for use in a file name.

    The result contains only letters, digits, underscores, hyphens and dots, and has at most `LONGEST_PART` bytes. It
    may be "".
    """
    return re.sub(r"[^\w.-]+", "-", id).encode("utf-8", "ignore")[:LONGEST_PART].decode("utf-8", "ignore").strip(".-")


def is_device(name: str) -> bool:
    """Return whether Windows treats a file name as a device. The suffix does not matter: "nul.png" is a device too."""
    stem = name.split(".")[0].strip().upper()
    return (
        stem in ("CON", "CONIN$", "CONOUT$", "PRN", "AUX", "NUL") or re.fullmatch("(COM|LPT)[0-9¹²³]", stem) is not None
    )


def parse_json(text: str | bytes) -> Any:
    """Parse JSON from an untrusted source.

    Raises:
        ValueError: If the JSON is invalid or nested too deeply.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def to_json(content: dict) -> bytes:
    """Return the content of a JSON file as bytes. Lone surrogates are escaped, because UTF-8 cannot encode them."""
    return json.dumps(content, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n"


def write_json(path: Path, content: dict) -> None:
    """Write a JSON file, atomically; see :func:`write`."""
    write(path, to_json(content))


def write(path: Path, content: bytes | memoryview) -> None:
    """Write a file whose path the user has chosen, atomically. Links are followed.

    The content is written to a temporary file in the same folder. Then the temporary file is renamed.

    Raises:
        AdtError: If the file cannot be written.
    """
    write_with(path, lambda file: file.write(content))


def write_with(path: Path, fill: Callable[[BinaryIO], object]) -> None:
    """Write a file of any size like :func:`write`, without its content in memory.

    Args:
        fill: Function that writes the content to an open file. It may be called again with a new, empty file.
    """
    with writing(path):
        _replace(Path(os.path.realpath(path)), fill)


def write_in(folder: Path, name: str, content: bytes | memoryview) -> None:
    """Write a file in a folder of this pack, atomically. If the path is a link, the file replaces the link.

    Args:
        folder: Folder of this pack, such as a batch folder.
        name: Path of the file relative to `folder`.

    Raises:
        AdtError: If the file cannot be written, or a folder in `name` is a link.
    """
    write_in_with(folder, name, lambda file: file.write(content))


def write_in_with(folder: Path, name: str, fill: Callable[[BinaryIO], object]) -> None:
    """Write a file of any size like :func:`write_in`, without its content in memory; see :func:`write_with`."""
    *subfolders, last = PurePath(name).parts
    place = inside(folder, *subfolders) / last
    with writing(place):
        _replace(place, fill)


def inside(folder: Path, *names: str) -> Path:
    """Return a path in a folder of this pack.

    Raises:
        AdtError: If a part of the path below `folder` is a link, which may lead out of `folder`.
    """
    path = folder
    for name in names:
        path = path / name
        if is_link(path):
            raise AdtError("file.is_link", path=path, folder=folder)
    return path


def is_link(path: Path) -> bool:
    """Return whether a path is a symbolic link, or a directory junction on Windows."""
    try:
        status = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISLNK(status.st_mode) or getattr(status, "st_reparse_tag", 0) == _JUNCTION


def refuse_links(path: Path) -> None:
    """Raise AdtError if a path in a folder of this pack is a link or has several hard links.

    Writing to it would change a file in another folder. The file need not exist.
    """
    inside(path.parent, path.name)
    if path.exists() and path.stat().st_nlink > 1:
        raise AdtError("file.is_hard_link", path=path)


def add_line(path: Path, line: str) -> None:
    """Append a line to a file in a folder of this pack, and flush it to the disk.

    Several processes may append to the same file. A process that is killed while it writes can leave a line without
    its end. This function ends such a line first. If another process leaves one at the same moment, the two lines are
    joined and cannot be read. In this case, this function writes its line a second time. If the disk is full, the part
    of the line that was written is removed again.

    Args:
        line: Text without a line break.

    Raises:
        AdtError: If the file cannot be written, or is a link.
    """
    content = f"{line}\n".encode()
    with writing(path):
        refuse_links(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and not _begins_line(path, path.stat().st_size):
            _append(path, b"\n")
        start = _append(path, content)
        is_complete = _begins_line(path, start)
    if not is_complete:
        add_line(path, line)


def _begins_line(path: Path, offset: int) -> bool:
    with opened(path) as file:
        file.seek(max(0, offset - 1))
        return offset == 0 or file.read(1) == b"\n"


def _append(path: Path, content: bytes) -> int:
    """Append bytes to a file, flush them to the disk, and return their offset in the file."""
    with open(path, "ab", buffering=0, opener=regular) as file:
        start = file.seek(0, os.SEEK_END)
        try:
            written = 0
            while written < len(content):
                written += file.write(content[written:])
            os.fsync(file.fileno())
            return file.tell() - len(content)
        except OSError:
            with opened(path) as part:
                part.seek(start)
                rest = part.read(len(content) + 1)
            if content.startswith(rest):  # no other process has appended to the part
                file.truncate(start)
            raise


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Convert an OSError in the block to an AdtError that contains the reason and a remedy."""
    try:
        yield
    except OSError as error:
        if error.errno in _WRITE_ERRORS:
            raise AdtError(_WRITE_ERRORS[error.errno], path=path) from error
        raise AdtError("file.not_writable", path=path, reason=reason(error)) from error


def _replace(place: Path, fill: Callable[[BinaryIO], object]) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(place.parent)
    # A short name, because the name of `place` may have the maximum length.
    part = place.with_name(f".{uuid4().hex}{PART}")
    try:
        _write_and_rename(part, fill, place)
    finally:
        part.unlink(missing_ok=True)


def _write_and_rename(part: Path, fill: Callable[[BinaryIO], object], place: Path) -> None:
    """Write `part`, flush it to the disk, rename it to `place`, and flush the folder."""
    with open(part, "wb") as file:
        fill(file)
        file.flush()
        os.fsync(file.fileno())
    try:
        os.replace(part, place)
    except FileNotFoundError:  # another process has removed `part`; each process does so only once
        _write_and_rename(part, fill, place)
    _flush_folder(place.parent)


def _flush_folder(folder: Path) -> None:
    """Flush the names of a folder's files to the disk, so that a power cut does not undo a rename.

    Windows cannot open folders, and some network file systems cannot flush them.
    """
    with suppress(OSError):
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


@cached_per_runtime
def _remove_leftovers(folder: Path) -> None:
    """Remove temporary files that killed processes have left, once per process and folder.

    A removed file may belong to another process that is still writing it. That process writes the file again; see
    `_write_and_rename`.
    """
    for part in folder.glob(f".*{PART}"):
        with suppress(OSError):
            part.unlink()
