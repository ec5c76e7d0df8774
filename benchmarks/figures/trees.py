"""ADT-Tree against the best fixed trees."""

from __future__ import annotations

from ..adt_tree import CHOSEN_BY, measure
from ..interleaving import table
from .parts import FigurePart


def _pair(values: list[float]) -> str:
    """Format the figures of the fixed tree and of ADT-Tree."""
    return ", ".join(f"{value:.2f}" for value in values)


def _ratio(interval: list[float]) -> str:
    """Format a ratio of values and its interval. All three numbers are near 1, so they get three decimals."""
    return "{:.3f} ({:.3f} to {:.3f})".format(*interval)


def tables_of_trees(lines: list[dict]) -> dict[str, str]:
    """Return the table, by its name ``trees``. See `FigurePart.tables`."""
    columns = ["temperature", "drafts", "fixed tree", "tau", "mean depth", "calls", "value", "ratio of values"]
    columns += ["ratio, every level", "ratio, CPU"]
    rows = []
    for line in lines:
        first = line[CHOSEN_BY[0]]
        depths, calls, _ = zip(*first["figures"])
        shapes = ["{depth}, {width}".format(**line["fixed"][name]) for name in CHOSEN_BY]
        fixed = shapes[0] if shapes[0] == shapes[1] else f"{shapes[0]}; {shapes[1]}"
        figures = map(_pair, (first["tau"], depths, calls, first["values"]))
        ratios = (_ratio(line[name]["ratio"]) for name in (*CHOSEN_BY, "CPU"))
        rows.append([str(line["temperature"]), line["drafts"], fixed, *figures, *ratios])
    return {"trees": table(columns, rows)}


PARTS = {"trees": FigurePart(64, measure, tables_of_trees)}
