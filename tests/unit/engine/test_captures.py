"""Tests of CUDA graphs and their capture streams, with a fake driver instead of CUDA.

The fake driver cycles through 32 streams, like torch. A product allocates a workspace for its stream, unless the stream
has one. If one graph of a stream is freed, the driver frees the workspace of this stream. If the workspace was
allocated before a capture, replaying the captured graph would then write to freed memory.
"""

import gc
import itertools
import logging
import weakref
from collections.abc import Iterator
from contextlib import nullcontext

import pytest
import torch

from adt_core.engine import graphs
from adt_core.engine.graphs import CudaRecorder, Graphs, make_recorder

DEVICES = itertools.count()


class FakeStream:
    handles = itertools.count()

    def __init__(self, device):
        self.handle = next(self.handles) % 32

    def __eq__(self, other):
        return self.handle == other.handle

    def __hash__(self):
        return hash(self.handle)

    def wait_stream(self, other):
        pass


class FakeGraph:
    """Graph with products. Its replay fails if its workspace has been freed."""

    alive = weakref.WeakSet()

    def capture_begin(self, pool, capture_error_mode):
        self.stream = FakeDriver.streams[-1]
        self.stale = False
        self.is_workspace_outside = self.stream in FakeDriver.workspaces
        self.alive.add(self)
        FakeDriver.workspaces.add(self.stream)

    def capture_end(self):
        FakeDriver.collecting.append(gc.isenabled())
        assert self.stream not in FakeDriver.workspaces, "the next product would use the workspace of the graph"

    def replay(self):
        assert not self.stale, "a replay on a freed workspace"

    def __del__(self):
        FakeDriver.clear([self.stream])


class FakeDriver:
    streams: list[FakeStream] = []  # current stream
    free: Iterator[int] = itertools.repeat(2**40)  # number of free bytes that each query returns
    workspaces: set[FakeStream] = set()  # streams that have a workspace
    collecting: list[bool] = []  # for each capture, whether garbage collection was enabled at its end

    @classmethod
    def clear(cls, streams=None):
        """Free the workspaces of some streams, or of all."""
        cleared = cls.workspaces if streams is None else set(streams)
        for graph in FakeGraph.alive:
            graph.stale |= graph.is_workspace_outside and graph.stream in cleared
        cls.workspaces = cls.workspaces - cleared

    @classmethod
    def stream(cls, stream):
        cls.streams = [stream]
        return nullcontext()


@pytest.fixture(autouse=True)
def driver(runtime, monkeypatch):
    backend = ["native"]
    answers = {
        "graph_pool_handle": lambda: (0, 1),
        "current_stream": FakeStream,
        "get_sync_debug_mode": lambda: 0,
        "set_sync_debug_mode": lambda mode: None,
        "empty_cache": lambda: None,
        "mem_get_info": lambda device: (next(FakeDriver.free), 0),
        "get_allocator_backend": lambda: backend[0],
    }
    for name, value in {**answers, "Stream": FakeStream, "CUDAGraph": FakeGraph, "stream": FakeDriver.stream}.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(FakeStream, "handles", itertools.count())
    FakeDriver.collecting = []
    FakeDriver.workspaces = set()
    monkeypatch.setattr(graphs, "clear_cublas_workspaces", FakeDriver.clear)
    gc.collect()  # frees graphs of other tests, which used the same streams
    return backend


@pytest.fixture
def device():
    """Return a device on which no other test has captured a graph."""
    return torch.device("cuda", next(DEVICES))


def stream_of(recorder):
    """Return the stream on which a recorder captures its graphs."""
    recorder(lambda: None)
    return FakeDriver.streams[-1]


def fail(error):
    raise error


def test_freeing_graphs_does_not_break_other_graphs(device):
    first = CudaRecorder(device)
    second = CudaRecorder(device)
    replays = [first(lambda: None), second(lambda: None), first(lambda: None)]
    del second, replays[1]
    for replay in replays:
        replay()


def test_dropping_a_round_does_not_break_others_of_its_recorder(device):
    recorder = CudaRecorder(device)
    kept = recorder(lambda: None)
    dropped = recorder(lambda: None)
    del dropped
    kept()


def test_a_replay_function_keeps_its_stream(device):
    """While a graph exists, no other recorder may get its stream, even after the graph's recorder is freed."""
    recorder = CudaRecorder(device)
    kept = recorder(lambda: None)
    taken = FakeDriver.streams[-1]
    del recorder
    assert stream_of(CudaRecorder(device)) != taken
    kept()
    del kept
    assert stream_of(CudaRecorder(device)) == taken, "reused, because libraries keep memory for every stream"


def test_a_failed_capture_does_not_break_others(device):
    recorder = CudaRecorder(device)
    kept = recorder(lambda: None)
    with pytest.raises(RuntimeError, match="not permitted"):
        recorder(lambda: fail(RuntimeError("not permitted")))
    kept()


