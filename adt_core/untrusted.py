"""Schemas for untrusted JSON: types, bounds, lengths and fields.

A `Kind` can contain other kinds. It checks a value and describes the expected one.

pydantic is not a dependency of the command line, accepts "3" as a number by default, and would not cover the checks
that are specific to this package, such as slow patterns and the total length of all tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from .errors import shown


class Kind(NamedTuple):
    """Schema of a value.

    Attributes:
        words: Description of one value, such as "a number".
        plural: Description of several values, such as "numbers".
        fits: Returns whether a value is valid.
    """

    words: str
    plural: str
    fits: Callable[[Any], bool]

    def problem(self, name: str, value: object) -> str:
        """Return a description of the error in a value, or "" if it is valid.

        Args:
            name: Name of the value.
            value: Value to check.
        """
        return "" if self.fits(value) else f"{name} is {shown(value)}, but {self.words} was expected"


SWITCH = Kind("true or false", "true or false", lambda value: type(value) is bool)


def whole_number(low: int, high: int) -> Kind:
    """Return the kind of integers from `low` to `high`. 1.0 and true are not integers."""
    bounds = f"from {low} to {high}"
    return Kind(
        f"a whole number {bounds}", f"whole numbers {bounds}", lambda value: type(value) is int and low <= value <= high
    )


def number(low: float, high: float) -> Kind:
    """Return the kind of numbers from `low` to `high`. NaN, which Python's JSON parser accepts, is not valid."""
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
    """Return the kind of lists of `least` to `most` values of one kind."""
    count = f"{least} to {most}" if least < most else f"{most}"

    def fits(value: Any) -> bool:
        return isinstance(value, list) and least <= len(value) <= most and all(map(kind.fits, value))

    return Kind(f"a list of {count} {kind.plural}", f"lists of {count} {kind.plural}", fits)


def row(*kinds: Kind) -> Kind:
    """Return the kind of lists with one value of each kind, in this order."""
    values = ", ".join(kind.words for kind in kinds)

    def fits(value: Any) -> bool:
        return (
            isinstance(value, list)
            and len(value) == len(kinds)
            and all(kind.fits(entry) for kind, entry in zip(kinds, value))
        )

    return Kind(f"a list of {values}", f"lists of {values}", fits)


def mapping(name: Kind, kind: Kind, least: int, most: int) -> Kind:
    """Return the kind of objects with `least` to `most` fields, whose names and values are of one kind each."""

    def fits(value: Any) -> bool:
        is_object = isinstance(value, dict) and least <= len(value) <= most
        return is_object and all(map(name.fits, value)) and all(map(kind.fits, value.values()))

    return Kind(f"an object of {kind.plural}", f"objects of {kind.plural}", fits)


def record(fields: Mapping[str, Kind]) -> Kind:
    """Return the kind of objects that contain these fields. Other fields are ignored."""
    names = ", ".join(fields)

    def fits(value: Any) -> bool:
        return isinstance(value, dict) and all(
            name in value and kind.fits(value[name]) for name, kind in fields.items()
        )

    return Kind(f"an object with {names}", f"objects with {names}", fits)
