"""What a fast engine should reach on an H100 or H200, and whether it does; from the rows of a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from adt_core.policies import PLAIN

from .device import CAPTURED, EAGER
from .models import BOTH, SEVEN_B, TITLES
from .pieces import DRAFTS, FORWARD, LEVEL, PLAIN_ROUND, REST

MEANT_FOR = ("H100", "H200")


class Bar(NamedTuple):
    """value: of the rows by part; None if they don't tell. most: it must be no more than the bound, else no less."""

    title: str
    value: Callable[[dict[str, list[dict]]], float | None]
    bound: float
    most: bool = False

    def met(self, value: float) -> bool:
        return value <= self.bound if self.most else value >= self.bound


def middle(figure: dict | float | None) -> float | None:
    """The median of a figure with a spread, or the figure."""
    return figure["median"] if isinstance(figure, dict) else figure


def find(rows: list[dict], column: str, **where: object) -> float | None:
    """The figure in a column of the first row that has these values; None if there is no such row."""
    found = (row for row in rows if all(row.get(key) == value for key, value in where.items()))
    return middle(next(found, {}).get(column))


def piece(rows: dict[str, list[dict]], name: str, column: str, weights: str = "bf16") -> float | None:
    """Of the 7B model, as the engine launches it by default: captured on CUDA."""
    pieces = rows.get("pieces", [])
    mode = CAPTURED if any(row.get("launched") == CAPTURED for row in pieces) else EAGER
    return find(pieces, column, shape=SEVEN_B, weights=weights, launched=mode, piece=name)


def ratio(one: float | None, other: float | None) -> float | None:
    return None if one is None or not other else one / other


def steps_of(name: str) -> Callable[[dict[str, list[dict]]], float | None]:
    """A piece in plain rounds."""
    return lambda rows: piece(rows, name, "steps")


def gain_of(weights: str) -> Callable[[dict[str, list[dict]]], float | None]:
    """How many times as fast a plain round is with these weights as in bfloat16."""
    return lambda rows: ratio(piece(rows, PLAIN_ROUND, "ms"), piece(rows, PLAIN_ROUND, "ms", weights))


def bundled_gain(rows: dict[str, list[dict]]) -> float | None:
    table = "Batches of the bundled model"
    return find(rows.get("batches", []), "times plain", table=table, method=TITLES[BOTH], images=1)


SEVEN, TREE = f"{SEVEN_B} in bf16: ", f"{FORWARD}{DRAFTS + 1}"
BARS = (
    Bar(
        f"{SEVEN}a plain round, share of the weight-streaming limit",
        lambda rows: piece(rows, PLAIN_ROUND, "share of the limit"),
        0.70,
    ),
    Bar(f"{SEVEN}a {TREE} nodes, in plain rounds", steps_of(TREE), 1.15, most=True),
    Bar(f"{SEVEN}a {LEVEL}, in plain rounds", steps_of(LEVEL), 0.06, most=True),
    Bar(f"{SEVEN}{REST} of a round, in plain rounds", steps_of(REST), 0.05, most=True),
    Bar(f"{SEVEN_B}: plain rounds in int8, times as fast as in bf16", gain_of("int8"), 1.0),
    Bar(f"bundled model: {TITLES[BOTH]}, times as fast as {TITLES[PLAIN]}", bundled_gain, 3.0),
)
