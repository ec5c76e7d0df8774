"""Cache of cost models and invariance reports, as small JSON files in the user's cache folder.

The name of a file is a hash of the device, the model and the settings. Files are ignored if they are unreadable or
damaged, or if another program has written them. If a file can't be written, its content is kept in the runtime
(:mod:`adt_core.runtime`) for the rest of the process.
"""

from __future__ import annotations

import hashlib
import logging
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from ...errors import AdtError
from ...files import opened, parse_json, to_json, write_in
from ...policies.cost_model import CostModel
from ...runtime import get_runtime

FOLDER = "ADT_TREE_CACHE"
"""Environment variable with the path of the cache folder. If it is not set, the system's default folder is used."""
MAX_FILE_BYTES = 2**16
"""Ignore larger files; this module never writes any."""


def folder() -> Path:
    """Return the cache folder, which may not exist yet."""
    if chosen := os.environ.get(FOLDER):
        return Path(chosen)
    default = _home() / {"win32": "AppData/Local", "darwin": "Library/Caches"}.get(sys.platform, ".cache")
    variable = {"win32": "LOCALAPPDATA", "darwin": ""}.get(sys.platform, "XDG_CACHE_HOME")
    return Path(os.environ.get(variable) or default) / "adt-tree"


def _home() -> Path:
    """Return the user's home folder, or the temporary folder if the account has no home.

    For example, a numeric user in a container has no home.
    """
    try:
        return Path.home()
    except RuntimeError:
        return Path(tempfile.gettempdir())


def find_costs(name: str, images: int) -> Any:
    """Return the JSON value of the cost model with this name and batch size (`images`); None if there is no such file.

    The caller must check the value, because the file may be damaged or written by another program.
    """
    return _read(_costs_path(name, images))


def save_costs(model: CostModel) -> None:
    """Save what a cost model has learned."""
    _write(_costs_path(model.name, model.images), model.to_json())


def find_report(name: str) -> Any:
    """Return the JSON value that `save_report` has saved under this name; None if there is no such file.

    The caller must check the value, because the file may be damaged or written by another program.
    """
    content = _read(_report_path(name))
    return content.get("verdict") if isinstance(content, dict) and content.get("name") == name else None


def save_report(name: str, report: dict) -> None:
    """Save an invariance report of plain JSON types."""
    _write(_report_path(name), {"name": name, "verdict": report})


def _read(path: Path) -> Any:
    try:
        with opened(path) as file:
            return parse_json(file.read(MAX_FILE_BYTES))
    except (OSError, ValueError, AdtError):
        return get_runtime().unsaved_files.get(path)


def _write(path: Path, content: dict) -> None:
    try:
        write_in(path.parent, path.name, to_json(content))
    except AdtError as error:
        get_runtime().unsaved_files[path] = content
        logging.getLogger(__name__).info(
            "What was measured on this device could not be saved and is lost at the end of this process: %s", error
        )


def _costs_path(name: str, images: int) -> Path:
    return folder() / f"costs-{_digest(f'{name}, {images} images')}.json"


def _report_path(name: str) -> Path:
    return folder() / f"exact-{_digest(name)}.json"


def _digest(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:16]
