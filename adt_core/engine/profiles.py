"""What was found out about a device: where the user's cache folder keeps cost profiles, and verdicts on the exact mode.

Each is a small file, named after what it was found for. What is unreadable, foreign or damaged counts for nothing.
"""

from __future__ import annotations

import hashlib
import logging
import os
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from ..errors import AdtError
from ..files import opened, parse_json, to_json, write_in
from ..policies import CostProfile

FOLDER = "ADT_TREE_CACHE"
"""Environment variable: the cache folder, in place of the system's usual one."""
LARGEST_FILE = 2**16
"""Bytes. What is larger is none of ours."""
DOUBTS, DOUBTFUL, FEWEST = 8, 1.3, 8
"""When a profile is measured anew. The profile says which of a decoding's rounds are cheap and which are dear, and how
many times dearer these are. If this ratio was wrong by the factor DOUBTFUL, the decoding doubts the profile. A decoding
with fewer than FEWEST cheap or dear rounds says nothing. After DOUBTS decodings in a row that doubt it, the profile is
measured anew."""
_unwritten: dict[Path, dict] = {}  # where the folder can't be written, for the rest of the process
_unmeasurable: set[Path] = set()  # where measuring has failed in this process
_doubts: Counter[str] = Counter()  # decodings in a row that disagreed, by the digest of the profile


def folder() -> Path:
    """Where profiles are kept. It may not exist yet."""
    if chosen := os.environ.get(FOLDER):
        return Path(chosen)
    usual = Path.home() / {"win32": "AppData/Local", "darwin": "Library/Caches"}.get(sys.platform, ".cache")
    variable = {"win32": "LOCALAPPDATA", "darwin": ""}.get(sys.platform, "XDG_CACHE_HOME")
    return Path(os.environ.get(variable) or usual) / "adt-tree"


def find(name: str, images: int) -> CostProfile | None:
    """The profile that was measured for this name and so many images together; None if there is none."""
    try:
        profile = CostProfile.from_json(_read(_path(name, images)))
    except AdtError:
        return None
    return profile if (profile.name, profile.images) == (name, images) else None


def save(profile: CostProfile) -> None:
    """Keep a profile, whole or not at all; where it can't be written, for this process alone."""
    _write(_path(profile.name, profile.images), profile.to_json())


def find_verdict(name: str) -> Any:
    """What :func:`save_verdict` has kept under this name, or a stranger in its place; None if there is nothing."""
    kept = _read(_verdict(name))
    return kept.get("verdict") if isinstance(kept, dict) and kept.get("name") == name else None


def save_verdict(name: str, verdict: dict) -> None:
    """Keep a verdict on the exact mode, in plain JSON types, as profiles are kept."""
    _write(_verdict(name), {"name": name, "verdict": verdict})


def _read(path: Path) -> Any:
    try:
        with opened(path) as file:
            return parse_json(file.read(LARGEST_FILE))
    except (OSError, ValueError, AdtError):
        return _unwritten.get(path)


def _write(path: Path, content: dict) -> None:
    try:
        write_in(path.parent, path.name, to_json(content))
    except AdtError as error:
        _unwritten[path] = content
        logging.getLogger(__name__).info("What was found out here is not kept beyond this process: %s", error)


def note_unmeasurable(name: str, images: int) -> None:
    """Measuring has failed. It is not tried again in this process: that would cost time after every image."""
    _unmeasurable.add(_path(name, images))


def is_unmeasurable(name: str, images: int) -> bool:
    """Has measuring failed in this process, for this name and so many images together?"""
    return _path(name, images) in _unmeasurable


def doubted(profile: CostProfile, readings: Sequence[tuple[float, float]]) -> bool:
    """Is a profile to be measured anew? readings: of another decoding with it, plain steps and seconds of rounds."""
    middle = median(steps for steps, _ in readings) if readings else 0.0
    cheap, dear = ([r[1] / r[0] for r in readings if (r[0] > middle) == above] for above in (False, True))
    if min(len(cheap), len(dear)) < FEWEST:
        return False
    ratio = median(dear) / median(cheap)
    _doubts[profile.digest] = 0 if 1 / DOUBTFUL < ratio < DOUBTFUL else _doubts[profile.digest] + 1
    if _doubts[profile.digest] < DOUBTS:
        return False
    del _doubts[profile.digest]
    return True


def _path(name: str, images: int) -> Path:
    return folder() / f"costs-{_digest(f'{name}, {images} images')}.json"


def _verdict(name: str) -> Path:
    return folder() / f"exact-{_digest(name)}.json"


def _digest(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:16]
