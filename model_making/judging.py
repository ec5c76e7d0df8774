"""What of a prompt is in a picture: its things by their shapes, and what is around them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .asking import Prompt, Wanted
from .finding import Found, find
from .scenes import Scene
from .surroundings import surroundings


@dataclass(frozen=True)
class Judged:
    """What was looked for in one picture, each with whether it is there.

    named: what the prompt names, in words. shapes: each thing by kind and colour, at any place. once: each thing, and
    whether the picture is free of a second one of its kind.
    """

    named: dict[str, bool]
    shapes: list[bool]
    once: list[bool]


def wanted_of(scene: Scene) -> tuple[Wanted, ...]:
    """The things of a scene."""
    return tuple(Wanted((item.kind,), item.colour, item.place) for item in scene.items)


def _fits(thing: Found, wanted: Wanted, at_place: bool) -> bool:
    return (
        thing.kind in wanted.kinds
        and wanted.colour in (None, thing.colour)
        and (not at_place or wanted.place in (None, thing.place))
    )


def _matched(found: list[Found], things: tuple[Wanted, ...], at_place: bool) -> list[bool]:
    """Whether each thing is there. One that was found stands for one that is wanted."""
    left, there = list(found), []
    for wanted in things:
        match = next((thing for thing in left if _fits(thing, wanted, at_place)), None)
        there.append(match is not None)
        if match:
            left.remove(match)
    return there


def shapes_and_numbers(found: list[Found], things: tuple[Wanted, ...]) -> tuple[list[bool], list[bool]]:
    """Of every thing: is it there in its kind and colour; and is there no second one of its kind?

    Only things whose kind is asked for once are looked at in the second list.
    """
    once = []
    for wanted in things:
        if sum(bool(set(wanted.kinds) & set(other.kinds)) for other in things) == 1:
            once.append(sum(thing.kind in wanted.kinds for thing in found) < 2)
    return _matched(found, things, at_place=False), once


def judge_caption(image: np.ndarray, scene: Scene, named: dict[str, bool]) -> Judged:
    """A picture (uint8 [128, 128, 3]) of a caption; ``named`` are its attributes as ``attributes.check`` finds them."""
    return Judged(named, *shapes_and_numbers(find(image), wanted_of(scene)))


def judge_prompt(image: np.ndarray, prompt: Prompt) -> Judged:
    """A picture (uint8 [128, 128, 3]) of an ordinary prompt."""
    found = find(image)
    around = surroundings(image, found)
    words = [" ".join(filter(None, (t.colour, "/".join(t.kinds), t.place))) for t in prompt.things]
    named = dict(zip((f"thing:{word}" for word in words), _matched(found, prompt.things, at_place=True), strict=True))
    for region in ("sky", "ground", "backdrop", "wall"):
        if which := getattr(prompt, region):
            named[f"{region}:{'/'.join(which)}"] = any(f"{region}:{name}" in around for name in which)
    if prompt.table:
        named["table:wooden"] = "table:wooden" in around
    return Judged(named, *shapes_and_numbers(found, prompt.things))
