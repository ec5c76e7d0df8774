"""The one way in which benchmarks compare: methods take turns, so a machine whose speed drifts slows all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

import numpy as np

from adt_lab.report import median_interval

Name, Task, Measured = TypeVar("Name"), TypeVar("Task"), TypeVar("Measured")


def in_turns(
    methods: Mapping[Name, Callable[[Task], Measured]], tasks: Iterable[Task], seed: int = 0
) -> Iterator[dict[Name, Measured]]:
    """What every method makes of each task, by its name. A task's methods run in an order drawn anew."""
    rng, names = np.random.default_rng(seed), list(methods)
    for task in tasks:
        done = {names[i]: methods[names[i]](task) for i in rng.permutation(len(names))}
        yield {name: done[name] for name in names}


def interval(values: Iterable[float]) -> str:
    """The median of values, and its 95 % bootstrap interval, in words."""
    found = np.array([*values])
    low, high = median_interval(found)
    return f"{np.median(found):.2f} ({low:.2f} to {high:.2f})"
