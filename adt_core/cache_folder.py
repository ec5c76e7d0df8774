"""Small JSON files in the user's cache folder.

They hold measurements of this machine: cost models, invariance reports, and the choice of Triton kernels. The name of a
file contains a hash of its key, such as the device, the model and the settings. Unreadable and damaged files are
ignored. So are files of another user, and files that others may write, because a wrong choice of kernels changes
images. If a file can't be written, its content is kept in the runtime (:mod:`.runtime`) until the process ends.
"""

from __future__ import annotations

import hashlib
import logging
import os
import stat
import sys
import tempfile
from pathlib import Path
from typing import Any, BinaryIO

from .environment import variable
from .errors import AdtError
from .files import opened, parse_json, to_json, write_in
from .runtime import get_runtime

VARIABLE = "ADT_TREE_CACHE"
"""Environment variable with the path of the cache folder. If it is not set, the system's default folder is used."""
MAX_FILE_BYTES = 2**16
"""Ignore larger files; this module never writes any."""


def folder() -> Path:
    """Return the cache folder, which may not exist yet."""
    if chosen := variable(VARIABLE):
        return Path(chosen)
    default = _home() / {"win32": "AppData/Local", "darwin": "Library/Caches"}.get(sys.platform, ".cache")
    named = {"win32": "LOCALAPPDATA", "darwin": ""}.get(sys.platform, "XDG_CACHE_HOME")
    return Path(variable(named) or default) / "adt-tree"


def _home() -> Path:
    """Return the user's home folder, or the temporary folder for an account without a home, as in some containers."""
    try:
        return Path.home()
    except RuntimeError:
        return Path(tempfile.gettempdir())


def read(kind: str, name: str) -> Any:
    """Return the JSON value of a file; None if there is no such file, or it is unreadable or damaged.

    The caller must check the value, because another program may have written it.

    Args:
        kind: First word of the file's name, such as "costs".
        name: Key of the content. The file's name contains a hash of it.
    """
    path = _path(kind, name)
    try:
        with opened(path) as file:
            if is_own(file):
                return parse_json(file.read(MAX_FILE_BYTES))
    except (OSError, ValueError, AdtError):
        pass
    return get_runtime().unsaved_files.get(path)


def write(kind: str, name: str, content: dict) -> None:
    """Replace a file by new content of plain JSON types. Arguments as in :func:`read`."""
    path = _path(kind, name)
    try:
        write_in(path.parent, path.name, to_json(content))
        if not restrict(path):
            get_runtime().unsaved_files[path] = content
    except AdtError as error:
        get_runtime().unsaved_files[path] = content
        logging.getLogger(__name__).info(
            "What was measured on this device could not be saved and is lost at the end of this process: %s", error
        )


def is_own(file: BinaryIO) -> bool:
    """Return whether an open file belongs to this user, and no other user may write it. Always true on Windows."""
    if not hasattr(os, "geteuid"):
        return True
    status = os.fstat(file.fileno())
    return status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def restrict(path: Path) -> bool:
    """Let only this user write a file, and return whether :func:`is_own` is true then.

    Some network shares and disks of other systems have no permissions.
    """
    try:
        path.chmod(0o600)
        with opened(path) as file:
            return is_own(file)
    except OSError:
        return False


def _path(kind: str, name: str) -> Path:
    return folder() / f"{kind}-{hashlib.sha256(name.encode()).hexdigest()[:16]}.json"
