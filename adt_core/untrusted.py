"""Schemas for untrusted JSON: types, bounds, lengths and fields.

A :class:`Kind` is the schema of a value. It checks a value, and describes valid values for error messages. A kind can
contain other kinds: `list_of(number(0, 1), 1, 5)` is the kind of lists of one to five numbers from 0 to 1.

Why not pydantic: the command line does not depend on it, and by default it accepts "3" as a number. It also lacks some
checks that this package needs, such as the total length of all tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from .errors import shown


class Kind(NamedTuple):
    """Schema of a value.

    Attributes:
        words: Description of one valid value, such as "a number".
        plural: Description of several valid values, such as "numbers".
        fits: Function that returns whether a value is valid.
    """

    words: str
    plural: str
    fits: Callable[[Any], bool]

    def problem(self, name: str, value: object) -> str:
        """Return an error message for a value, or "" if the value is valid."""
        return "" if self.fits(value) else f"{name} is {shown(value)}, but {self.words} was expected"


SWITCH = Kind("true or false", "true or false", lambda value: type(value) is bool)


def whole_number(low: int, high: int) -> Kind:
    """Return the kind of integers from `low` to `high`. 1.0 and true are not valid."""
    bounds = f"from {low} to {high}"
    return Kind(
        f"a whole number {bounds}", f"whole numbers {bounds}", lambda value: type(value) is int and low <= value <= high
    )


def number(low: float, high: float) -> Kind:
    """Return the kind of numbers from `low` to `high`. NaN is not valid, although Python's JSON parser accepts it."""
    bounds = f"from {low:g} to {high:g}"
    return Kind(
        f"a number {bounds}", f"numbers {bounds}", lambda value: type(value) in (int, float) and low <= value <= high
    )


def text(least: int, most: int) -> Kind:
    """Return the kind of strings of `least` to `most` characters."""
    length = f"of {least} to {most} characters"
    return Kind(
        f"a text {length}", f"texts {length}", lambda value: isinstance(value, str) and least <= len(value) <= most
    )


def label(most: int) -> Kind:
    """Return the kind of printable strings of 1 to `most` characters."""
    string = text(1, most)
    return string._replace(fits=lambda value: string.fits(value) and value.isprintable())


def one_of(*choices: str) -> Kind:
    """Return the kind of strings that equal one of the choices."""
    words = " or ".join(choices)
    return Kind(words, words, lambda value: isinstance(value, str) and value in choices)


def optional(kind: Kind) -> Kind:
    """Return a kind that also accepts null."""
    return kind._replace(fits=lambda value: value is None or kind.fits(value))


def list_of(kind: Kind, least: int, most: int) -> Kind:
    """Return the kind of lists with `least` to `most` elements, all of the same kind."""
    count = f"{least} to {most}" if least < most else f"{most}"

    def fits(value: Any) -> bool:
        return isinstance(value, list) and least <= len(value) <= most and all(map(kind.fits, value))

    return Kind(f"a list of {count} {kind.plural}", f"lists of {count} {kind.plural}", fits)


def row(*kinds: Kind) -> Kind:
    """Return the kind of lists with one element for each of the given kinds, in the same order."""
    values = ", ".join(kind.words for kind in kinds)

    def fits(value: Any) -> bool:
        return (
            isinstance(value, list)
            and len(value) == len(kinds)
            and all(kind.fits(entry) for kind, entry in zip(kinds, value))
        )

    return Kind(f"a list of {values}", f"lists of {values}", fits)


def mapping(name: Kind, kind: Kind, least: int, most: int) -> Kind:
    """Return the kind of JSON objects with `least` to `most` fields, whose names and values fit `name` and `kind`."""

    def fits(value: Any) -> bool:
        is_object = isinstance(value, dict) and least <= len(value) <= most
        return is_object and all(map(name.fits, value)) and all(map(kind.fits, value.values()))

    return Kind(f"an object of {kind.plural}", f"objects of {kind.plural}", fits)


def record(fields: Mapping[str, Kind]) -> Kind:
    """Return the kind of JSON objects that contain the given fields. Other fields are not checked."""
    names = ", ".join(fields)

    def fits(value: Any) -> bool:
        return isinstance(value, dict) and all(
            name in value and kind.fits(value[name]) for name, kind in fields.items()
        )

    return Kind(f"an object with {names}", f"objects with {names}", fits)
