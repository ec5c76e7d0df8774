"""Pairwise test plans: few rows in which any two values of two axes occur together.

Most errors depend on at most two values.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import combinations, product

Choice = tuple[str, str]
"""Axis and one of its values."""


def all_pairs(axes: Mapping[str, Sequence[str]]) -> list[tuple[Choice, Choice]]:
    """Return all pairs of values of two different axes, in the order of the axes."""
    return [((one, a), (other, b)) for one, other in combinations(axes, 2) for a, b in product(axes[one], axes[other])]


def pairwise(
    axes: Mapping[str, Sequence[str]], excluded: Collection[tuple[Choice, Choice]] = ()
) -> list[dict[str, str]]:
    """Return rows, each with a value of every axis, that together contain all pairs.

    The algorithm is greedy and deterministic: a row starts with the first pair that is not covered yet. Each other axis
    gets the value that covers most uncovered pairs.

    Args:
        axes: Axis -> its values.
        excluded: Pairs of :func:`all_pairs` that no row may contain.
    """
    missing = {pair: None for pair in all_pairs(axes) if pair not in excluded}
    order = list(axes)
    rows = []

    def pairs_with(row: dict[str, str], choice: Choice) -> list[tuple[Choice, Choice]]:
        return [tuple(sorted((other, choice), key=lambda one: order.index(one[0]))) for other in row.items()]

    while missing:
        row = dict(next(iter(missing)))
        for axis in axes:
            if axis not in row:
                pairs = {value: pairs_with(row, (axis, value)) for value in axes[axis]}
                possible = [value for value in pairs if not set(pairs[value]) & set(excluded)]
                row[axis] = max(possible, key=lambda value: sum(pair in missing for pair in pairs[value]))
        rows.append({axis: row[axis] for axis in axes})
        for pair in combinations(rows[-1].items(), 2):
            missing.pop(pair, None)
    return rows


def each_once(rows: Sequence[Mapping[str, str]]) -> list[Mapping[str, str]]:
    """Return a subset of the rows that contains every choice of all rows; greedy and deterministic."""
    missing = {choice for row in rows for choice in row.items()}
    chosen = []
    while missing:
        chosen.append(max(rows, key=lambda row: len(missing & row.items())))
        missing -= chosen[-1].items()
    return chosen
