"""Few rows of many axes, in which every two values of two axes meet: most mistakes need no more than two causes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import combinations, product

Choice = tuple[str, str]
"""An axis, and one of its values."""


def all_pairs(axes: Mapping[str, Sequence[str]]) -> list[tuple[Choice, Choice]]:
    """Every value of an axis with every value of each axis behind it."""
    return [((one, a), (other, b)) for one, other in combinations(axes, 2) for a, b in product(axes[one], axes[other])]


def pairwise(
    axes: Mapping[str, Sequence[str]], excluded: Collection[tuple[Choice, Choice]] = ()
) -> list[dict[str, str]]:
    """Rows, a value of every axis each. ``excluded``: pairs of :func:`all_pairs` that are in no row.

    Greedy, and always the same: a row begins with the first pair that has not met, and the other axes get in turn the
    value that meets most of the others for the first time.
    """
    missing = {pair: None for pair in all_pairs(axes) if pair not in excluded}
    order, rows = list(axes), []

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
    """Return few of the rows, in which every choice of all rows occurs. Greedy, and always the same."""
    missing, chosen = {choice for row in rows for choice in row.items()}, []
    while missing:
        chosen.append(max(rows, key=lambda row: len(missing & row.items())))
        missing -= chosen[-1].items()
    return chosen
