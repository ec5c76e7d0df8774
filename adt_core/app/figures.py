"""Figures of a run as a file tells them, which anybody may have written: numbers that a run can have."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeGuard

LARGEST = 10**12
"""Of all figures: a sum of many is still a number."""
SHARES = "substitution_rate", "agreement"
"""Figures that are 1 at most."""
LONGEST = 100
"""Characters of a column's name."""
SHORTEST = 1e-9
"""Seconds of a run, at least: speeds are ratios to them."""


def are_figures(value: object, names: Iterable[str]) -> TypeGuard[dict]:
    """Is it a dictionary that has all these figures?"""
    return isinstance(value, dict) and all(_is_figure(value.get(name), *_bounds(name)) for name in names)


def is_map(value: object, grid: Sequence[int]) -> bool:
    """Is it a figure of each cell of a grid, row by row?"""
    rows, columns = grid
    if not isinstance(value, list) or len(value) != rows:
        return False
    return all(isinstance(row, list) and len(row) == columns and all(map(_is_figure, row)) for row in value)


def are_scores(value: object) -> TypeGuard[dict]:
    """Are they scores by column, each a sum and how many there are of it?"""
    if not isinstance(value, dict) or not all(len(name) <= LONGEST and name.isprintable() for name in value):
        return False
    pairs = [pair for pair in value.values() if isinstance(pair, list) and len(pair) == 2]
    return len(pairs) == len(value) and all(_is_figure(one, -LARGEST) and _is_figure(of, 0.5) for one, of in pairs)


def _bounds(name: str) -> tuple[float, float]:
    return SHORTEST if name == "seconds" else 0, 1 if name in SHARES else LARGEST


def _is_figure(value: object, least: float = 0, most: float = LARGEST) -> bool:
    return isinstance(value, int | float) and type(value) is not bool and least <= value <= most  # which NaN is not
