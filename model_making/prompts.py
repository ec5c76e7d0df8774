"""Evaluation prompts and the objects and background that their images must show.

The file ``prompts.txt`` contains all prompts. ``PROMPTS`` are sixty prompts in the style of users. ``TEMPLATES`` are
the prompts of the bundled model's workflow templates and blueprints.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .scenes import COLOURS, PLACES


@dataclass(frozen=True)
class ObjectSpec:
    """Object that an image must show."""

    kinds: tuple[str, ...]  # that are accepted
    colour: str | None = None  # None for any
    place: str | None = None  # None for any


@dataclass(frozen=True)
class PromptSpec:
    """Prompt and the contents that its image must show."""

    group: str  # style of the prompt, for example "list" or "sentence"
    text: str
    objects: tuple[ObjectSpec, ...] = ()  # that are required
    sky: tuple[str, ...] = ()  # accepted skies; empty accepts any, also below
    ground: tuple[str, ...] = ()
    backdrop: tuple[str, ...] = ()
    wall: tuple[str, ...] = ()
    table: bool = False  # whether the image must show a table


def _parse_object(words: list[str]) -> ObjectSpec:
    """Parse an object such as ``red house left`` or ``sailboat/rowboat``. A slash separates accepted kinds."""
    colour = next((word for word in words if word in COLOURS), None)
    place = next((word for word in words if word in PLACES), None)
    (kinds,) = (word for word in words if word not in (colour, place))
    return ObjectSpec(tuple(kinds.split("/")), colour, place)


def _parse_prompt(line: str) -> PromptSpec:
    """Parse a line of ``prompts.txt``."""
    group, text, objects, background = [*line.split(" | "), "", ""][:4]
    specs = tuple(_parse_object(words.split()) for words in objects.split(",") if words)
    parts = [part.partition("=") for part in background.split()]
    regions = {name: tuple(options.split("/")) for name, _, options in parts}
    table = regions.pop("table", None) is not None
    return PromptSpec(group, text, specs, table=table, **regions)


_ALL = [
    _parse_prompt(line)
    for line in (Path(__file__).parent / "prompts.txt").read_text(encoding="utf-8").splitlines()
    if not line.startswith("#")
]
PROMPTS = tuple(prompt for prompt in _ALL if prompt.group != "template")
TEMPLATES = tuple(prompt for prompt in _ALL if prompt.group == "template")
