"""Cache of cost profiles and invariance reports, as small JSON files in the user's cache folder.

The name of a file is a hash of the device, the model and the settings. Unreadable, foreign and damaged files are
ignored. If a file can't be written, its content is kept in the runtime for the rest of the process.
"""

from __future__ import annotations

import hashlib
import logging
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from ...errors import AdtError
from ...files import opened, parse_json, to_json, write_in
from ...policies import CostProfile
from ...runtime import get_runtime
from ...untrusted import whole_number

FOLDER = "ADT_TREE_CACHE"
"""Environment variable for the cache folder, which replaces the system's default."""
MAX_FILE_BYTES = 2**16
"""Ignore larger files; this module never writes any."""
MISMATCH_FACTOR = 1.3
"""Threshold for re-measuring: the measured cost ratio of large to small rounds differs from the profile's by this
factor."""
MIN_ROUNDS = 8
"""Number of large and of small rounds that a decoding needs to check its profile."""


class _StoredProfile(NamedTuple):
    """Stored cost profile.

    Attributes:
        profile: The profile.
        times: How often it was measured, at most 2. Files of earlier versions may lack it or have up to 10.
        doubts: Consecutive decodings that have contradicted it, at most 1. Files of earlier versions may lack it or
            have up to 1024.
    """

    profile: CostProfile
    times: int = 1
    doubts: int = 0


_COUNT = whole_number(0, 2**10)


def folder() -> Path:
    """Return the cache folder, which may not exist yet."""
    if chosen := os.environ.get(FOLDER):
        return Path(chosen)
    default = _home() / {"win32": "AppData/Local", "darwin": "Library/Caches"}.get(sys.platform, ".cache")
    variable = {"win32": "LOCALAPPDATA", "darwin": ""}.get(sys.platform, "XDG_CACHE_HOME")
    return Path(os.environ.get(variable) or default) / "adt-tree"


def _home() -> Path:
    """Return the user's home, or the temporary folder for an account that has none (a container's numeric user)."""
    try:
        return Path.home()
    except RuntimeError:
        return Path(tempfile.gettempdir())


def find(name: str, images: int) -> CostProfile | None:
    """Return the cost profile that was measured for this name and batch size, or None."""
    stored = _find_stored(name, images)
    return None if stored is None else stored.profile


def save(profile: CostProfile) -> None:
    """Save a profile that was measured just now."""
    is_first = _find_stored(profile.name, profile.images) is None
    _store(_StoredProfile(profile, times=1 if is_first else 2))


def _find_stored(name: str, images: int) -> _StoredProfile | None:
    content = _read(_profile_path(name, images))
    if not isinstance(content, dict):
        return None
    counts: dict[str, Any] = {
        field: content.get(field, default) for field, default in _StoredProfile._field_defaults.items()
    }
    try:
        profile = CostProfile.from_json({field: value for field, value in content.items() if field not in counts})
    except AdtError:
        return None
    is_valid = (profile.name, profile.images) == (name, images) and all(map(_COUNT.fits, counts.values()))
    return _StoredProfile(profile, **counts) if is_valid else None


def _store(stored: _StoredProfile) -> None:
    content = {**stored.profile.to_json(), "times": stored.times, "doubts": stored.doubts}
    _write(_profile_path(stored.profile.name, stored.profile.images), content)


def find_report(name: str) -> Any:
    """Return the JSON value that `save_report` has saved under this name, or None. It may be damaged or foreign."""
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
            "Measurements of this device could not be saved and will be repeated in the next process: %s", error
        )


def mark_unmeasurable(name: str, images: int) -> None:
    """Record that measuring has failed, so that it is not tried again in this process after every image."""
    get_runtime().unmeasurable.add(_profile_path(name, images))


def is_unmeasurable(name: str, images: int) -> bool:
    """Return whether measuring has failed in this process for this name and batch size."""
    return _profile_path(name, images) in get_runtime().unmeasurable


def needs_remeasuring(profile: CostProfile, readings: Sequence[tuple[float, float]]) -> bool:
    """Return whether two decodings in a row have contradicted a saved profile, and record this decoding's result.

    Args:
        profile: Profile that the decoding has used.
        readings: Cost by the profile in plain steps, and measured seconds, of each of the decoding's rounds.
    """
    stored = _find_stored(profile.name, profile.images)
    mismatch = None if stored is None else _is_mismatch(stored, readings)
    if stored is None or mismatch is None:
        return False
    if mismatch and stored.doubts:
        return True
    if mismatch != bool(stored.doubts):
        _store(stored._replace(doubts=int(mismatch)))
    return False


def _is_mismatch(stored: _StoredProfile, readings: Sequence[tuple[float, float]]) -> bool | None:
    """Return whether a decoding's rounds contradict its profile, or None if they don't allow a comparison.

    A decoding without drafts has nothing to compare. It counts as a mismatch once, because a wrong profile may be the
    reason; a second measurement settles it.
    """
    if not readings:
        return None
    if max(steps for steps, _ in readings) <= max(1.0, stored.profile.plain):
        return True if stored.times < 2 else None
    middle = median(steps for steps, _ in readings)
    small = [seconds / steps for steps, seconds in readings if steps <= middle]
    large = [seconds / steps for steps, seconds in readings if steps > middle]
    if min(len(small), len(large)) < MIN_ROUNDS:
        return None
    return not 1 / MISMATCH_FACTOR < median(large) / median(small) < MISMATCH_FACTOR


def _profile_path(name: str, images: int) -> Path:
    return folder() / f"costs-{_digest(f'{name}, {images} images')}.json"


def _report_path(name: str) -> Path:
    return folder() / f"exact-{_digest(name)}.json"


def _digest(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:16]
