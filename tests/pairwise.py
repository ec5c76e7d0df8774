"""Pairwise test plans.

A test has several axes, for example family, draft mode and guidance. A row of the plan has one value of each axis. The
rows together contain every pair of values of two different axes. This needs far fewer rows than all combinations, and
finds most errors, because few errors depend on more than two values.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import combinations, product

Choice = tuple[str, str]  # (axis, one of its values)


def all_pairs(axes: Mapping[str, Sequence[str]]) -> list[tuple[Choice, Choice]]:
    """Return all pairs of values of two different axes, in the order of the axes."""
    return [((one, a), (other, b)) for one, other in combinations(axes, 2) for a, b in product(axes[one], axes[other])]


def pairwise(
    axes: Mapping[str, Sequence[str]], excluded: Collection[tuple[Choice, Choice]] = ()
) -> list[dict[str, str]]:
    """Return rows that together contain all pairs of values. Each row has a value of every axis.

    The algorithm is greedy and deterministic. A new row starts with the first pair that no earlier row contains. For
    each other axis, the row gets the value that adds the largest number of pairs that no earlier row contains.

    Args:
        axes: Axis -> its values.
        excluded: Pairs, as from :func:`all_pairs`, that no row may contain.
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
    """Return a few of the rows that together contain every value of every axis. The choice is deterministic."""
    missing = {choice for row in rows for choice in row.items()}
    chosen = []
    while missing:
        chosen.append(max(rows, key=lambda row: len(missing & row.items())))
        missing -= chosen[-1].items()
    return chosen
