"""Performance thresholds for an H100 or H200 ("bars"), and their values in the results of a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from adt_core.policies import PLAIN

from .device import CAPTURED, EAGER
from .kernels import BITS, ROUNDS
from .models import BOTH, SEVEN_B, TITLES
from .pieces import DRAFTS, FORWARD, LEVEL, PLAIN_ROUND, REST

MEANT_FOR = ("H100", "H200")


Rows = dict[str, list[dict]]
"""Result rows of a run, by the name of the part."""


class Bar(NamedTuple):
    """Performance threshold.

    Attributes:
        title: Description of the measured value.
        value: Function that returns the measured value from the rows of a run, or None if the rows do not contain it.
        bound: Threshold.
        most: True if the threshold is a maximum, False if it is a minimum.
    """

    title: str
    value: Callable[[Rows], float | None]
    bound: float
    most: bool = False

    def met(self, value: float) -> bool:
        """Return whether a measured value meets the threshold."""
        return value <= self.bound if self.most else value >= self.bound


def median_of(figure: dict | float | None) -> float | None:
    """Return the median of a figure. A figure is a number, or a dictionary with "median" and quartiles."""
    return figure["median"] if isinstance(figure, dict) else figure


def find(rows: list[dict], column: str, **values: object) -> float | None:
    """Return a figure from the first row that matches.

    Args:
        rows: Rows of a part.
        column: Column of the figure.
        **values: Values that the row must have in other columns.

    Returns:
        The figure, or None if there is none.
    """
    matching = (row for row in rows if all(row.get(key) == value for key, value in values.items()))
    return median_of(next(matching, {}).get(column))


def piece(rows: Rows, name: str, column: str, weights: str = "bf16") -> float | None:
    """Return a figure of a piece of the 7B model. A piece is a component of a round, see `pieces`.

    The figure is for the default launch mode: CUDA graphs on a GPU, single kernels otherwise.

    Args:
        rows: Rows of a run.
        name: Name of the piece.
        column: Column of the figure.
        weights: "bf16", "int8", "fp8" or "int4".
    """
    pieces = rows.get("pieces", [])
    mode = CAPTURED if any(row.get("launched") == CAPTURED for row in pieces) else EAGER
    return find(pieces, column, shape=SEVEN_B, weights=weights, launched=mode, piece=name)


def ratio(one: float | None, other: float | None) -> float | None:
    """Return the ratio of two figures, or None if one is missing."""
    return None if one is None or not other else one / other


def steps_of(name: str) -> Callable[[Rows], float | None]:
    """Return a function that returns the time of a piece, measured in plain rounds."""
    return lambda rows: piece(rows, name, "steps")


def speedup_with(weights: str) -> Callable[[Rows], float | None]:
    """Return a function that returns the speed-up of plain rounds with quantised weights over bfloat16 weights."""
    return lambda rows: ratio(piece(rows, PLAIN_ROUND, "ms"), piece(rows, PLAIN_ROUND, "ms", weights))


def bundled_speedup(rows: Rows) -> float | None:
    """Return the speed-up of the method `BOTH` over plain decoding on the bundled model, for one image at a time."""
    table = "Batches of the bundled model"
    return find(rows.get("batches", []), "times plain", table=table, method=TITLES[BOTH], images=1)


def kernels_speedup(name: str) -> Callable[[Rows], float | None]:
    """Return a function that returns the speed-up of rounds with Triton kernels, for a method of the 7B model."""
    values = {"table": ROUNDS, "weights": "bf16", "round": TITLES[name], "Triton": "on"}
    return lambda rows: find(rows.get("rounds", []), "times as fast", **values)


def differing_elements(rows: Rows) -> float | None:
    """Return how many results of the used Triton kernels depend on the number of rows; None if none was used."""
    used = [row for row in rows.get("bits", []) if row["table"] == BITS and row["Triton is used"]]
    counts = [count for row in used for column, count in row.items() if column.endswith(" rows")]
    return sum(counts) if counts else None


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
    Bar(f"{SEVEN}a plain round, speed-up by Triton kernels", kernels_speedup(PLAIN), 1.3),
    Bar(f"{SEVEN}a round with 24 drafts, speed-up by Triton kernels", kernels_speedup(BOTH), 1.2),
    Bar("used Triton kernels: elements that depend on the number of rows", differing_elements, 0, most=True),
    Bar(f"{SEVEN_B}: plain rounds in int8, speed-up over bf16", speedup_with("int8"), 1.0),
    Bar(f"bundled model: {TITLES[BOTH]}, speed-up over {TITLES[PLAIN]}", bundled_speedup, 3.0),
)
