"""Comparison of the speed of methods that take turns, and its statistics.

Methods can take turns by tasks (:func:`by_tasks`): all methods run the first task, then all run the second task. They
can also take turns by rounds (:func:`by_rounds`): all decode one image side by side. In both cases, a change of the
machine's load affects all methods, so the ratios of their times stay correct.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from typing import NamedTuple, TypeVar

import numpy as np

from ..engine.decoding import WARM_UP, Decoding
from ..messages import message

Name = TypeVar("Name")
Task = TypeVar("Task")
Result = TypeVar("Result")

MIN_SAMPLES = 6
"""Minimum number of values for an interval. Simulated bootstrap intervals of the median contain the true median in only
51, 75 and 88 % of all cases for 2, 3 and 4 values, and in at least 92 % from 6 values on."""
_RESAMPLES = 4000


def order(names: Iterable[Name], number: int = 0, seed: int = 0) -> list[Name]:
    """Return the order in which methods run a task.

    Each pair of tasks has a random order, which is reversed for its second task. So no method often runs first.

    Args:
        number: Number of the task, from 0. The order depends only on this number and the seed.
    """
    names = list(names)
    rng = np.random.Generator(np.random.Philox(key=np.array([number // 2, seed], dtype=np.uint64)))
    ordered = [names[i] for i in rng.permutation(len(names))]
    return ordered[::-1] if number % 2 else ordered


def turn(
    methods: Mapping[Name, Callable[[Task], Result]],
    task: Task,
    number: int = 0,
    progress: Callable[[int, Name], None] | None = None,
) -> dict[Name, Result]:
    """Run every method on a task, in the :func:`order` of its number.

    Args:
        progress: Called before each method with the number of methods that have run the task, and the name of the
            method. It may raise an exception to cancel.

    Returns:
        The results by name, in the order of `methods`.
    """
    results = {}
    for done, name in enumerate(order(methods, number)):
        if progress is not None:
            progress(done, name)
        results[name] = methods[name](task)
    return {name: results[name] for name in methods}


def by_tasks(methods: Mapping[Name, Callable[[Task], Result]], tasks: Iterable[Task]) -> Iterator[dict[Name, Result]]:
    """Run every method on each task, and yield the results of each task as :func:`turn` returns them."""
    for number, task in enumerate(tasks):
        yield turn(methods, task, number)


def by_rounds(decodings: Mapping[Name, Decoding], tokens: int | None = None) -> Iterator[Name]:
    """Run decodings side by side, and yield the name of each after its round. The one with the fewest tokens is next.

    Args:
        tokens: Number of finished tokens at which a decoding stops (default: all).
    """
    with ExitStack() as stack:
        running = {name: stack.enter_context(closing(iter(decoding))) for name, decoding in decodings.items()}
        while running:
            name = min(running, key=lambda name: decodings[name].done_tokens)
            is_running = next(running[name], None) is not None
            if is_running:
                yield name
            if not is_running or tokens is not None and decodings[name].done_tokens >= tokens:
                del running[name]


def warm_up(decodings: Iterable[Decoding], rounds: int = WARM_UP) -> None:
    """Decode the first rounds of decodings that are not used otherwise; see :meth:`Decoding.warm_up`."""
    for decoding in decodings:
        decoding.warm_up(rounds)


class Estimate(NamedTuple):
    """Median of measured values.

    Attributes:
        value: The median.
        low: Lower bound of its 95 % bootstrap interval; None for fewer than `MIN_SAMPLES` values.
        high: Upper bound, or None.
    """

    value: float
    low: float | None = None
    high: float | None = None

    def __str__(self) -> str:
        return self.text()

    def text(self, digits: int = 2) -> str:
        """Return text such as "1.50 (1.42 to 1.61)", or "1.50" if there is no interval."""
        interval = "" if self.low is None else f" ({self.low:.{digits}f} to {self.high:.{digits}f})"
        return f"{self.value:.{digits}f}{interval}"

    @property
    def remark(self) -> str:
        """Sentence with the interval for users, or ""."""
        if self.low is None:
            return ""
        return message("race.interval", low=f"{self.low:.1f}", high=f"{self.high:.1f}")


def median(values: Sequence[float] | np.ndarray) -> Estimate:
    """Return the median of some values with its 95 % bootstrap interval. The random seed is fixed."""
    middle = float(np.median(values))
    if len(values) < MIN_SAMPLES:
        return Estimate(middle)
    rng = np.random.Generator(np.random.Philox(key=0))
    medians = np.median(rng.choice(values, (_RESAMPLES, len(values))), axis=1)
    return Estimate(middle, float(np.quantile(medians, 0.025)), float(np.quantile(medians, 0.975)))


def speedup(baseline: Sequence[float], seconds: Sequence[float]) -> Estimate:
    """Return the median over all tasks of `baseline` divided by `seconds`, which are times of the same tasks."""
    return median(np.divide(baseline, seconds))


def ratio_of_totals(baseline: Sequence[float], seconds: Sequence[float]) -> float:
    """Return the speed-up as papers report it: the ratio of total times. Bootstrap intervals of it are too narrow."""
    return float(np.sum(baseline) / np.sum(seconds))
