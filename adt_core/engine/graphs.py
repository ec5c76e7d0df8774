"""Capture and replay of rounds as CUDA graphs.

A round launches several hundred kernels. Python takes longer to launch them than the GPU takes to run them. A captured
round needs only a single launch. Capture requires two things: tensor sizes must be fixed, and all tensors that a round
reads or changes must stay at their addresses (:mod:`.slots`). Values that change from round to round are stored in
these tensors.

When tensor sizes occur for the first time, the round is launched normally, then captured, then replayed. The replay
must give the same result as the normal launch. If the results differ, or if the capture or a replay raises an error,
something is switched off for the rest of the process, and one warning is logged: first the Triton kernels, because
graphs save more time than kernels, and then the graphs of the model. No image is lost: after a failed capture the round
is launched normally, and in all other cases the caller starts the images again.
"""

from __future__ import annotations

import gc
import logging
import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from traceback import clear_frames
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from ..environment import variable
from ..errors import is_out_of_memory, one_line
from ..kernels import choice
from ..kernels.choice import KernelError
from ..models.torch_private import clear_cublas_workspaces
from ..runtime import get_runtime

MAX_GRAPHS = 48
"""Maximum number of captured rounds per :class:`Graphs`. Beyond this number, the least recently used one is freed."""
MIN_CAPTURE_BYTES = 2**28
"""Free bytes that a capture needs with an allocator that can't recover from a lack of memory. It is an assumption: a
captured round of a 7B model needed 5 MiB (docs/gpu.md), and its temporary tensors and workspaces up to 100 MiB."""
VARIABLE = "ADT_TREE_GRAPHS"
"""Environment variable; "0" disables graphs."""

Result = TypeVar("Result")
Launch = Callable[[], tuple[Tensor, Any]]
"""Function that launches a round. It returns two results: a tensor that the host reads after each replay, and values
that are the same in each replay. An example of such a value is the number of forward passes of the drafter."""
State = Callable[[], Sequence[Tensor]]
"""Function that returns the tensors, except KV caches, that a round both reads and changes. They are restored before
the first replay, so that it starts from the same state as the normal launch. KV caches need no restoring, because the
replay overwrites the same entries."""
_log = logging.getLogger(__name__)


class CudaRecorder:
    """Captures kernel launches as CUDA graphs on a separate stream.

    All graphs of a recorder share one memory pool. This is safe because these graphs never run at the same time. Other
    threads may launch work during a capture. But if another thread waits for a device during the capture, torch raises
    an error in that other thread.
    """

    def __init__(self, device: torch.device):
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._lease = _StreamLease(device)
        self._largest = 0  # bytes of a capture
        self.num_bytes = 0  # allocated by the captures

    @property
    def survives_failure(self) -> bool:
        """Return whether captures are possible after a failed one. CUDA's asynchronous allocator can't recover."""
        return torch.cuda.get_allocator_backend() == "native"

    @property
    def has_memory(self) -> bool:
        """Return whether there is enough memory to try a capture. torch's own allocator frees memory and retries."""
        needed = MIN_CAPTURE_BYTES + 2 * self._largest
        if self.survives_failure or torch.cuda.mem_get_info(self._device)[0] >= needed:
            return True
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info(self._device)[0] >= needed

    def on_stream(self, run: Callable[[], Result]) -> Result:
        """Call `run` on the capture stream, without capturing, and return its result."""
        current = torch.cuda.current_stream(self._device)
        own = self._lease.stream
        own.wait_stream(current)
        try:
            with torch.cuda.stream(own):
                return run()
        finally:
            current.wait_stream(own)

    def __call__(self, run: Callable[[], object]) -> Callable[[], object]:
        """Capture the kernels that `run` launches, and return a function that launches them again."""
        free, _ = torch.cuda.mem_get_info(self._device)
        try:
            return self.on_stream(lambda: self._capture(run))
        except RuntimeError as error:
            if not is_out_of_memory(error) or not self.survives_failure:
                raise
        finally:
            used = max(free - torch.cuda.mem_get_info(self._device)[0], 0)
            self._largest = max(self._largest, used)
            self.num_bytes += used
        torch.cuda.empty_cache()  # torch can't free cached memory during a capture
        return self.on_stream(lambda: self._capture(run))

    def _capture(self, run: Callable[[], object]) -> Callable[[], object]:
        """Capture `run`. If `run` raises an error, end the capture, so that further captures are possible.

        CUDA raises an error if the host waits for the device during a capture. CUDA's error would leave torch's
        allocator in an undefined state. So torch is set to raise its own error before the host waits. After an error,
        the tensors of `run` are released first, and then the capture is ended.

        cuBLAS keeps a workspace for each stream. It is freed before the capture and at its end, so that the workspace
        of the captured products is in the memory pool of the graphs. Otherwise, a replay would write to freed memory
        after anything has freed the workspaces: torch.compile, another node pack, or the end of another graph.
        """
        mode = torch.cuda.get_sync_debug_mode()
        graph = torch.cuda.CUDAGraph()
        clear_cublas_workspaces()
        with _no_garbage_collection():
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            _set_sync_debug_mode("error")
            try:
                run()
            except BaseException as error:
                clear_frames(error.__traceback__)
                clear_cublas_workspaces()
                with suppress(RuntimeError):  # the first error is more informative
                    graph.capture_end()
                raise
            finally:
                _set_sync_debug_mode(mode)
            clear_cublas_workspaces()
            graph.capture_end()
        return partial(self._replay, self._lease, graph)  # Python frees the last argument first

    @staticmethod
    def _replay(_lease: _StreamLease, graph: torch.cuda.CUDAGraph) -> None:
        """Replay a graph. As long as it exists, no other recorder gets its stream."""
        graph.replay()


