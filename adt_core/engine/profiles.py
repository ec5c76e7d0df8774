"""Cost profiles that were measured: where the user's cache folder keeps them.

Each is a small file, named after what it was measured for. What is unreadable, foreign or damaged counts for nothing.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sys
from pathlib import Path

from ..errors import AdtError
from ..policies import CostProfile

FOLDER = "ADT_TREE_CACHE"
"""Environment variable: the cache folder, in place of the system's usual one."""
LARGEST_FILE = 2**16
"""Bytes. What is larger is no profile."""
_unwritten: dict[Path, CostProfile] = {}  # where the folder can't be written, for the rest of the process


def folder() -> Path:
    """Where profiles are kept. It may not exist yet."""
    if chosen := os.environ.get(FOLDER):
        return Path(chosen)
    usual = Path.home() / {"win32": "AppData/Local", "darwin": "Library/Caches"}.get(sys.platform, ".cache")
    variable = {"win32": "LOCALAPPDATA", "darwin": ""}.get(sys.platform, "XDG_CACHE_HOME")
    return Path(os.environ.get(variable) or usual) / "adt-tree"


def find(name: str, images: int) -> CostProfile | None:
    """The profile that was measured for this name and so many images together; None if there is none."""
    path = _path(name, images)
    try:
        with path.open("rb") as file:
            found = CostProfile.from_json(json.loads(file.read(LARGEST_FILE)))
    except (OSError, ValueError, RecursionError, AdtError):
        found = _unwritten.get(path)
    return found if found is not None and (found.name, found.images) == (name, images) else None


def keep(profile: CostProfile) -> None:
    """Keep a profile, whole or not at all; where it can't be written, for this process alone."""
    path = _path(profile.name, profile.images)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(json.dumps(profile.to_json()), encoding="utf-8")
        os.replace(part, path)
    except OSError as error:
        _unwritten[path] = profile
        logging.getLogger(__name__).info("The cost profile is not kept beyond this process: %s.", error)


def _path(name: str, images: int) -> Path:
    digest = hashlib.sha256(f"{name}, {images} images".encode()).hexdigest()[:16]
    return folder() / f"costs-{digest}.json"
