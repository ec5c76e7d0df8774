"""Whole rounds that a GPU replays, as CUDA graphs.

A round launches some hundreds of kernels, and Python takes longer to launch many of them than the GPU takes to run
them. A captured round is launched at once. It needs no Triton, but fixed sizes and fixed memory: all that a round reads
and changes stays in its place (:mod:`.slots`), and what the host decides reaches it as numbers in that memory.

The first round of its sizes is launched the usual way, then captured, and the replay is compared with the usual way.
If it differs, or if the driver refuses, this model goes on the usual way for the rest of the process, and a log line
says so once.
"""

from __future__ import annotations

import gc
import logging
import os
import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from traceback import clear_frames
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor, nn

from ..errors import is_out_of_memory
from ..runtime import get_runtime

MOST = 48
"""Rounds that are captured over one set of slots. Others are launched the usual way."""
SWITCH = "ADT_TREE_GRAPHS"
"""Environment variable; "0" switches graphs off."""

Result = TypeVar("Result")
Launch = Callable[[], tuple[Tensor, Any]]
"""Launches a round. Returns a tensor that the host reads after every replay, and what is the same in every replay, such
as how often the drafter ran."""
State = Callable[[], Sequence[Tensor]]
"""Gives the tensors that a round both reads and changes. They are set back before a replay is tried. KV caches are left
out: the same round writes the same entries again."""
_log = logging.getLogger(__name__)


class Recorder(Protocol):
    """Captures what is launched, on a stream of its own."""

    num_bytes: int
    """Of the device's memory, that its captures have taken."""

    @property
    def survives(self) -> bool:
        """May it capture again after a capture for which there was too little memory?"""

    def beside(self, run: Callable[[], Result]) -> Result:
        """Call ``run`` on that stream, without capturing."""

    def __call__(self, run: Callable[[], object]) -> Callable[[], object]:
        """Capture what ``run`` launches. Returns what launches the same again."""


class CudaRecorder:
    """CUDA's own graphs. They share one pool of memory, since they never run at once.

    Other threads may launch work meanwhile. But while a round is captured, torch raises an error in every thread that
    waits for a device.
    """

    def __init__(self, device: torch.device):
        self._device, self._pool, self._captured = device, torch.cuda.graph_pool_handle(), _Captured(device)
        self.num_bytes = 0

    @property
    def survives(self) -> bool:
        """A failed capture leaves CUDA's own asynchronous allocator in ruins, and torch's as it was."""
        return torch.cuda.get_allocator_backend() == "native"

    def beside(self, run: Callable[[], Result]) -> Result:
        current, own = torch.cuda.current_stream(self._device), self._captured.stream
        own.wait_stream(current)
        try:
            with torch.cuda.stream(own):
                return run()
        finally:
            current.wait_stream(own)

    def __call__(self, run: Callable[[], object]) -> Callable[[], object]:
        free, _ = torch.cuda.mem_get_info(self._device)
        try:
            return self.beside(lambda: self._capture(run))
        except RuntimeError as error:
            if not is_out_of_memory(error) or not self.survives:
                raise
        finally:
            self.num_bytes += max(free - torch.cuda.mem_get_info(self._device)[0], 0)
        torch.cuda.empty_cache()  # what is cached can't be given back in a capture
        return self.beside(lambda: self._capture(run))

    def _capture(self, run: Callable[[], object]) -> Callable[[], object]:
        """An error must not leave the capture in ruins, which would leave the allocator in ruins.

        So torch refuses to wait for the device before CUDA does, and memory is let go of while the capture goes on.
        """
        number, mode = self._captured.add(), torch.cuda.get_sync_debug_mode()
        graph = self._captured.graphs[number]
        with _no_garbage_collection():
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            _refuse_to_wait("error")
            try:
                run()
            except BaseException as error:
                clear_frames(error.__traceback__)
                with suppress(RuntimeError):  # the first error says more
                    graph.capture_end()
                raise
            finally:
                _refuse_to_wait(mode)
            graph.capture_end()
        return partial(self._captured.replay, number)


class _Captured:
    """Graphs that were captured on one stream. They live together and die together, failed captures included.

    torch frees the stream's workspace for products when any of its graphs dies, and the others would still write there.
    Whoever may replay one of them holds this.
    """

    def __init__(self, device: torch.device):
        self._streams = _streams(device)
        self.stream = self._streams.take()
        self.graphs: list[torch.cuda.CUDAGraph] = []

    def add(self) -> int:
        """The number of a new graph."""
        self.graphs.append(torch.cuda.CUDAGraph())
        return len(self.graphs) - 1

    def replay(self, number: int) -> None:
        self.graphs[number].replay()

    def __del__(self) -> None:
        self.graphs.clear()  # before anybody else captures on the stream
        self._streams.give_back(self.stream)


