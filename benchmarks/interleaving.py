"""Interleaved measurements, their statistics and Markdown tables.

All benchmarks compare methods by running them alternately on each task, so that a change in the speed of the machine
affects every method alike.
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
    """Run every method on each task, in a new random order for each task.

    Args:
        methods: Callables by name.
        tasks: Argument of the callables, one after the other.
        seed: Seed of the orders.

    Yields:
        Results of one task by name, in the order of `methods`.
    """
    rng = np.random.default_rng(seed)
    names = list(methods)
    for task in tasks:
        results = {names[i]: methods[names[i]](task) for i in rng.permutation(len(names))}
        yield {name: results[name] for name in names}


def median_with_interval(values: Iterable[float]) -> list[float]:
    """Return the median of the values and the bounds of its 95 % bootstrap interval."""
    array = np.array([*values])
    return [float(np.median(array)), *median_interval(array)]


def format_interval(figure: Iterable[float]) -> str:
    """Format a value and the two bounds of its interval."""
    return "{:.2f} ({:.2f} to {:.2f})".format(*figure)


def format_median(values: Iterable[float]) -> str:
    """Format the median of the values and its 95 % bootstrap interval."""
    return format_interval(median_with_interval(values))


def row(*cells: object) -> str:
    """Return a line of a Markdown table; floats have two decimals."""
    return "| " + " | ".join(f"{cell:.2f}" if isinstance(cell, float) else str(cell) for cell in cells) + " |"


def header(*names: str) -> str:
    """Return the first two lines of a Markdown table."""
    return row(*names) + "\n" + "|---" * len(names) + "|"


def table(names: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """Return a Markdown table with these column names and rows."""
    return "\n".join([header(*names), *(row(*cells) for cells in rows)])
