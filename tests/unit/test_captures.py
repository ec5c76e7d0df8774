"""CUDA graphs and the streams that they are captured on, with a driver of our own in the place of CUDA.

It does what torch does: it hands out 32 streams in turn, and when a graph dies, the workspace of its stream is freed,
so that other graphs of that stream would write to memory that is somebody else's.
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


class Stream:
    handles = itertools.count()

    def __init__(self, device):
        self.handle = next(self.handles) % 32

    def __eq__(self, other):
        return self.handle == other.handle

    def __hash__(self):
        return hash(self.handle)

    def wait_stream(self, other):
        pass


class Graph:
    """Replays what it was captured for, unless its workspace was freed."""

    alive = weakref.WeakSet()

    def capture_begin(self, pool, capture_error_mode):
        self.stream, self.stale = Driver.streams[-1], False
        self.alive.add(self)

    def capture_end(self):
        Driver.collecting.append(gc.isenabled())

    def replay(self):
        assert not self.stale, "a replay on a freed workspace"

    def __del__(self):
        for other in self.alive:
            if other is not self and other.stream == self.stream:
                other.stale = True


class Driver:
    """What is under way. collecting: at the end of each capture, might Python collect garbage? free: bytes, in turn."""

    streams: list[Stream] = []
    free: Iterator[int] = itertools.repeat(0)
    collecting: list[bool] = []

    @classmethod
    def stream(cls, stream):
        cls.streams = [stream]
        return nullcontext()


@pytest.fixture(autouse=True)
def driver(runtime, monkeypatch):
    backend = ["native"]
    answers = {
        "graph_pool_handle": lambda: (0, 1),
        "current_stream": Stream,
        "get_sync_debug_mode": lambda: 0,
        "set_sync_debug_mode": lambda mode: None,
        "empty_cache": lambda: None,
        "mem_get_info": lambda device: (next(Driver.free), 0),
        "get_allocator_backend": lambda: backend[0],
    }
    for name, value in {**answers, "Stream": Stream, "CUDAGraph": Graph, "stream": Driver.stream}.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(Stream, "handles", itertools.count())
    Driver.collecting = []
    gc.collect()  # graphs of other tests, which had the same streams
    return backend


@pytest.fixture
def device():
    """That no test has captured on before."""
    return torch.device("cuda", next(DEVICES))


def stream_of(recorder):
    """The stream on which it captures, as the driver sees it."""
    recorder(lambda: None)
    return Driver.streams[-1]


def fail(error):
    raise error


def test_graphs_that_die_leave_those_of_other_rounds_as_they_are(device):
    first, second = CudaRecorder(device), CudaRecorder(device)
    replays = [first(lambda: None), second(lambda: None), first(lambda: None)]
    del second, replays[1]
    for replay in replays:
        replay()


def test_a_round_that_is_forgotten_leaves_the_others_of_its_recorder_as_they_are(device):
    recorder = CudaRecorder(device)
    kept, forgotten = recorder(lambda: None), recorder(lambda: None)
    del forgotten
    kept()


def test_what_can_be_replayed_keeps_its_stream(device):
    """Also when nobody captures any more: another recorder must not get the stream while the graph lives."""
    recorder = CudaRecorder(device)
    kept, taken = recorder(lambda: None), Driver.streams[-1]
    del recorder
    assert stream_of(CudaRecorder(device)) != taken
    kept()
    del kept
    assert stream_of(CudaRecorder(device)) == taken, "libraries keep memory for every stream that they have met"


def test_a_capture_that_fails_leaves_the_others_as_they_are(device):
    recorder = CudaRecorder(device)
    kept = recorder(lambda: None)
    with pytest.raises(RuntimeError, match="not permitted"):
        recorder(lambda: fail(RuntimeError("not permitted")))
    kept()


def test_there_are_no_more_recorders_than_streams(device):
    alive = [make_recorder(device) for _ in range(32)]
    assert len(set(map(stream_of, alive))) == 32
    assert make_recorder(device) is None
    alive.pop()
    assert make_recorder(device) is not None


@pytest.mark.parametrize("error", [None, RuntimeError("not permitted")], ids=["captured", "failed"])
def test_garbage_waits_until_a_capture_is_over(device, error):
    """It may hold CUDA's objects, and to destroy one of them ends a capture."""
    recorder = CudaRecorder(device)
    with pytest.raises(RuntimeError) if error else nullcontext():
        recorder((lambda: fail(error)) if error else (lambda: None))
    assert Driver.collecting == [False] and gc.isenabled()


@pytest.mark.parametrize("allocator, captures", [("native", 2), ("cudaMallocAsync", 1)])
def test_nothing_is_captured_after_a_failure_that_ruins_the_allocator(device, driver, caplog, allocator, captures):
    """A lack of memory in a capture is got over by torch's own allocator, and by CUDA's it is not."""
    driver[0] = allocator
    full, tries = torch.cuda.OutOfMemoryError("CUDA out of memory."), []

    def launch():
        tries.append(len(Driver.streams))
        if len(tries) > 1 and len(tries) <= 1 + captures:  # the first time it is not captured
            raise full
        return torch.zeros(1), None

    captured, other = (Graphs(CudaRecorder(device), torch.nn.Module()) for _ in range(2))
    with caplog.at_level(logging.WARNING):
        captured("a round", launch, list)
    assert len(tries) == 2 + captures
    survives = allocator == "native"
    assert captured.is_new("another round") is other.is_new("a round of another model") is survives
    assert bool(caplog.records) is not survives


def test_a_round_that_cannot_be_captured_ends_the_graphs_of_its_model_alone(device):
    captured, other = (Graphs(CudaRecorder(device), torch.nn.Module()) for _ in range(2))
    replays = iter([(torch.zeros(1), None)])
    captured("a round", lambda: next(replays, (torch.ones(1), None)), list)  # a replay is another round
    assert not captured.is_new("another round") and other.is_new("another round")


def test_what_captures_take_is_measured_and_bounded(device, monkeypatch):
    monkeypatch.setattr(Driver, "free", itertools.count(100, -1))
    captured = Graphs(CudaRecorder(device), torch.nn.Module())
    for key in range(graphs.MAX_GRAPHS + 2):
        captured(key, lambda: (torch.zeros(1), None), list)
    assert captured.num_bytes == captured.attempts == graphs.MAX_GRAPHS
