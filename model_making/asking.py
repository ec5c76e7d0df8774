"""What a prompt asks for: things, and what is around them. What it does not name is free.

``PROMPTS``, sixty as people type them, and ``TEMPLATES``, those of the bundled model's templates and blueprints, stand
in ``prompts.txt``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .scenes import COLOURS, PLACES


@dataclass(frozen=True)
class Wanted:
    """A thing that must be seen: any of ``kinds``, in this colour and at this place. None means any."""

    kinds: tuple[str, ...]
    colour: str | None = None
    place: str | None = None


@dataclass(frozen=True)
class Prompt:
    """A prompt and what it names. Of sky, ground, backdrop and wall it may leave open which; none means any."""

    group: str
    text: str
    things: tuple[Wanted, ...] = ()
    sky: tuple[str, ...] = ()
    ground: tuple[str, ...] = ()
    backdrop: tuple[str, ...] = ()
    wall: tuple[str, ...] = ()
    table: bool = False


def _wanted(words: list[str]) -> Wanted:
    """Read ``red house left`` or ``sailboat/rowboat``: colour and place may be missing, a slash means either."""
    colour = next((word for word in words if word in COLOURS), None)
    place = next((word for word in words if word in PLACES), None)
    (kinds,) = (word for word in words if word not in (colour, place))
    return Wanted(tuple(kinds.split("/")), colour, place)


def _prompt(line: str) -> Prompt:
    """Read a line of ``prompts.txt``."""
    group, text, things, around = [*line.split(" | "), "", ""][:4]
    wanted = tuple(_wanted(words.split()) for words in things.split(",") if words)
    regions = {name: tuple(which.split("/")) for name, _, which in (part.partition("=") for part in around.split())}
    table = regions.pop("table", None) is not None
    return Prompt(group, text, wanted, table=table, **regions)


_ALL = [
    _prompt(line)
    for line in (Path(__file__).parent / "prompts.txt").read_text(encoding="utf-8").splitlines()
    if not line.startswith("#")
]
PROMPTS = tuple(prompt for prompt in _ALL if prompt.group != "template")
TEMPLATES = tuple(prompt for prompt in _ALL if prompt.group == "template")
