"""The machine, what it says of itself, and how fast it can read memory at best.

*Read* sums a large tensor, and *multiply* takes a large matrix times a vector, as a plain step reads weights. *Copy*
counts what is read and what is written. The limit of all later parts is the fastest of the three.
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
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

from adt_core.version import VERSION

from ..interleaving import interleave

Case = tuple[str, Callable[[], Iterable[dict]]]
"""A part is a list of cases: a name, and what measures its rows. Each may fail without the others."""
GRAPHS = "ADT_TREE_GRAPHS"
"""Environment variable: "0" makes the engine launch its kernels one by one."""
EAGER, CAPTURED = "eager", "captured"
_ON_THE_GPU = ("kernel", "gpu_memcpy", "gpu_memset")
_CALLS = ("Launch", "Memcpy", "Memset")


def the_device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def modes() -> tuple[str, ...]:
    """How a round can be launched here."""
    return (CAPTURED, EAGER) if torch.cuda.is_available() else (EAGER,)


def last_line(error: BaseException) -> str:
    """What an error says, in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else 'no message'}"


# ---- time -----------------------------------------------------------------------------------------


def synchronise() -> None:
    """Wait for the device. Raises where an earlier kernel has failed."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def seconds_of(call: Callable[[], object]) -> float:
    """By the host's clock, from an idle device to an idle device."""
    synchronise()
    started = time.perf_counter()
    call()
    synchronise()
    return time.perf_counter() - started


def spread(values: Iterable[float], scale: float = 1.0) -> dict[str, float]:
    """Median and middle half of what was measured."""
    low, median, high = (float(value) for value in np.percentile([scale * value for value in values], (25, 50, 75)))
    return {"median": median, "low": low, "high": high}


def interleaved(
    calls: Mapping[str, Callable[[], float]], repeats: int
) -> tuple[dict[str, list[float]], dict[str, str]]:
    """What calls return in turns, by name; and the errors of those that failed, which then take no further turn."""
    failed: dict[str, str] = {}

    def turn(_: int, name: str) -> float | None:
        try:
            return None if name in failed else calls[name]()
        except Exception as error:  # one that can't be measured must not stop the others
            failed[name] = last_line(error)
            synchronise()
            return None

    turns = list(interleave({name: partial(turn, name=name) for name in calls}, range(repeats)))
    return {name: [one[name] for one in turns] for name in calls if name not in failed}, failed


# ---- launches ---------------------------------------------------------------------------------------


class Activity(NamedTuple):
    """What the device did: kernels and copies that ran, calls of the host that launched them, seconds at work."""

    kernels: int
    launches: int
    busy: float
    names: dict[str, float]


def activity(events: Iterable[dict]) -> Activity:
    """Of the events of a trace. Kernels that ran at the same time count once as seconds at work."""
    events = [event for event in events if event.get("ph") == "X"]
    ran = sorted((float(e["ts"]), float(e["dur"]), e["name"]) for e in events if e.get("cat") in _ON_THE_GPU)
    calls = [event["name"] for event in events if event.get("cat") in ("cuda_runtime", "cuda_driver")]
    busy, end, names = 0.0, -np.inf, {}
    for start, duration, name in ran:
        busy += max(0.0, start + duration - max(start, end))
        end = max(end, start + duration)
        names[name] = names.get(name, 0.0) + duration / 1e6
    return Activity(len(ran), sum(any(part in call for part in _CALLS) for call in calls), busy / 1e6, names)


def profiled(call: Callable[[], object]) -> Activity | None:
    """What the device does in a call; None where that can't be seen. The call runs in any case."""
    kinds = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * torch.cuda.is_available()
    with tempfile.TemporaryDirectory() as folder:
        with profile(activities=kinds) as seen:
            call()
            synchronise()
        file = Path(folder) / "trace.json"
        seen.export_chrome_trace(str(file))
        events = json.loads(file.read_text(encoding="utf-8"))["traceEvents"]
    seen = activity(events)
    return seen if seen.kernels else None


def recorded(call: Callable[[], object]) -> Callable[[], object]:
    """The same as a CUDA graph. Raises RuntimeError for what can't be captured."""
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


