"""Validation of run statistics, such as seconds and tau, that are read from untrusted files."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeGuard

from ..untrusted import number, record

LARGEST = 10**12
"""Upper bound of all statistics. It keeps sums of statistics finite."""
SHARES = "substitution_rate", "agreement"
"""Names of statistics whose values are between 0 and 1."""
SHORTEST = 1e-9
"""Lower bound of durations in seconds. It is above 0, because a speed is computed by dividing by a duration."""

FIGURE = number(0, LARGEST)
SHARE = number(0, 1)
SECONDS = number(SHORTEST, LARGEST)
_KINDS = {**dict.fromkeys(SHARES, SHARE), "seconds": SECONDS}


def are_run_stats(value: object, names: Iterable[str]) -> TypeGuard[dict]:
    """Return whether a value is a dictionary that contains a valid value for every required statistic.

    Args:
        names: Names of the required statistics, such as "seconds".
    """
    return record({name: _KINDS.get(name, FIGURE) for name in names}).fits(value)
