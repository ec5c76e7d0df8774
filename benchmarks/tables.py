"""Markdown tables."""

from __future__ import annotations

from collections.abc import Iterable

from adt_core.run.race import Estimate


def row(*cells: object) -> str:
    """Return a line of a table. Floats get two decimals, and None is an empty cell."""
    return "| " + " | ".join(map(_text, cells)) + " |"


def _text(cell: object) -> str:
    if cell is None:
        return ""
    return f"{cell:.2f}" if isinstance(cell, float) else str(cell)


def header(*names: str) -> str:
    """Return the first two lines of a table: the column names, and the separator."""
    return row(*names) + "\n" + "|---" * len(names) + "|"


def table(names: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """Return a table from column names and rows of cells."""
    return "\n".join([header(*names), *(row(*cells) for cells in rows)])


def estimate(stored: Iterable[float | None] | None) -> str:
    """Return the cell for a median and its interval, which JSON stores as a list. None was not measured."""
    return "" if stored is None else str(Estimate(*stored))
