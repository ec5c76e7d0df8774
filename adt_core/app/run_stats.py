"""Figures of a run as a file tells them, which anybody may have written: numbers that a run can have."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeGuard

from ..untrusted import number, record

LARGEST = 10**12
"""Of all figures: a sum of many is still a number."""
SHARES = "substitution_rate", "agreement"
"""Figures that are 1 at most."""
SHORTEST = 1e-9
"""Seconds of a run, at least: speeds are ratios to them."""


FIGURE, SHARE, SECONDS = number(0, LARGEST), number(0, 1), number(SHORTEST, LARGEST)
_KINDS = {**dict.fromkeys(SHARES, SHARE), "seconds": SECONDS}


def are_run_stats(value: object, names: Iterable[str]) -> TypeGuard[dict]:
    """Is it a dictionary that has all these figures?"""
    return record({name: _KINDS.get(name, FIGURE) for name in names}).fits(value)