class _Streams:
    """Streams of a device, each for one user at a time. Those that were given back are taken first: libraries keep
    memory for every stream that they have met."""

    _DISTINCT = 32
    """torch has so many, and then hands out the first again."""

    def __init__(self, device: torch.device):
        self._device, self._free, self._taken = device, list[torch.cuda.Stream](), set[torch.cuda.Stream]()

    @property
    def is_exhausted(self) -> bool:
        return len(self._taken) >= self._DISTINCT

    def take(self) -> torch.cuda.Stream:
        """A stream that nobody else has; there is one unless all are taken."""
        stream = self._free.pop() if self._free else torch.cuda.Stream(self._device)
        while stream in self._taken:
            stream = torch.cuda.Stream(self._device)
        self._taken.add(stream)
        return stream

    def give_back(self, stream: torch.cuda.Stream) -> None:
        self._taken.discard(stream)
        self._free.append(stream)


def _streams(device: torch.device) -> _Streams:
    pools = get_runtime().streams
    if device not in pools:
        pools[device] = _Streams(device)
    return pools[device]


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Python's garbage may hold CUDA's objects, and to destroy one of them would end a capture."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _refuse_to_wait(mode: int | str) -> None:
    """Set what torch does where the host would wait for the device, without its word that this is a new feature."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        torch.cuda.set_sync_debug_mode(mode)


def make_recorder(device: torch.device) -> Recorder | None:
    """What captures rounds on this device; None on a CPU, and where all streams are taken."""
    return None if device.type != "cuda" or _streams(device).is_exhausted else CudaRecorder(device)


def disabled_reason(decoder: nn.Module) -> str:
    """Why the rounds of a model are launched the usual way; "" where they are captured."""
    if os.environ.get(SWITCH) == "0":
        return f"{SWITCH} is 0"
    runtime = get_runtime()
    return runtime.capture_failure or runtime.graph_failures.get(decoder, "")


class _Graph(NamedTuple):
    """A captured round: what launches it, where the host reads it, and what else there is to know of it."""

    replay: Callable[[], object]
    report: Tensor
    known: Any


class Graphs:
    """Captured rounds over one set of slots, by the model of this decoder."""

    def __init__(self, recorder: Recorder | None, decoder: nn.Module):
        self._recorder, self._decoder = recorder, decoder
        self._graphs: dict[Hashable, _Graph | None] = {}  # None for a round that there was no memory to capture
        self.attempts = 0  # to capture one

    @property
    def num_bytes(self) -> int:
        """Of the device's memory, as was measured around the captures."""
        return self._recorder.num_bytes if self._recorder is not None else 0

    def is_new(self, key: Hashable) -> bool:
        """Would a round with this key be captured now?"""
        is_known = key in self._graphs or len(self._graphs) >= MOST
        return self._recorder is not None and not disabled_reason(self._decoder) and not is_known

    def __call__(self, key: Hashable, launch: Launch, state: State) -> tuple[Tensor, Any]:
        """Launch a round, or replay one with the same ``key``: of the same sizes, over the same memory.

        Returns what ``launch`` returns. Raises OutOfMemoryError.
        """
        if self.is_new(key):
            return self._capture(key, launch, state)
        graph = self._graphs.get(key)
        if graph is None or disabled_reason(self._decoder):
            return launch()
        try:
            graph.replay()
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            raise torch.cuda.OutOfMemoryError(str(error)) from error
        return graph.report, graph.known

    def _capture(self, key: Hashable, launch: Launch, state: State) -> tuple[Tensor, Any]:
        """Launch a round the usual way, capture it, and see whether its replay brings the same."""
        assert self._recorder is not None
        self.attempts += 1
        parts = state()
        before = [part.clone() for part in parts]
        expected, known = self._recorder.beside(launch)  # libraries prepare themselves for a stream at its first use
        report = torch.full_like(expected, -1)  # outside of the graph's memory
        try:
            replay = self._recorder(lambda: report.copy_(launch()[0]))
            _write(parts, before)
            replay()
            if not report.equal(expected):
                raise RuntimeError("a replayed round gave other results than a launched one")
        except RuntimeError as error:  # as the driver's errors are, and those of what can't be captured
            self._give_up(key, error)
            _write(parts, before)
            return launch()
        self._graphs[key] = _Graph(replay, report, known)
        return report, known

    def _give_up(self, key: Hashable, error: RuntimeError) -> None:
        """Go on without graphs; if there was no memory for one, without that one where others can be captured."""
        survives = self._recorder is not None and self._recorder.survives
        if is_out_of_memory(error) and survives:
            self._graphs[key] = None
            return
        runtime = get_runtime()
        reason = str(error).split("\n")[0].rstrip(".")
        runtime.graph_failures[self._decoder] = reason
        if not survives:
            runtime.capture_failure = runtime.capture_failure or reason
        self._graphs.clear()
        _log.warning("CUDA graphs are off, which is slower but does not change the image: %s.", reason)


def _write(parts: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    for part, value in zip(parts, values):
        part.copy_(value)