def test_there_are_at_most_as_many_recorders_as_streams(device):
    alive = [make_recorder(device) for _ in range(32)]
    assert len(set(map(stream_of, alive))) == 32
    assert make_recorder(device) is None
    alive.pop()
    assert make_recorder(device) is not None


@pytest.mark.parametrize("error", [None, RuntimeError("not permitted")], ids=["captured", "failed"])
def test_garbage_collection_is_disabled_during_a_capture(device, error):
    """The garbage collector could destroy a CUDA object, which would end the capture."""
    recorder = CudaRecorder(device)
    with pytest.raises(RuntimeError) if error else nullcontext():
        recorder((lambda: fail(error)) if error else (lambda: None))
    assert FakeDriver.collecting == [False] and gc.isenabled()


@pytest.mark.parametrize("allocator, captures", [("native", 2), ("cudaMallocAsync", 1)])
def test_captures_end_after_a_failure_that_the_allocator_does_not_survive(device, driver, caplog, allocator, captures):
    """During a capture, torch's allocator recovers if memory runs out, but CUDA's own allocator doesn't."""
    driver[0] = allocator
    full = torch.cuda.OutOfMemoryError("CUDA out of memory.")
    tries = []

    def launch():
        tries.append(len(FakeDriver.streams))
        if len(tries) > 1 and len(tries) <= 1 + captures:  # the first call runs without a capture
            raise full
        return torch.zeros(1), None

    captured, other = (Graphs(CudaRecorder(device), torch.nn.Linear(1, 1)) for _ in range(2))
    with caplog.at_level(logging.WARNING):
        captured("a round", launch, list)
    assert len(tries) == 2 + captures
    survives = allocator == "native"
    assert captured.is_new("another round") is other.is_new("a round of another model") is survives
    assert bool(caplog.records) is not survives


def test_a_failed_capture_disables_graphs_of_its_model_only(device):
    captured, other = (Graphs(CudaRecorder(device), torch.nn.Linear(1, 1)) for _ in range(2))
    replays = iter([(torch.zeros(1), None)])
    captured("a round", lambda: next(replays, (torch.ones(1), None)), list)  # the replay gives another result
    assert not captured.is_new("another round") and other.is_new("another round")


def test_memory_of_captures_is_measured(device, monkeypatch):
    monkeypatch.setattr(FakeDriver, "free", itertools.count(100, -1))
    captured = Graphs(CudaRecorder(device), torch.nn.Linear(1, 1))
    for key in range(5):
        captured(key, zeros, list)
    assert captured.num_bytes == captured.attempts == 5


def zeros():
    return torch.zeros(1), None


def test_the_least_recently_used_round_is_freed(device, monkeypatch):
    monkeypatch.setattr(graphs, "MAX_GRAPHS", 3)
    others = set(FakeGraph.alive)
    captured = Graphs(CudaRecorder(device), torch.nn.Linear(1, 1))
    for key in (0, 1, 2, 0, 3):
        captured(key, zeros, list)
    assert [captured.is_new(key) for key in range(4)] == [False, True, False, False]
    gc.collect()
    assert len(set(FakeGraph.alive) - others) == 3
    for key in (0, 2, 3):
        captured(key, zeros, list)  # no replay on a freed workspace
    assert captured.attempts == 4 and captured.launches == 0


def test_a_workspace_that_is_freed_after_a_capture_changes_nothing(device):
    """torch.compile and other node packs free the workspaces of all streams."""
    recorder = CudaRecorder(device)
    FakeDriver.workspaces.add(recorder.on_stream(lambda: FakeDriver.streams[-1]))  # a product before the capture
    replay = recorder(lambda: None)
    FakeDriver.clear()
    replay()


@pytest.mark.parametrize("allocator, captures", [("native", 2), ("cudaMallocAsync", 1)])
def test_with_little_memory_only_the_present_size_is_not_captured(device, driver, monkeypatch, allocator, captures):
    """A failed capture would end all captures of the process with cudaMallocAsync."""
    driver[0] = allocator
    captured = Graphs(CudaRecorder(device), torch.nn.Linear(1, 1))
    for free in (graphs.MIN_CAPTURE_BYTES - 1, graphs.MIN_CAPTURE_BYTES):
        monkeypatch.setattr(FakeDriver, "free", itertools.repeat(free))
        captured(free, zeros, list)
    assert captured.attempts == captures and captured.launches == 2 - captures
    captured(graphs.MIN_CAPTURE_BYTES - 1, zeros, list)
    assert captured.launches == 2 * (2 - captures), "the rounds of this size are launched"
    assert not graphs.disabled_reason(torch.nn.Linear(1, 1))
