"""What a prompt asks for: things, and what is around them. What it does not name is free."""

from __future__ import annotations

from dataclasses import dataclass


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