class _StreamLease:
    """Use of a capture stream by a recorder and its graphs. It ends when all of them are freed."""

    def __init__(self, device: torch.device):
        self._streams = _stream_pool(device)
        self.stream = self._streams.take()

    def __del__(self) -> None:
        self._streams.give_back(self.stream)


class _StreamPool:
    """Pool of a device's capture streams. One recorder at a time uses a stream.

    Streams that were given back are reused before a new stream is made, because libraries allocate memory per stream.
    """

    _MAX_STREAMS = 32
    """Number of different streams that torch makes. After that, `torch.cuda.Stream` returns the same streams again."""

    def __init__(self, device: torch.device):
        self._device = device
        self._free: list[torch.cuda.Stream] = []
        self._taken: set[torch.cuda.Stream] = set()

    @property
    def is_exhausted(self) -> bool:
        return len(self._taken) >= self._MAX_STREAMS

    def take(self) -> torch.cuda.Stream:
        """Return a stream that is not in use; the pool must not be exhausted."""
        stream = self._free.pop() if self._free else torch.cuda.Stream(self._device)
        while stream in self._taken:
            stream = torch.cuda.Stream(self._device)
        self._taken.add(stream)
        return stream

    def give_back(self, stream: torch.cuda.Stream) -> None:
        self._taken.discard(stream)
        self._free.append(stream)


