"""Performance thresholds for an H100 or H200, evaluated on the rows of a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from adt_core.policies import PLAIN

from .device import CAPTURED, EAGER
from .models import BOTH, SEVEN_B, TITLES
from .pieces import DRAFTS, FORWARD, LEVEL, PLAIN_ROUND, REST

MEANT_FOR = ("H100", "H200")


Rows = dict[str, list[dict]]
"""Rows of a run by part."""


class Bar(NamedTuple):
    """Performance threshold.

    Attributes:
        title: Description of the value.
        value: Returns the value from the rows of a run, or None if they don't contain it.
        bound: Threshold.
        most: Whether the threshold is a maximum; otherwise it is a minimum.
    """

    title: str
    value: Callable[[Rows], float | None]
    bound: float
    most: bool = False

    def met(self, value: float) -> bool:
        """Return whether the value reaches the threshold."""
        return value <= self.bound if self.most else value >= self.bound


def median_of(figure: dict | float | None) -> float | None:
    """Return the median of a figure with a spread, or the figure itself."""
    return figure["median"] if isinstance(figure, dict) else figure


def find(rows: list[dict], column: str, **values: object) -> float | None:
    """Return the figure in a column of the first row with these values, or None."""
    matching = (row for row in rows if all(row.get(key) == value for key, value in values.items()))
    return median_of(next(matching, {}).get(column))


def piece(rows: Rows, name: str, column: str, weights: str = "bf16") -> float | None:
    """Return a figure of a piece of the 7B model, launched as the engine does by default (captured on CUDA)."""
    pieces = rows.get("pieces", [])
    mode = CAPTURED if any(row.get("launched") == CAPTURED for row in pieces) else EAGER
    return find(pieces, column, shape=SEVEN_B, weights=weights, launched=mode, piece=name)


def ratio(one: float | None, other: float | None) -> float | None:
    """Return the ratio of two figures, or None if one is missing."""
    return None if one is None or not other else one / other


def steps_of(name: str) -> Callable[[Rows], float | None]:
    """Return a function for the time of a piece in plain rounds."""
    return lambda rows: piece(rows, name, "steps")


def speedup_with(weights: str) -> Callable[[Rows], float | None]:
    """Return a function for the speed-up of plain rounds with these weights over bfloat16."""
    return lambda rows: ratio(piece(rows, PLAIN_ROUND, "ms"), piece(rows, PLAIN_ROUND, "ms", weights))


def bundled_speedup(rows: Rows) -> float | None:
    """Return the bundled model's speed-up over plain decoding for one image."""
    table = "Batches of the bundled model"
    return find(rows.get("batches", []), "times plain", table=table, method=TITLES[BOTH], images=1)


SEVEN = f"{SEVEN_B} in bf16: "
TREE = f"{FORWARD}{DRAFTS + 1}"
BARS = (
    Bar(
        f"{SEVEN}a plain round, share of the weight-streaming limit",
        lambda rows: piece(rows, PLAIN_ROUND, "share of the limit"),
        0.70,
    ),
    Bar(f"{SEVEN}a {TREE} nodes, in plain rounds", steps_of(TREE), 1.15, most=True),
    Bar(f"{SEVEN}a {LEVEL}, in plain rounds", steps_of(LEVEL), 0.06, most=True),
    Bar(f"{SEVEN}{REST} of a round, in plain rounds", steps_of(REST), 0.05, most=True),
    Bar(f"{SEVEN_B}: plain rounds in int8, speed-up over bf16", speedup_with("int8"), 1.0),
    Bar(f"bundled model: {TITLES[BOTH]}, speed-up over {TITLES[PLAIN]}", bundled_speedup, 3.0),
)