def _replay(graph: torch.cuda.CUDAGraph, _: object) -> None:
    """Replay what was captured of a call, which has to live as long: the graph reads its memory."""
    graph.replay()


@contextmanager
def launched(mode: str) -> Iterator[None]:
    """Within it the engine launches its kernels so."""
    before = os.environ.get(GRAPHS)
    os.environ[GRAPHS] = "0" if mode == EAGER else "1"
    try:
        yield
    finally:
        os.environ.pop(GRAPHS) if before is None else os.environ.update({GRAPHS: before})


# ---- memory -----------------------------------------------------------------------------------------


def free_memory() -> None:
    """Give back what nobody uses any more, and count peaks anew. Does nothing without CUDA."""
    if torch.cuda.is_available():
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def peaks() -> tuple[int, int] | None:
    """Bytes allocated and reserved at most since :func:`free_memory`; None without CUDA."""
    if not torch.cuda.is_available():
        return None
    return torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()


def limit_memory(wanted: int | None) -> None:
    """Let this process have so many bytes of the device; None lifts the limit. Does nothing without CUDA."""
    if torch.cuda.is_available():
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(1.0 if wanted is None else min(1.0, wanted / total))


# ---- the part -------------------------------------------------------------------------------------


def streaming(size: int, repeats: int) -> dict[str, dict[str, float]]:
    """Bytes a second with ``size`` bytes, by kind of kernel."""
    device = the_device()
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    columns, width = 8192, torch.empty((), dtype=dtype).element_size()
    matrix = torch.ones(max(1, size // (columns * width)), columns, dtype=dtype, device=device)
    vector, other = torch.ones(columns, dtype=dtype, device=device), torch.empty_like(matrix)
    read = matrix.numel() * width
    kernels = {
        "read": (read, matrix.view(torch.float32).sum),
        "multiply": (read, lambda: matrix @ vector),
        "copy": (2 * read, lambda: other.copy_(matrix)),
    }
    calls = {name: lambda call=call: seconds_of(call) for name, (_, call) in kernels.items()}
    for call in calls.values():
        call()  # first calls are slow
    taken, _ = interleaved(calls, repeats)
    return {name: spread([kernels[name][0] / seconds for seconds in values]) for name, values in taken.items()}


def limit(rehearse: bool) -> float:
    """Bytes a second at which this device can read weights at best."""
    found = max(rate["median"] for rate in streaming(2**22 if rehearse else 2**32, 3 if rehearse else 10).values())
    free_memory()
    return found


def driver() -> str | None:
    """Version of the driver; None without one."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        lines = subprocess.run(command, capture_output=True, text=True, timeout=30).stdout.split()
    except (OSError, subprocess.TimeoutExpired):
        return None
    return lines[0] if lines else None


def versions() -> dict:
    """Names and versions of what is measured."""
    import transformers  # takes a second

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
        of = torch.cuda.get_device_properties(0)
        found |= {
            "device": of.name,
            "capability": f"{of.major}.{of.minor}",
            "memory_gib": of.total_memory / 2**30,
            "multiprocessors": of.multi_processor_count,
            "cudnn": torch.backends.cudnn.version(),
            "allocator": torch.cuda.get_allocator_backend(),
        }
    return found


def cases(rehearse: bool) -> list[Case]:
    def names() -> Iterator[dict]:
        yield {"table": "The machine", **versions()}

    def rates() -> Iterator[dict]:
        for kind, rate in streaming(2**22 if rehearse else 2**32, 3 if rehearse else 20).items():
            yield {"table": "Reading memory", "kernel": kind, "GB/s": {key: x / 1e9 for key, x in rate.items()}}

    def launch() -> Iterator[dict]:
        one = torch.zeros(1, device=the_device())
        launches = [seconds_of(lambda: [one.add_(1) for _ in range(200)]) / 200 for _ in range(21)]
        waits = [seconds_of(lambda: None) for _ in range(21)]
        yield {"table": "Launching", "what": "add to one number", "microseconds": spread(launches, 1e6)}
        yield {"table": "Launching", "what": "wait for an idle device", "microseconds": spread(waits, 1e6)}

    return [("versions", names), ("reading memory", rates), ("launching", launch)]
