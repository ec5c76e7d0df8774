"""Files: bounded reading of untrusted files, and atomic writing.

Links in a path that the user has named are followed. In folders of this pack, such as batch folders, nothing is written
through a link, because the folder may be a copy from somebody else.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePath
from typing import Any, BinaryIO
from uuid import uuid4

from .errors import AdtError
from .runtime import cached_per_runtime

LARGEST_JSON = 64
"""Maximum size of a configuration in MiB."""
LARGEST_LIST = 256
"""Maximum size of a list of prompts in MiB."""
PART = ".adt-tree.part"
"""Suffix of a temporary file until it is renamed."""
_WRITE_ERRORS = {
    errno.ENOSPC: ("the disk is full", "free some space"),
    errno.EDQUOT: ("your disk quota is used up", "free some space"),
    errno.EFBIG: ("it exceeds the maximum file size", "raise that limit"),
}
"""Problem and remedy by error number."""
_OPEN_FLAGS = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
"""Flags that prevent waiting for the other end of a pipe, and a terminal from becoming the controlling one."""
_JUNCTION = 0xA0000003
"""Reparse tag of a directory junction on Windows."""


def regular(path: str | Path, flags: int) -> int:
    """Open a regular file; an `opener` for `open`.

    Reading a pipe or a device could block forever. The file type is checked after opening, so that the file cannot be
    replaced in between.

    Args:
        path: The file.
        flags: Flags of `os.open`.

    Raises:
        OSError: If it cannot be opened or is not a regular file.
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

    Args:
        path: The file.

    Raises:
        OSError: If it cannot be opened or is not a regular file.
    """
    return open(path, "rb", opener=regular)


def is_regular(path: Path) -> bool:
    """Return whether a path is a readable regular file. Use it before a library opens the path.

    Args:
        path: Any path.
    """
    try:
        opened(path).close()
    except OSError:
        return False
    return True


def check_utf8(path: Path, named: str) -> None:
    """Check that the Rust libraries safetensors and tokenizers can open a path.

    Args:
        path: Existing or future file. Undecodable bytes are surrogate escapes, as in `os.fsdecode`.
        named: Input and path for the error.

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
    """Return the text of a regular UTF-8 file, with or without a byte order mark.

    Args:
        path: The file.
        most: Maximum size in MiB.
        errors: Error handler of `bytes.decode`.

    Raises:
        OSError: If it cannot be opened, is not a regular file, or is too large.
        UnicodeDecodeError: If it is not UTF-8.
    """
    with open(path, encoding="utf-8-sig", errors=errors, opener=regular) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most * 2**20:
            raise OSError(errno.EFBIG, f"it has {size / 2**20:.0f} MiB, but at most {most} are read")
        return file.read(most * 2**20)  # the file may have grown since


def reason(error: Exception) -> str:
    """Return the reason of an error without the file name.

    Args:
        error: Error of reading a file.
    """
    return getattr(error, "strerror", None) or str(error)


def is_device(name: str) -> bool:
    """Return whether a file name is a device on Windows, with any suffix, such as "nul.png".

    Args:
        name: Name without folders.
    """
    stem = name.split(".")[0].strip().upper()
    return stem in ("CON", "PRN", "AUX", "NUL") or re.fullmatch("(COM|LPT)[0-9¹²³]", stem) is not None


def parse_json(text: str | bytes) -> Any:
    """Parse JSON.

    Args:
        text: JSON from any source.

    Raises:
        ValueError: If it is invalid or nested too deeply.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def to_json(content: dict) -> bytes:
    """Return the bytes of a JSON file. Lone surrogates, which UTF-8 lacks, are escaped.

    Args:
        content: Object of JSON types.
    """
    return json.dumps(content, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n"


def write_json(path: Path, content: dict) -> None:
    """Write an object as JSON with `write`.

    Args:
        path: The file.
        content: Object of JSON types.
    """
    write(path, to_json(content))


def write(path: Path, content: bytes | memoryview) -> None:
    """Write a file that the user has named, atomically.

    The content is written to a temporary file in the same folder, which is then renamed. Links are followed.

    Args:
        path: The file.
        content: Complete content.

    Raises:
        AdtError: If it cannot be written.
    """
    with writing(path):
        _replace(Path(os.path.realpath(path)), content)


def write_in(folder: Path, name: str, content: bytes | memoryview) -> None:
    """Write a file in a folder of this pack, atomically. A link at the path is replaced.

    Args:
        folder: Folder of this pack.
        name: Path below the folder.
        content: Complete content.

    Raises:
        AdtError: If the file cannot be written, or a folder of `name` is a link.
    """
    *subfolders, last = PurePath(name).parts
    place = inside(folder, *subfolders) / last
    with writing(place):
        _replace(place, content)


def inside(folder: Path, *names: str) -> Path:
    """Return a path below a folder of this pack.

    Args:
        folder: Folder of this pack.
        *names: Names of the path below it.

    Raises:
        AdtError: If one of them is a link, which may lead out of the folder.
    """
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
    """Return whether a path is a symbolic link or a directory junction of Windows.

    Args:
        path: Any path.
    """
    try:
        status = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISLNK(status.st_mode) or getattr(status, "st_reparse_tag", 0) == _JUNCTION


def refuse_links(path: Path) -> None:
    """Check that a file in a folder of this pack can be modified without changing files in other folders.

    Args:
        path: Existing or future file.

    Raises:
        AdtError: If it is a link or has several hard links.
    """
    inside(path.parent, path.name)
    if path.exists() and path.stat().st_nlink > 1:
        raise AdtError(f"'{path}' is also in another folder (a hard link); replace it with a copy, and run this again.")


def add_line(path: Path, line: str) -> None:
    """Append a line to a file in a folder of this pack, and flush it to the disk.

    Several processes may append to the same file. If one was killed in the middle of a line, the next line follows the
    incomplete one, and is therefore written again. Links are rejected, because appending cannot replace them.

    Args:
        path: The file, which is created if needed.
        line: Text without a line break.

    Raises:
        AdtError: If it cannot be written, or is a link.
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
            is_complete = start == 0 or file.read(1) == b"\n"
    if not is_complete:
        add_line(path, line)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Convert an OSError in the block to an AdtError with the reason and a remedy.

    Args:
        path: File that the block writes.
    """
    try:
        yield
    except OSError as error:
        default = reason(error), "allow access, or choose another place"
        problem, remedy = _WRITE_ERRORS.get(error.errno or 0, default)
        raise AdtError(
            f"'{path}' can't be written ({problem}); {remedy}, and run this again: finished results were kept."
        ) from error


def _replace(place: Path, content: bytes | memoryview) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(place.parent)
    part = place.with_name(f".{uuid4().hex}{PART}")  # independent of the name, which may have the maximum length
    try:
        _write_and_rename(part, content, place)
    finally:
        part.unlink(missing_ok=True)


def _write_and_rename(part: Path, content: bytes | memoryview, place: Path) -> None:
    """Write `part`, flush it to the disk, and rename it to `place`."""
    with open(part, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    try:
        os.replace(part, place)
    except FileNotFoundError:  # another process has removed it as a leftover, once per folder
        _write_and_rename(part, content, place)


@cached_per_runtime
def _remove_leftovers(folder: Path) -> None:
    """Remove temporary files of killed processes, once per process and folder.

    If the file belongs to a running process, `_write_and_rename` writes it again there.
    """
    for part in folder.glob(f".*{PART}"):
        with suppress(OSError):
            part.unlink()
