"""Interleaved measurements, their statistics, and Markdown tables.

Interleaved means that a benchmark runs all methods on the first task, then all methods on the second task, and so on.
If the speed of the machine changes, the change affects all methods equally.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

import numpy as np

from adt_core.lab.report import median_interval

Name = TypeVar("Name")
Task = TypeVar("Task")
Result = TypeVar("Result")


def interleave(
    methods: Mapping[Name, Callable[[Task], Result]], tasks: Iterable[Task], seed: int = 0
) -> Iterator[dict[Name, Result]]:
    """Run every method on each task. The order of the methods is random and differs from task to task.

    Yields:
        For each task, the results of all methods by name. The names have the order of `methods`.
    """
    rng = np.random.default_rng(seed)
    names = list(methods)
    for task in tasks:
        results = {names[i]: methods[names[i]](task) for i in rng.permutation(len(names))}
        yield {name: results[name] for name in names}


def median_with_interval(values: Iterable[float]) -> list[float]:
    """Return the median of some values, and the lower and upper bound of its 95 % bootstrap interval."""
    array = np.array([*values])
    return [float(np.median(array)), *median_interval(array)]


def format_interval(figure: Iterable[float]) -> str:
    """Format a value and the two bounds of its interval, such as "1.50 (1.42 to 1.61)"."""
    return "{:.2f} ({:.2f} to {:.2f})".format(*figure)


def format_median(values: Iterable[float]) -> str:
    """Format the median of some values and its 95 % bootstrap interval, such as "1.50 (1.42 to 1.61)"."""
    return format_interval(median_with_interval(values))


def row(*cells: object) -> str:
    """Return a line of a Markdown table. Floats get two decimals."""
    return "| " + " | ".join(f"{cell:.2f}" if isinstance(cell, float) else str(cell) for cell in cells) + " |"


def header(*names: str) -> str:
    """Return the first two lines of a Markdown table: the column names, and the separator."""
    return row(*names) + "\n" + "|---" * len(names) + "|"


def table(names: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """Return a Markdown table from column names and rows of cells."""
    return "\n".join([header(*names), *(row(*cells) for cells in rows)])
