"""Settings that a PNG brings along. Whoever made the PNG may be a stranger: each is checked, and none opens a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..drafters import DRAFTERS, WITH_WINDOW
from ..errors import AdtError, shown
from ..models.checkpoint import BUNDLED
from ..rules.noise import NOISE_VERSION
from .images import read_settings

LONGEST_TEXT, MOST_CODES, MOST_PIXELS, MOST_IMAGES = 10**6, 2**20, 2**14, 2**32
"""Bounds of a text, of kept tokens, of a side, and of an image's number among those of its prompt."""
PATHS = "model", "drafter"
"""Settings that name files."""


def read(path: Path, kinds: Mapping[str, Any], given: Mapping[str, object]) -> dict[str, object]:
    """The settings of a PNG that are named in ``kinds``, checked; what is null is left out.

    kinds: what each has to be: a type, a tuple of choices, or what it is called in _KINDS. given: what the user has
    said of them already, or None; of the files to be opened, only the user may name others than the pack's own.
    Raises AdtError if the image can't be made again from them.
    """
    saved = read_settings(path)
    version = saved.get("noise_version")
    if version != NOISE_VERSION:
        raise AdtError(
            f"{path} was drawn with noise version {shown(version)}, and this ADT-Tree draws {NOISE_VERSION}; it can't "
            "be made again."
        )
    said = {name: saved[name] for name in kinds.keys() & saved.keys() if saved[name] is not None}
    for name, value in ({"prompt": None} | said).items():
        if not _is(value, _KINDS.get(name, kinds[name])):
            raise AdtError(f"{path} says {name} is {shown(value)}, which can't be; draw a new image instead.")
    for name in PATHS:
        asked = said.get(name)
        if given.get(name) is None and not _is_ours(asked):
            raise AdtError(
                f"{path} asks for the {name} {shown(asked, 300)}, and anybody may have written that; if you want it, "
                f"add --{name} with that path."
            )
    return said


def _is_ours(asked: object) -> bool:
    """Does a setting name nothing, or what comes with the pack?"""
    return asked in (None, BUNDLED, BUNDLED + WITH_WINDOW, *DRAFTERS)


def _is(value: object, kind: Any) -> bool:
    """Is a value of JSON what the command line would have made of an option's text?"""
    if isinstance(kind, tuple):
        return isinstance(value, str) and value in kind
    if kind is str:
        return isinstance(value, str) and len(value) <= LONGEST_TEXT
    if kind is int:
        return _is_number(value) and type(value) is int
    if kind is float:
        return _is_number(value)
    return kind(value)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and type(value) is not bool and abs(value) < 2**64  # which NaN is not


def _are_whole(most: int, count: int | None = None) -> Callable[[object], bool]:
    """Tells whether a value is a list of whole numbers from 0 to below ``most``; ``count`` of them, if given."""

    def check(value: object) -> bool:
        if not isinstance(value, list) or len(value) > MOST_CODES or count not in (None, len(value)):
            return False
        return all(type(one) is int and 0 <= one < most for one in value)

    return check


_KINDS: dict[str, Callable[[object], bool]] = {
    "size": _are_whole(MOST_PIXELS, count=2),
    "kept": _are_whole(MOST_CODES),
    "image_index": lambda value: type(value) is int and 0 <= value < MOST_IMAGES,
    "profile": lambda _: True,  # CostProfile.from_json checks it
}
"""Settings that are no plain text or number."""
