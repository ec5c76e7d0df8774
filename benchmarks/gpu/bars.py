"""Performance thresholds for an H100 or H200 ("bars"), and their values in the results of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from adt_core.policies import PLAIN

from .device import CAPTURED
from .kernels import BITS, DIFFERING, ROUNDS
from .models import MERGED, SEVEN_B, TITLES
from .pieces import DRAFTS, FORWARD, LEVEL, PLAIN_ROUND, REST

MEANT_FOR = ("H100", "H200")


Rows = dict[str, list[dict]]
"""Result rows of a run, by the name of the part."""


class Bar(NamedTuple):
    """Performance threshold.

    Attributes:
        title: Description of the measured value.
        part: Part of the benchmark that measures the value.
        column: Column of the value.
        where: Values that the row must have in other columns.
        bound: Threshold.
        most: True if the threshold is a maximum, False if it is a minimum.
    """

    title: str
    part: str
    column: str
    where: Mapping[str, object]
    bound: float
    most: bool = False

    def value(self, rows: Rows) -> float | None:
        """Return the worst measured value (of a value with quartiles the median), or None if no row contains it."""
        found = [row.get(self.column) for row in rows.get(self.part, []) if self.where.items() <= row.items()]
        values = [figure["median"] if isinstance(figure, dict) else figure for figure in found if figure is not None]
        return (max if self.most else min)(values, default=None)

    def met(self, value: float) -> bool:
        """Return whether a measured value meets the threshold."""
        return value <= self.bound if self.most else value >= self.bound


def _piece(title: str, name: str, column: str, bound: float, most: bool = False) -> Bar:
    """Return a bar for a piece (a component of a round) of the 7B model in bfloat16, launched as a CUDA graph."""
    where = {"shape": SEVEN_B, "weights": "bf16", "launched": CAPTURED, "piece": name}
    return Bar(f"{SEVEN_B} in bf16: {title}", "pieces", column, where, bound, most)


def _kernels(title: str, method: str, bound: float) -> Bar:
    """Return a bar for the speed-up of rounds of the 7B model by Triton kernels."""
    where = {"table": ROUNDS, "weights": "bf16", "round": TITLES[method], "Triton": "on"}
    return Bar(f"{SEVEN_B} in bf16: {title}, speed-up by Triton kernels", "rounds", "times as fast", where, bound)


TREE = f"{FORWARD}{DRAFTS + 1}"
BATCH = {"table": "Batches of the bundled model", "method": TITLES[MERGED], "images": 1}
USED = {"table": BITS, "Triton is used": True}
BARS = (
    _piece("a plain round, share of the weight-streaming limit", PLAIN_ROUND, "share of the limit", 0.70),
    _piece(f"a {TREE} nodes, in plain rounds", TREE, "steps", 1.15, most=True),
    _piece(f"a {LEVEL}, in plain rounds", LEVEL, "steps", 0.06, most=True),
    _piece(f"{REST} of a round, in plain rounds", REST, "steps", 0.05, most=True),
    _kernels("a plain round", PLAIN, 1.3),
    _kernels("a round with 24 drafts", MERGED, 1.2),
    Bar("used Triton kernels: elements that depend on the number of rows", "bits", DIFFERING, USED, 0, most=True),
    Bar(f"bundled model: {TITLES[MERGED]}, speed-up over {TITLES[PLAIN]}", "batches", "times plain", BATCH, 3.0),
)
