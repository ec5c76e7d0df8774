"""The one way in which benchmarks compare: methods take turns, so a machine whose speed drifts slows all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

import numpy as np

from adt_core.lab.report import median_interval

Name, Task, Measured = TypeVar("Name"), TypeVar("Task"), TypeVar("Measured")


def in_turns(
    methods: Mapping[Name, Callable[[Task], Measured]], tasks: Iterable[Task], seed: int = 0
) -> Iterator[dict[Name, Measured]]:
    """What every method makes of each task, by its name. A task's methods run in an order drawn anew."""
    rng, names = np.random.default_rng(seed), list(methods)
    for task in tasks:
        done = {names[i]: methods[names[i]](task) for i in rng.permutation(len(names))}
        yield {name: done[name] for name in names}


def middle(values: Iterable[float]) -> list[float]:
    """The median of values, and its 95 % bootstrap interval."""
    found = np.array([*values])
    return [float(np.median(found)), *median_interval(found)]


def words(figure: Iterable[float]) -> str:
    """A figure and where it lies between, in words."""
    return "{:.2f} ({:.2f} to {:.2f})".format(*figure)


def interval(values: Iterable[float]) -> str:
    """:func:`middle` in words."""
    return words(middle(values))


def row(*cells: object) -> str:
    """A line of a Markdown table. Numbers with a fraction have two digits behind the point."""
    return "| " + " | ".join(f"{cell:.2f}" if isinstance(cell, float) else str(cell) for cell in cells) + " |"


def head(*names: str) -> str:
    """The first two lines of a Markdown table."""
    return row(*names) + "\n" + "|---" * len(names) + "|"


def table(names: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """A Markdown table."""
    return "\n".join([head(*names), *(row(*cells) for cells in rows)])
