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
    """Object that an image must show.

    Attributes:
        kinds: Accepted kinds. The object must be of one of them.
        colour: Required colour, or None for any.
        place: Required place, or None for any.
    """

    kinds: tuple[str, ...]
    colour: str | None = None
    place: str | None = None


@dataclass(frozen=True)
class PromptSpec:
    """Prompt and the contents that its image must show.

    Attributes:
        group: Style of the prompt, for example "list" or "sentence".
        text: The prompt.
        objects: Required objects.
        sky: Accepted skies; empty accepts any sky.
        ground: Accepted grounds; empty accepts any ground.
        backdrop: Accepted backdrops; empty accepts any backdrop.
        wall: Accepted walls; empty accepts any wall.
        table: Whether the image must show a table.
    """

    group: str
    text: str
    objects: tuple[ObjectSpec, ...] = ()
    sky: tuple[str, ...] = ()
    ground: tuple[str, ...] = ()
    backdrop: tuple[str, ...] = ()
    wall: tuple[str, ...] = ()
    table: bool = False


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
