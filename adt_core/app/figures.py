"""Figures of a run as a file tells them, which anybody may have written: numbers that a run can have."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeGuard

LARGEST = 10**12
"""Of all figures: a sum of many is still a number."""
SHARES = "substitution_rate", "agreement"
"""Figures that are 1 at most."""
SHORTEST = 1e-9
"""Seconds of a run, at least: speeds are ratios to them."""


def are_figures(value: object, names: Iterable[str]) -> TypeGuard[dict]:
    """Is it a dictionary that has all these figures?"""
    return isinstance(value, dict) and all(is_figure(value.get(name), *_bounds(name)) for name in names)


def _bounds(name: str) -> tuple[float, float]:
    return SHORTEST if name == "seconds" else 0, 1 if name in SHARES else LARGEST


def is_figure(value: object, least: float = 0, most: float = LARGEST) -> bool:
    """Is it a number within these bounds?"""
    return isinstance(value, int | float) and type(value) is not bool and least <= value <= most  # which NaN is not
