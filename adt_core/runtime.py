"""Process-wide state that is kept between decodings.

Two other objects are also kept between decodings. They are attributes of a decoder (the transformer of a target), so
that they are freed together with the decoder's weights:

- the pool of batch slots (:mod:`.engine.pool`),
- `fallback`: slower settings, for devices on which drafting would change images with the default settings.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


class Runtime:
    """Process-wide state: cached results, content of files that could not be written, and state of CUDA graphs.

    Attributes:
        cached_results: Results of functions with the decorator `cached_per_runtime`, by function and arguments.
        kernel_verdicts: Results of the trials of Triton kernels (:mod:`.kernels.choice`), by operation and operands.
        recorded_verdicts: Set that gets all results that are looked up; None if nothing is recorded.
        notify: Shows a text to the user while the engine works, such as under a node; None to log it.
        trial_check: Cancellation callback that is called before each trial of a kernel, or None.
        kernel_failure: Reason why Triton kernels are off after a failure; "" if they are on.
        first_use_markers: Markers of this process (:mod:`.kernels.first_use`), by device.
        proven_devices: Devices on which an image was completed with kernels.
        product_settings: Settings of matrix products at the last decoding; None before the first one.
        kernel_choices: Results that concern a model, by its decoder (:mod:`.engine.device.invariance`).
        equal_products: Results of a test, by kind of matrix product and number of rows. The test checks whether one
            product of all rows is bitwise equal to separate products of tiles (groups of rows).
        invariance_reports: Results of the tests of batch invariance, by name of the test.
        product_reports: Results of the trial of float32 products, by heads, shapes of weights and numbers of threads.
        process: Id of the process that has loaded this package. A fork has another one.
        cpu_sample: Last measurement of the use of the CPU (:mod:`.engine.device.threads`).
        unsaved_files: Content of cache files that could not be written to the disk, by path.
        packed_weights: Packed copies of weights (:mod:`.models.packed`), by the id of the weight.
        half_heads: Weak reference to the copy of a head for drafts (:mod:`.drafters.half_head`), by its decoder.
        graph_failures: Reason why CUDA graphs are off for a model, by its decoder.
        capture_failure: Reason why CUDA graphs are off for all models; "" if they are on.
        streams: Pools of CUDA streams for capturing, by device.
    """

    def __init__(self) -> None:
        self.cached_results: dict[Hashable, Any] = {}
        self.equal_products: dict[Hashable, bool] = {}
        self.kernel_verdicts: dict[Hashable, Any] = {}
        self.recorded_verdicts: set[Any] | None = None
        self.notify: Callable[[str], None] | None = None
        self.trial_check: Callable[[], None] | None = None
        self.kernel_failure = ""
        self.first_use_markers: dict[Any, Path] = {}
        self.proven_devices: set[Any] = set()
        self.product_settings: Any = None
        self.kernel_choices: WeakKeyDictionary[Any, tuple] = WeakKeyDictionary()
        self.invariance_reports: dict[str, Any] = {}
        self.product_reports: dict[Hashable, Any] = {}
        self.process = os.getpid()
        self.cpu_sample: Any = None
        self.unsaved_files: dict[Path, dict] = {}
        self.packed_weights: dict[int, Any] = {}
        self.half_heads: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
        self.graph_failures: WeakKeyDictionary[Any, str] = WeakKeyDictionary()
        self.capture_failure = ""
        self.streams: dict[Hashable, Any] = {}


_runtime = Runtime()


def get_runtime() -> Runtime:
    """Return the state of this process."""
    return _runtime


@contextmanager
def new_runtime() -> Iterator[Runtime]:
    """Use an empty state within the block, as if the process had just started.

    The capture streams are kept. torch has a fixed number of streams per process, and existing graphs may still use
    them.

    Yields:
        The new state.
    """
    global _runtime
    before = _runtime
    _runtime = Runtime()
    _runtime.streams = before.streams
    _runtime.process = before.process
    try:
        yield _runtime
    finally:
        _runtime = before


def cached_per_runtime(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Cache the results of a function in the current runtime. The arguments of the function must be hashable.

    If the function raises an exception, nothing is cached.
    """

    @wraps(function)
    def cached(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        results = get_runtime().cached_results
        key = function, args, tuple(kwargs.items())
        if key not in results:
            results[key] = function(*args, **kwargs)
        return results[key]

    return cached
