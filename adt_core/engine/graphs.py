"""Whole rounds that a GPU replays, as CUDA graphs.

A round launches some hundreds of kernels, and Python takes longer to launch many of them than the GPU takes to run
them. A captured round is launched at once. It needs no Triton, but fixed sizes and fixed memory: all that a round reads
and changes stays in its place (:mod:`.lanes`), and what the host decides reaches it as numbers in that memory.

The first round of its sizes is launched the usual way, then captured, and the replay is compared with the usual way.
If it differs, or if the driver refuses, all goes on the usual way for the rest of the process, and a log line says so
once.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

SWITCH = "ADT_TREE_GRAPHS"
"""Environment variable; "0" switches graphs off."""

Result = TypeVar("Result")
Launch = Callable[[], tuple[Tensor, Any]]
"""Launches a round. Returns what the host reads of it, and whatever else the host wants to know of its like."""
refused: list[str] = []
"""Why graphs were given up in this process; empty while they were not."""
_log = logging.getLogger(__name__)


class Recorder(Protocol):
    """Captures what is launched, on a stream of its own."""

    def beside(self, run: Callable[[], Result]) -> Result:
        """Call ``run`` on that stream, without capturing."""

    def __call__(self, run: Callable[[], object]) -> Callable[[], object]:
        """Capture what ``run`` launches. Returns what launches the same again."""


class CudaRecorder:
    """CUDA's own graphs. They share one pool of memory, since they never run at once.

    Other threads may use the device meanwhile.
    """

    def __init__(self, device: torch.device):
        self._device, self._pool, self._stream = device, torch.cuda.graph_pool_handle(), torch.cuda.Stream(device)

    def beside(self, run: Callable[[], Result]) -> Result:
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        try:
            with torch.cuda.stream(self._stream):
                return run()
        finally:
            current.wait_stream(self._stream)

    def __call__(self, run: Callable[[], object]) -> Callable[[], object]:
        graph = torch.cuda.CUDAGraph()

        def capture() -> None:
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                run()
            except BaseException:
                with suppress(RuntimeError):  # the first error says more
                    graph.capture_end()
                raise
            graph.capture_end()

        self.beside(capture)
        return graph.replay


def recorder_for(device: torch.device) -> Recorder | None:
    """What captures rounds on this device; None where none are captured."""
    if device.type != "cuda" or os.environ.get(SWITCH) == "0" or refused:
        return None
    return CudaRecorder(device)


class _Graph(NamedTuple):
    """A captured round: what launches it, where the host reads it, and what else there is to know of it."""

    replay: Callable[[], object]
    report: Tensor
    known: Any


class Graphs:
    """Captured rounds over one set of lanes."""

    def __init__(self, recorder: Recorder | None):
        self._recorder = recorder
        self._graphs: dict[Hashable, _Graph | None] = {}  # None for a round that there was no memory to capture
        self.attempts = 0  # to capture one

    def is_new(self, key: Hashable) -> bool:
        """Would a round with this key be captured now?"""
        return self._recorder is not None and not refused and key not in self._graphs

    def __call__(self, key: Hashable, launch: Launch, state: Sequence[Tensor]) -> tuple[Tensor, Any]:
        """Launch a round, or replay one with the same ``key``: of the same sizes, over the same memory.

        state: what a round changes and the next one reads, but for KV caches, which a round may write twice. Returns
        what ``launch`` returns.
        """
        if self.is_new(key):
            return self._capture(key, launch, state)
        graph = self._graphs.get(key)
        if graph is None:
            return launch()
        graph.replay()
        return graph.report, graph.known

    def _capture(self, key: Hashable, launch: Launch, state: Sequence[Tensor]) -> tuple[Tensor, Any]:
        """Launch a round the usual way, capture it, and see whether its replay does the same."""
        assert self._recorder is not None
        self.attempts += 1
        before = [part.clone() for part in state]
        report, known = self._recorder.beside(launch)  # so that what libraries set up for a stream is there
        expected, after = report.clone(), [part.clone() for part in state]
        report = torch.full_like(report, -1)  # outside of the graph's memory
        try:
            replay = self._recorder(lambda: report.copy_(launch()[0]))
            _write(state, before)
            replay()
            if not (report.equal(expected) and all(map(_alike, state, after))):
                raise RuntimeError("a replayed round is not the round that was launched")
        except RuntimeError as error:  # as the driver's errors are, and those of what can't be captured
            _write(state, after)
            self._give_up(key, error)
            return expected, known
        self._graphs[key] = _Graph(replay, report, known)
        return report, known

    def _give_up(self, key: Hashable, error: RuntimeError) -> None:
        """Go on without graphs; if there was no memory for one, without that one."""
        if isinstance(error, torch.cuda.OutOfMemoryError):
            self._graphs[key] = None
            return
        refused.append(str(error).split("\n")[0].rstrip("."))
        self._graphs.clear()
        _log.warning("No CUDA graphs, which costs speed but changes nothing else: %s.", refused[0])


def _write(state: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    for part, value in zip(state, values):
        part.copy_(value)


def _alike(one: Tensor, other: Tensor) -> bool:
    """The same but for rounding, which may differ where a library takes another way in a capture."""
    if not one.is_floating_point():
        return one.equal(other)
    return torch.allclose(
        one, other, rtol=1e-3, atol=1e-3 * float(other.nan_to_num(0, 0, 0).abs().max()), equal_nan=True
    )
