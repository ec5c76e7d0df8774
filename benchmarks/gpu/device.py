"""The machine, its software versions, and its highest memory rate. This module also has the tools for all other parts.

The memory rate is measured in three ways. *Read* sums a large tensor. *Multiply* multiplies a large matrix by a vector,
which reads memory like the matrix products of a plain round. *Copy* copies a tensor and counts the bytes read and the
bytes written. All other parts use the highest of the three rates as the limit of the device.
"""

from __future__ import annotations

import gc
import json
import os
import platform
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

from adt_core.engine.graphs import VARIABLE as GRAPHS
from adt_core.run.race import by_tasks
from adt_core.version import VERSION

Case = tuple[str, Callable[[], Iterable[dict]]]
"""Name of a case, and function that yields the rows of the case.

A part of the benchmark is a list of cases. If one case fails, the others still run."""
EAGER = "eager"  # launch mode without CUDA graphs
CAPTURED = "captured"  # launch mode with CUDA graphs
_DEVICE_CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset")
_LAUNCH_CALLS = ("Launch", "Memcpy", "Memset")


def the_device() -> torch.device:
    """Return the device to measure: CUDA if it is available, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def usual_dtype() -> torch.dtype:
    """Return the dtype in which the bundled model is measured on this device."""
    return torch.bfloat16 if torch.cuda.is_available() else torch.float32


def modes() -> tuple[str, ...]:
    """Return the launch modes that this device supports."""
    return (CAPTURED, EAGER) if torch.cuda.is_available() else (EAGER,)


def describe_error(error: BaseException) -> str:
    """Return the class of an error and the first line of its message."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else 'no message'}"


# ---- time -----------------------------------------------------------------------------------------


def synchronise() -> None:
    """Wait until the device has finished all kernels. Raise RuntimeError if a kernel has failed."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def seconds_of(call: Callable[[], object]) -> float:
    """Return the wall time of a call in seconds, including the time until the device has finished its kernels."""
    synchronise()
    started = time.perf_counter()
    call()
    synchronise()
    return time.perf_counter() - started


def spread(values: Iterable[float], scale: float = 1.0) -> dict[str, float]:
    """Return the median and the quartiles of some values.

    Args:
        scale: Factor for all values, for example 1000 to convert seconds to milliseconds.
    """
    low, median, high = (float(value) for value in np.percentile([scale * value for value in values], (25, 50, 75)))
    return {"median": median, "low": low, "high": high}


def measure_interleaved(
    calls: Mapping[str, Callable[[], float]], repeats: int
) -> tuple[dict[str, list[float]], dict[str, str]]:
    """Call all functions once, then all functions again, and so on.

    If a function raises an exception, it is not called again.

    Returns:
        Two dictionaries by name: the results of all functions that did not fail, and the error of each function that
        failed.
    """
    failed: dict[str, str] = {}

    def run(_: int, name: str) -> float | None:
        try:
            return None if name in failed else calls[name]()
        except Exception as error:  # continue with the other functions
            failed[name] = describe_error(error)
            synchronise()
            return None

    results = list(by_tasks({name: partial(run, name=name) for name in calls}, range(repeats)))
    return {name: [result[name] for result in results] for name in calls if name not in failed}, failed


# ---- launches ---------------------------------------------------------------------------------------


class Activity(NamedTuple):
    """Work of the GPU during a call."""

    kernels: int  # number of kernels and copies that ran
    launches: int  # number of host calls that launched kernels or copies
    busy: float  # time in seconds during which at least one kernel or copy ran


def activity(events: Iterable[dict]) -> Activity:
    """Summarise the events of a profiler trace. Time in which several kernels run counts only once as busy time."""
    events = [event for event in events if event.get("ph") == "X"]
    kernels = sorted((float(e["ts"]), float(e["dur"])) for e in events if e.get("cat") in _DEVICE_CATEGORIES)
    calls = [event["name"] for event in events if event.get("cat") in ("cuda_runtime", "cuda_driver")]
    busy = 0.0
    end = -np.inf
    for start, duration in kernels:
        busy += max(0.0, start + duration - max(start, end))
        end = max(end, start + duration)
    launches = sum(any(part in call for part in _LAUNCH_CALLS) for call in calls)
    return Activity(len(kernels), launches, busy / 1e6)


def columns_of(activity: Activity | None, seconds: float) -> dict[str, float | None]:
    """Return the columns of a table with the work of the GPU in a call; None is not known.

    Args:
        seconds: Time of the call without the profiler.
    """
    return {
        "kernels": activity and activity.kernels,
        "launches": activity and activity.launches,
        "idle": activity and max(0.0, 1 - activity.busy / seconds),
    }


def profiled(call: Callable[[], object]) -> Activity | None:
    """Run a call under the profiler, and return its activity. Return None if the profiler records no kernel."""
    kinds = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * torch.cuda.is_available()
    with tempfile.TemporaryDirectory() as folder:
        with profile(activities=kinds) as profiler:
            call()
            synchronise()
        file = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(file))
        events = json.loads(file.read_text(encoding="utf-8"))["traceEvents"]
    found = activity(events)
    return found if found.kernels else None


def capture(call: Callable[[], object]) -> Callable[[], object]:
    """Capture a call as a CUDA graph and return a function that replays it.

    Raises:
        RuntimeError: If the call cannot be captured.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return partial(_replay, graph, call)


