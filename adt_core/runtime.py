"""State of this process that outlives a decoding.

Two things are kept elsewhere, because they are freed with the weights to which they belong: a decoder's pooled batch
slots (:mod:`.engine.pool`) and its `fallback`, which `Decoding` sets when it starts.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


class Runtime:
    """Process-wide state: results of checks, measurements and captures on the devices.

    Attributes:
        cached_results: Results of functions decorated with `cached_per_runtime`, by function and arguments.
        equal_products: For each kind of matrix product and number of rows, whether one product of all rows is bitwise
            equal to the tiled one.
        invariance_reports: Results of the batch invariance trial, by name.
        unsaved_files: Content of cache files that could not be written, by path.
        graph_failures: Why CUDA graphs are off for a model, by its decoder.
        capture_failure: Why CUDA graphs are off for all models; "" while they are not.
        streams: Pools of capture streams, by device.
    """

    def __init__(self) -> None:
        self.cached_results: dict[Hashable, Any] = {}
        self.equal_products: dict[Hashable, bool] = {}
        self.invariance_reports: dict[str, Any] = {}
        self.unsaved_files: dict[Path, dict] = {}
        self.graph_failures: WeakKeyDictionary[Any, str] = WeakKeyDictionary()
        self.capture_failure = ""
        self.streams: dict[Hashable, Any] = {}


_runtime = Runtime()


def get_runtime() -> Runtime:
    """Return the state of this process."""
    return _runtime


@contextmanager
def new_runtime() -> Iterator[Runtime]:
    """Replace the state of this process within the block, as if it had just started.

    Capture streams are kept: torch has a fixed number of them per process, and graphs that were captured before may
    still use theirs.

    Yields:
        The new state.
    """
    global _runtime
    before = _runtime
    _runtime = Runtime()
    _runtime.streams = before.streams
    try:
        yield _runtime
    finally:
        _runtime = before


def cached_per_runtime(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Cache the results of a function of hashable arguments in the current runtime; exceptions are not cached."""

    @wraps(function)
    def cached(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        results = get_runtime().cached_results
        key = function, args, tuple(kwargs.items())
        if key not in results:
            results[key] = function(*args, **kwargs)
        return results[key]

    return cached
