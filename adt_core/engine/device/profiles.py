"""What was found out about a device: where the user's cache folder keeps cost profiles, and reports on the exact mode.

Each is a small file, named after what it was found for. What is unreadable, foreign or damaged counts for nothing.
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
"""Environment variable: the cache folder, in place of the system's usual one."""
LARGEST_FILE = 2**16
"""Bytes. What is larger is none of ours."""
DOUBTFUL, FEWEST = 1.3, 8
"""When a decoding doubts its profile. The profile says which rounds are cheap and which are dear, and how many times
dearer these are. If this ratio was wrong by the factor DOUBTFUL, the decoding doubts it. A decoding with fewer than
FEWEST cheap or dear rounds says nothing. One without any drafts doubts it, too, for by a wrong profile none might ever
come."""
MOST_TIMES = 10
"""A profile that was measured n times is measured anew after 2^n decodings in a row that doubt it; n is this at most.
So a wrong one is found soon, and a right one that is doubted again and again costs little."""


class _Record(NamedTuple):
    """A profile as it is kept. times: how often it was measured. doubts: decodings in a row that doubt it.

    Files of earlier versions have neither number.
    """

    profile: CostProfile
    times: int = 1
    doubts: int = 0


_COUNT = whole_number(0, 2**MOST_TIMES)


def folder() -> Path:
    """Where profiles are kept. It may not exist yet."""
    if chosen := os.environ.get(FOLDER):
        return Path(chosen)
    usual = _home() / {"win32": "AppData/Local", "darwin": "Library/Caches"}.get(sys.platform, ".cache")
    variable = {"win32": "LOCALAPPDATA", "darwin": ""}.get(sys.platform, "XDG_CACHE_HOME")
    return Path(os.environ.get(variable) or usual) / "adt-tree"


def _home() -> Path:
    """Return the user's home, or the temporary folder for an account that has none (a container's numeric user)."""
    try:
        return Path.home()
    except RuntimeError:
        return Path(tempfile.gettempdir())


def find(name: str, images: int) -> CostProfile | None:
    """The profile that was measured for this name and so many images together; None if there is none."""
    kept = _record(name, images)
    return kept and kept.profile


def save(profile: CostProfile) -> None:
    """Keep a profile that was measured now, whole or not at all; where it can't be written, for this process alone."""
    before = _record(profile.name, profile.images)
    _keep(_Record(profile, min(before.times + 1, MOST_TIMES) if before is not None else 1))


def _record(name: str, images: int) -> _Record | None:
    """What :func:`_keep` has kept under this name; None if there is nothing, or a stranger in its place."""
    kept = _read(_path(name, images))
    if not isinstance(kept, dict):
        return None
    counts: dict[str, Any] = {field: kept.get(field, usual) for field, usual in _Record._field_defaults.items()}
    try:
        profile = CostProfile.from_json({field: value for field, value in kept.items() if field not in counts})
    except AdtError:
        return None
    belongs = (profile.name, profile.images) == (name, images) and all(map(_COUNT.fits, counts.values()))
    return _Record(profile, **counts) if belongs else None


def _keep(kept: _Record) -> None:
    content = {**kept.profile.to_json(), "times": kept.times, "doubts": kept.doubts}
    _write(_path(kept.profile.name, kept.profile.images), content)


def find_report(name: str) -> Any:
    """What :func:`save_report` has kept under this name, or a stranger in its place; None if there is nothing."""
    kept = _read(_verdict(name))
    return kept.get("verdict") if isinstance(kept, dict) and kept.get("name") == name else None


def save_report(name: str, report: dict) -> None:
    """Keep a report on the exact mode, in plain JSON types, as profiles are kept."""
    _write(_verdict(name), {"name": name, "verdict": report})


def _read(path: Path) -> Any:
    try:
        with opened(path) as file:
            return parse_json(file.read(LARGEST_FILE))
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


def note_unmeasurable(name: str, images: int) -> None:
    """Measuring has failed. It is not tried again in this process: that would cost time after every image."""
    get_runtime().unmeasurable.add(_path(name, images))


def is_unmeasurable(name: str, images: int) -> bool:
    """Has measuring failed in this process, for this name and so many images together?"""
    return _path(name, images) in get_runtime().unmeasurable


def doubted(profile: CostProfile, readings: Sequence[tuple[float, float]]) -> bool:
    """Is a profile to be measured anew? readings: of another decoding with it, plain steps and seconds of rounds."""
    doubts, kept = _doubts(profile, readings), _record(profile.name, profile.images)
    if doubts is None or kept is None:
        return False
    enough = 2**kept.times
    count = min(kept.doubts + 1, enough) if doubts else 0
    if count != kept.doubts:
        _keep(kept._replace(doubts=count))
    return count == enough


def _doubts(profile: CostProfile, readings: Sequence[tuple[float, float]]) -> bool | None:
    """Does a decoding doubt its profile? None if it says nothing."""
    if not readings:
        return None
    if max(steps for steps, _ in readings) <= max(1.0, profile.plain):
        return True
    middle = median(steps for steps, _ in readings)
    cheap, dear = ([r[1] / r[0] for r in readings if (r[0] > middle) == above] for above in (False, True))
    if min(len(cheap), len(dear)) < FEWEST:
        return None
    return not 1 / DOUBTFUL < median(dear) / median(cheap) < DOUBTFUL


def _path(name: str, images: int) -> Path:
    return folder() / f"costs-{_digest(f'{name}, {images} images')}.json"


def _verdict(name: str) -> Path:
    return folder() / f"exact-{_digest(name)}.json"


def _digest(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:16]