def _replay(graph: torch.cuda.CUDAGraph, _call: object) -> None:
    """Replay a graph. The unused argument keeps the memory that the graph reads allocated."""
    graph.replay()


def launch_mode(mode: str) -> AbstractContextManager:
    """Set the launch mode of the engine during the block. `mode` is `EAGER` or `CAPTURED`."""
    return mock.patch.dict(os.environ, {GRAPHS: "0" if mode == EAGER else "1"})


# ---- memory -----------------------------------------------------------------------------------------


def free_memory() -> None:
    """Release unused GPU memory and reset the peak counters. Without CUDA, do nothing."""
    if torch.cuda.is_available():
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def peaks() -> tuple[int, int] | None:
    """Return the peak of the allocated and of the reserved bytes since :func:`free_memory`, or None without CUDA."""
    if not torch.cuda.is_available():
        return None
    return torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()


def limit_memory(limit: int | None) -> None:
    """Limit the GPU memory of this process in bytes. None removes the limit. Without CUDA, do nothing."""
    if torch.cuda.is_available():
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(1.0 if limit is None else min(1.0, limit / total))


# ---- the part -------------------------------------------------------------------------------------


def memory_rates(size: int, repeats: int) -> dict[str, dict[str, float]]:
    """Measure the memory rate with three kernels.

    Returns:
        Median and quartiles in bytes per second, by kernel: "read", "multiply" and "copy".
    """
    device = the_device()
    dtype = usual_dtype()
    columns = 8192
    width = torch.empty((), dtype=dtype).element_size()
    matrix = torch.ones(max(1, size // (columns * width)), columns, dtype=dtype, device=device)
    vector = torch.ones(columns, dtype=dtype, device=device)
    other = torch.empty_like(matrix)
    read = matrix.numel() * width
    kernels = {
        "read": (read, matrix.view(torch.float32).sum),
        "multiply": (read, lambda: matrix @ vector),
        "copy": (2 * read, lambda: other.copy_(matrix)),
    }
    calls = {name: partial(seconds_of, call) for name, (_, call) in kernels.items()}
    for call in calls.values():
        call()  # warm-up
    times, _ = measure_interleaved(calls, repeats)
    return {name: spread([kernels[name][0] / seconds for seconds in values]) for name, values in times.items()}


def highest_memory_rate(rehearse: bool) -> float:
    """Return the highest median of :func:`memory_rates`, in bytes per second."""
    rates = memory_rates(2**22 if rehearse else 2**32, 3 if rehearse else 10)
    free_memory()
    return max(rate["median"] for rate in rates.values())


def driver() -> str | None:
    """Return the version of the GPU driver, or None if there is no driver."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        lines = subprocess.run(command, capture_output=True, text=True, timeout=30).stdout.split()
    except (OSError, subprocess.TimeoutExpired):
        return None
    return lines[0] if lines else None


def versions() -> dict:
    """Return the names and versions of the hardware and software."""
    import transformers  # the import takes a second

    found = {
        "device": platform.processor() or platform.machine(),
        "driver": driver(),
        "adt-tree": VERSION,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "cuda": torch.version.cuda,
        "cores": os.cpu_count(),
    }
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        found |= {
            "device": properties.name,
            "capability": f"{properties.major}.{properties.minor}",
            "memory_gib": properties.total_memory / 2**30,
            "multiprocessors": properties.multi_processor_count,
            "cudnn": torch.backends.cudnn.version(),
            "allocator": torch.cuda.get_allocator_backend(),
        }
    return found


def cases(rehearse: bool) -> list[Case]:
    """Return the cases of this part: versions, memory rates and launch times."""

    def names() -> Iterator[dict]:
        yield {"table": "The machine", **versions()}

    def rates() -> Iterator[dict]:
        for kind, rate in memory_rates(2**22 if rehearse else 2**32, 3 if rehearse else 20).items():
            yield {"table": "Reading memory", "kernel": kind, "GB/s": {key: x / 1e9 for key, x in rate.items()}}

    def launches() -> Iterator[dict]:
        number = torch.zeros(1, device=the_device())
        adds = [seconds_of(lambda: [number.add_(1) for _ in range(200)]) / 200 for _ in range(21)]
        waits = [seconds_of(lambda: None) for _ in range(21)]
        yield {"table": "Launching", "what": "add to one number", "microseconds": spread(adds, 1e6)}
        yield {"table": "Launching", "what": "wait for an idle device", "microseconds": spread(waits, 1e6)}

    return [("versions", names), ("reading memory", rates), ("launching", launches)]