def _stream_pool(device: torch.device) -> _StreamPool:
    pools = get_runtime().streams
    if device not in pools:
        pools[device] = _StreamPool(device)
    return pools[device]


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Disable garbage collection during a capture. A capture fails if a CUDA object is destroyed during the capture."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _set_sync_debug_mode(mode: int | str) -> None:
    """Set whether torch raises an error if the host waits, without torch's warning that this is experimental."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        torch.cuda.set_sync_debug_mode(mode)


def make_recorder(device: torch.device) -> CudaRecorder | None:
    """Return a recorder for a device; None if the device is not a CUDA GPU or all its capture streams are in use."""
    return None if device.type != "cuda" or _stream_pool(device).is_exhausted else CudaRecorder(device)


def disabled_reason(decoder: nn.Module) -> str:
    """Return why a model runs without graphs, or "" if the model runs with graphs."""
    if variable(VARIABLE) == "0":
        return f"{VARIABLE} is 0"
    stream = getattr(decoder, "stream", None)
    if stream is not None and not stream.pinned:
        return "streamed weights are in memory that is not pinned"
    runtime = get_runtime()
    return runtime.capture_failure or runtime.graph_failures.get(decoder, "")


class ReplayError(RuntimeError):
    """A captured round could not be replayed. Graphs are off for the model now, and its images must start again."""


class _Graph(NamedTuple):
    """A captured round.

    Attributes:
        replay: Launches the round again.
        report: Tensor that the host reads after a replay.
        info: Values that are the same in each replay.
    """

    replay: Callable[[], object]
    report: Tensor
    info: Any


class Graphs:
    """Captured rounds of one :class:`~.slots.Slots` object.

    Attributes:
        attempts: Number of captures that were tried.
        launches: Number of rounds that were launched because there was too little memory to capture them. Their times
            say nothing about rounds of this size.
    """

    def __init__(self, recorder: CudaRecorder | None, decoder: nn.Module):
        """Start without captured rounds.

        Args:
            recorder: Recorder that captures rounds; None to launch all rounds normally.
            decoder: Decoder of the target. If a capture fails, graphs are disabled for it.
        """
        self._recorder = recorder
        self._decoder = decoder
        self._device = next(decoder.parameters()).device
        self._graphs: dict[Hashable, _Graph | None] = {}  # None if there was too little memory to capture the round
        self.attempts = 0
        self.launches = 0

    @property
    def num_bytes(self) -> int:
        """Bytes of device memory that all captures together have allocated."""
        return self._recorder.num_bytes if self._recorder is not None else 0

    def is_new(self, key: Hashable) -> bool:
        """Return whether the next round with this key will be captured."""
        return self._recorder is not None and not disabled_reason(self._decoder) and key not in self._graphs

    def __call__(self, key: Hashable, launch: Launch, state: State) -> tuple[Tensor, Any]:
        """Replay a round, or launch it if no round with this key was captured, and capture it if possible.

        Args:
            key: Rounds with the same key have the same tensor sizes and use the same memory.

        Returns:
            The two results of `launch`.

        Raises:
            OutOfMemoryError: If a replay runs out of memory.
            KernelError: If the launch of a Triton kernel fails, or if a captured round fails that contains kernels.
            ReplayError: If the replay of a round without kernels fails.
        """
        if self.is_new(key):
            return self._capture(key, launch, state)
        graph = self._graphs.get(key)
        if graph is None or disabled_reason(self._decoder):
            self.launches += graph is None and key in self._graphs
            return launch()
        self._graphs[key] = self._graphs.pop(key)  # keeps the order of use
        try:
            graph.replay()
        except Exception as error:
            if is_out_of_memory(error):
                raise torch.cuda.OutOfMemoryError(str(error)) from error
            self._suspect_kernels(error)
            self._switch_off(error)
            raise ReplayError(str(error)) from error
        return graph.report, graph.info

    def _capture(self, key: Hashable, launch: Launch, state: State) -> tuple[Tensor, Any]:
        """Launch a round normally, capture it, and compare the result of its replay."""
        assert self._recorder is not None
        if not self._recorder.has_memory:
            self._graphs[key] = None
            self.launches += 1
            return launch()
        captured = [key for key, graph in self._graphs.items() if graph is not None]
        if len(captured) >= MAX_GRAPHS:
            del self._graphs[captured[0]]  # the least recently used round
        self.attempts += 1
        parts = state()
        before = [part.clone() for part in parts]
        expected, info = self._recorder.on_stream(launch)  # libraries initialise a stream at its first use
        report = torch.full_like(expected, -1)  # allocated before the capture, so outside the graph's memory pool
        try:
            replay = self._recorder(lambda: report.copy_(launch()[0]))
            _copy_all(parts, before)
            replay()
            if not report.equal(expected):
                raise RuntimeError("a replayed round gave other results than a launched one")
        except Exception as error:  # raised by Triton, the driver, an operation that can't be captured, or above
            self._handle_failure(key, error)
            _copy_all(parts, before)
            return launch()
        self._graphs[key] = _Graph(replay, report, info)
        return report, info

    def _handle_failure(self, key: Hashable, error: Exception) -> None:
        """Disable graphs after a failed capture.

        If memory was too small and further captures are possible, graphs are disabled only for this key. If kernels
        were captured and further captures are possible, only the kernels are disabled. Otherwise graphs are disabled
        for the model. If no further capture is possible, they are also disabled for the entire process, and later
        processes don't capture kernels that could not be captured.

        Raises:
            KernelError: If kernels are to be disabled.
        """
        survives = self._recorder is not None and self._recorder.survives_failure
        if is_out_of_memory(error) and survives:
            self._graphs[key] = None
            return
        if survives:
            self._suspect_kernels(error)
        elif isinstance(error, KernelError):
            choice.keep_out_of_captures(self._device, str(error))
        reason = self._switch_off(error)
        if not survives:
            runtime = get_runtime()
            runtime.capture_failure = runtime.capture_failure or reason

    def _suspect_kernels(self, error: Exception) -> None:
        """Raise KernelError if a failed round can contain Triton kernels, which are the newest part of a round."""
        if isinstance(error, KernelError) or choice.has_launched(self._device):
            raise KernelError.of(error) from error

    def _switch_off(self, error: Exception) -> str:
        """Run the model without graphs until the process ends, log why, and return the reason."""
        reason = one_line(str(error).split("\n")[0]).rstrip(".")
        get_runtime().graph_failures[self._decoder] = reason
        self._graphs.clear()
        _log.warning("CUDA graphs are off, which is slower but does not change the image: %s.", reason)
        return reason


def _copy_all(parts: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    for part, value in zip(parts, values):
        part.copy_(value)
