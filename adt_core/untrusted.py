"""What values of a stranger's JSON have to be: types, bounds, counts and fields, each said once and then asked for.

A :class:`Kind` is made of other kinds. It tells whether a value fits, and what was expected.

pydantic would do this, too, and ComfyUI brings it. But then it would have to be installed for the command line. It
takes "3" for a number unless told otherwise. And what is special here would still be checked by hand: patterns that are
slow, tables of characters, the length of all tokens together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from .errors import shown


class Kind(NamedTuple):
    """What a value has to be. words, plural: of one and of several, such as "a number" and "numbers"."""

    words: str
    plural: str
    fits: Callable[[Any], bool]

    def problem(self, name: str, value: object) -> str:
        """What is wrong with the value called ``name``, for a sentence; "" if it fits."""
        return "" if self.fits(value) else f"{name} is {shown(value)}, but {self.words} was expected"


SWITCH = Kind("true or false", "true or false", lambda value: type(value) is bool)


def whole_number(low: int, high: int) -> Kind:
    """An integer from ``low`` to ``high``. Neither 1.0 nor true is one."""
    bounds = f"from {low} to {high}"
    return Kind(
        f"a whole number {bounds}", f"whole numbers {bounds}", lambda value: type(value) is int and low <= value <= high
    )


def number(low: float, high: float) -> Kind:
    """A number from ``low`` to ``high``; so not NaN, which Python's JSON can say."""
    bounds = f"from {low:g} to {high:g}"
    return Kind(
        f"a number {bounds}", f"numbers {bounds}", lambda value: type(value) in (int, float) and low <= value <= high
    )


def text(least: int, most: int) -> Kind:
    """A text of ``least`` to ``most`` characters."""
    length = f"of {least} to {most} characters"
    return Kind(
        f"a text {length}", f"texts {length}", lambda value: isinstance(value, str) and least <= len(value) <= most
    )


def label(most: int) -> Kind:
    """A text of 1 to ``most`` characters, all of which can be printed."""
    usual = text(1, most)
    return usual._replace(fits=lambda value: usual.fits(value) and value.isprintable())


def one_of(*choices: str) -> Kind:
    """One of a few texts."""
    words = " or ".join(choices)
    return Kind(words, words, lambda value: isinstance(value, str) and value in choices)


def optional(kind: Kind) -> Kind:
    """The same, or null."""
    return kind._replace(fits=lambda value: value is None or kind.fits(value))


def list_of(kind: Kind, least: int, most: int) -> Kind:
    """A list of ``least`` to ``most`` values of one kind."""
    count = f"{least} to {most}" if least < most else f"{most}"

    def fits(value: Any) -> bool:
        return isinstance(value, list) and least <= len(value) <= most and all(map(kind.fits, value))

    return Kind(f"a list of {count} {kind.plural}", f"lists of {count} {kind.plural}", fits)


def row(*kinds: Kind) -> Kind:
    """A list of one value of each kind, in this order."""
    values = ", ".join(kind.words for kind in kinds)

    def fits(value: Any) -> bool:
        return (
            isinstance(value, list)
            and len(value) == len(kinds)
            and all(kind.fits(entry) for kind, entry in zip(kinds, value))
        )

    return Kind(f"a list of {values}", f"lists of {values}", fits)


def mapping(name: Kind, kind: Kind, least: int, most: int) -> Kind:
    """An object with ``least`` to ``most`` fields, whose names and values are of one kind each."""

    def fits(value: Any) -> bool:
        is_object = isinstance(value, dict) and least <= len(value) <= most
        return is_object and all(map(name.fits, value)) and all(map(kind.fits, value.values()))

    return Kind(f"an object of {kind.plural}", f"objects of {kind.plural}", fits)


def record(fields: Mapping[str, Kind]) -> Kind:
    """An object that has all these fields, and maybe others."""
    names = ", ".join(fields)

    def fits(value: Any) -> bool:
        return isinstance(value, dict) and all(
            name in value and kind.fits(value[name]) for name, kind in fields.items()
        )

    return Kind(f"an object with {names}", f"objects with {names}", fits)
