"""What every policy has: the shape that it chooses, its settings, and the calls by which the engine asks and tells it."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, NamedTuple

from ..errors import AdtError
from ..rules.trace import Round


class Shape(NamedTuple):
    """How large the next tree of an image may be.

    depth: levels below the root. width: children of a node, or candidates at a position. nodes: drafts that are checked.
    tree: name of a published tree that is drafted node by node; empty for one that grows by its scores.
    menu: pairs (nodes, tokens). A drafter that knows how likely its drafts are may take the entry whose expected tokens
    exceed the tokens by most; it takes ``nodes`` where the menu is empty.
    """

    depth: int
    width: int
    nodes: int
    tree: str = ""
    menu: tuple[tuple[int, float], ...] = ()


NO_DRAFTS = Shape(0, 1, 0)
"""The shape of a lone root."""


def spine_length(nodes: int) -> int:
    """Drafts on the spine of a window that has ``nodes`` drafts: all of a few, else two thirds; the rest are branches."""
    return nodes if nodes <= 4 else round(nodes * 2 / 3)


def setting(
    default: Any,
    help: str,
    *,
    low: float | None = None,
    high: float | None = None,
    choices: tuple[str, ...] = (),
    advanced: bool = False,
) -> Any:
    """A field of a policy's settings, with all that the command line and the Settings node say about it.

    help: one or two sentences for people. low, high: bounds of a number. choices: of a word.
    advanced: the node shows it on request only.
    """
    metadata = {"help": help, "low": low, "high": high, "choices": choices, "advanced": advanced}
    return field(default=default, metadata=metadata)


def whole(default: int, help: str, *, advanced: bool = False) -> Any:
    """A setting that is a whole number from 1 to 256."""
    return setting(default, help, low=1, high=256, advanced=advanced)


def share(default: float, help: str) -> Any:
    """A setting that is a number from 0 to 1."""
    return setting(default, help, low=0.0, high=1.0, advanced=True)


@dataclass(frozen=True)
class Settings:
    """Settings of a policy; a subclass adds fields with :func:`setting`. Raises AdtError for a value out of bounds."""

    def __post_init__(self) -> None:
        for one in fields(self):
            value, low, high = getattr(self, one.name), one.metadata["low"], one.metadata["high"]
            if one.metadata["choices"] and value not in one.metadata["choices"]:
                raise AdtError(f"{one.name} is {value!r}; choose one of {', '.join(one.metadata['choices'])}.")
            if low is not None and not (math.isfinite(value) and low <= value <= high):
                kind = "whole number" if isinstance(one.default, int) else "number"
                raise AdtError(f"{one.name} is {value}; it must be a {kind} from {low:g} to {high:g}.")


class Lane(NamedTuple):
    """An image at work. image: its number in the decoding. position: raster position of its last decided token."""

    image: int
    position: int


@dataclass(frozen=True)
class Scene:
    """What a policy is told of a decoding.

    columns: tokens in a row of the raster. length: tokens that are drawn of each image. seed: of the sampling.
    image_indices: every image's number within its prompt's batch, part of the noise key.
    source_widths: for each source of drafts to choose from, the most candidates at a position that it can use.
    owner, conditions: a policy that learns from one decoding for the next keeps what it knows under this object (the
    drafter that was given) and this key (all that its costs depend on).
    """

    columns: int
    length: int
    seed: int
    image_indices: Sequence[int]
    source_widths: Sequence[int]
    owner: object
    conditions: Hashable


class Policy:
    """Chooses the shapes of one decoding's trees.

    A subclass writes ``choose``, and what else it needs. ``settings_type`` is the class of its settings, ``help`` says what it does.
    needs_network: it asks for trees that a drafter without a network can't make. many_sources: it chooses between the
    drafter and what else could draft with the same files. needs_drafter: False for plain decoding.
    """

    settings_type: ClassVar[type[Settings]] = Settings
    help: ClassVar[str] = ""
    needs_drafter: ClassVar[bool] = True
    needs_network: ClassVar[bool] = False
    many_sources: ClassVar[bool] = False
    drafts: bool = True
    """False: drafting ends for the images at work. The engine lets their drafter go, and they are decoded plainly."""

    def __init__(self, settings: Any, scene: Scene):
        self.settings, self.scene = settings, scene

    @classmethod
    def largest(cls, settings: Any) -> Shape:
        """The largest shape that ``choose`` may give: memory is set aside for it."""
        raise NotImplementedError

    def begin(self, together: int) -> int | None:
        """A new set of images begins, ``together`` at a time. Number of the source that drafts for them; None for none."""
        return 0

    @property
    def plain_steps(self) -> int:
        """Plain steps that are to be timed before the next round, for ``Round.plain_seconds``."""
        return 0

    def choose(self, lanes: Sequence[Lane]) -> list[Shape]:
        """A shape for the next tree of every lane."""
        raise NotImplementedError

    def observe(self, round: Round) -> None:
        """Learn from the round whose shapes were chosen last."""
