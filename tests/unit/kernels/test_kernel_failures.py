"""Tests of failures of Triton kernels after their trials: no image is lost, and graphs stay on if kernels are at fault.

A fake kernel for the CPU and a tape instead of CUDA graphs (:mod:`tests.tape`) replace the GPU. The kernel of the gate
computes what PyTorch computes, so the images must equal plain decoding without kernels.
"""

import logging
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

from adt_core import Drafting
from adt_core.engine.request import Request
from adt_core.kernels import choice, gate, verdicts
from adt_core.policies import PLAIN
from adt_core.runtime import get_runtime, new_runtime
from tests.drafted import new_decoding, run
from tests.raising import raises_key
from tests.tape import Tape

pytestmark = pytest.mark.usefixtures("runtime")

PROMPTS = ("a cat", "three small dogs")
ERRORS = (
    ValueError("Pointer argument (at 0) cannot be accessed from Triton (cpu tensor?)"),
    RuntimeError("CUDA error: operation not permitted"),
    torch.cuda.OutOfMemoryError("CUDA out of memory."),
)


class Gpu(Tape):
    """A tape, and a place in a decoding at which an error is raised once.

    Attributes:
        fail_at: "launch", "capture", "end of a capture" or "replay"; "" to raise nothing.
        error: The error.
        num_launches: Number of calls of the kernel.
    """

    def __init__(self, allocator: str):
        super().__init__()
        self.survives_failure = allocator == "native"
        self.fail_at = ""
        self.error: Exception | None = None
        self.num_launches = 0
        self._place = "launch"

    def __call__(self, run):
        with self._at("capture"):
            replay = super().__call__(run)
        self.fail("end of a capture")

        def replay_or_fail():
            if self.replayed > 3:
                self.fail("replay")
            replay()

        return replay_or_fail

    @contextmanager
    def _at(self, place):
        self._place = place
        try:
            yield
        finally:
            self._place = "launch"

    def kernel(self, gate_up, activation, used_rows=None):
        with choice.launching(gate_up):
            self.num_launches += 1
            if self.num_launches > 6:  # after the choice of kernels (4 launches) and the prefill (2)
                self.fail(self._place)
            return gate.reference(gate_up, activation)

    def fail(self, place):
        if place == self.fail_at:
            self.fail_at = ""
            raise self.error


@pytest.fixture(params=["native", "cudaMallocAsync"])
def gpu(request, monkeypatch, tmp_path, target):
    """Let rounds be captured by a tape, and let the kernel of the gate be used on the CPU."""
    monkeypatch.setenv("ADT_TREE_CACHE", str(tmp_path))
    gpu = Gpu(request.param)
    trial = choice.Trial([], 0, tuple)
    monkeypatch.setattr(Request, "replayed", True)
    monkeypatch.setattr("adt_core.engine.queue.make_recorder", lambda device: gpu)
    monkeypatch.setattr(torch.cuda, "get_allocator_backend", lambda: request.param)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(name="a GPU", uuid="1"))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 6))
    monkeypatch.setattr(verdicts, "environment", lambda device: "a GPU")
    monkeypatch.setattr(choice, "is_nvidia", lambda device: True)
    monkeypatch.setattr(choice, "_decide", lambda trial, device: (True, "it is fast", False))
    monkeypatch.setattr(gate, "kernel", gpu.kernel)
    monkeypatch.setattr(
        gate, "uses_kernel", lambda x, activation: choice.uses_kernel("gate", x, (activation,), lambda: trial)
    )
    yield gpu
    target.decoder.free_pool()


def draw(target, drafter=None, method=PLAIN):
    return run(target, drafter, PROMPTS, drafting=Drafting(method))


@pytest.fixture(scope="module")
def expected(target):
    return draw(target).codes


@pytest.mark.parametrize("place", ["launch", "capture", "end of a capture", "replay"])
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_no_image_is_lost(expected, target, drafters, gpu, caplog, place, error):
    gpu.fail_at = place
    gpu.error = error
    with caplog.at_level(logging.WARNING):
        decoding = draw(target, drafters["network"], "eagle2")
        assert draw(target).codes.equal(expected), "later images must not fail"
    assert decoding.codes.equal(expected) and gpu.fail_at == ""
    graphs_off = bool(get_runtime().graph_failures)
    kernels_off = bool(get_runtime().kernel_failure)
    lost_memory = isinstance(error, torch.cuda.OutOfMemoryError)
    loses_captures = "capture" in place and not gpu.survives_failure
    assert graphs_off is loses_captures
    assert kernels_off is not (lost_memory or loses_captures)
    assert decoding.conditions()["kernels"] == ([] if kernels_off else ["gate"])
    assert len(caplog.records) == (graphs_off or kernels_off or lost_memory and "capture" not in place)
    if graphs_off or kernels_off:
        assert str(error).rstrip(".") in caplog.messages[0]


def test_without_a_failure_kernels_and_graphs_are_used(expected, target, drafters, gpu, caplog):
    decoding = draw(target, drafters["network"], "eagle2")
    assert decoding.codes.equal(expected) and gpu.num_launches and gpu.replayed
    assert decoding.conditions()["kernels"] == ["gate"] == decoding.trace.settings["kernels"]
    assert not caplog.records and not get_runtime().kernel_failure and not get_runtime().graph_failures


def test_a_replay_that_fails_without_kernels_switches_graphs_off(expected, target, drafters, gpu, monkeypatch, caplog):
    monkeypatch.setenv(choice.VARIABLE, "0")
    gpu.fail_at = "replay"
    gpu.error = RuntimeError("CUDA error: unspecified launch failure")
    decoding = draw(target, drafters["network"], "eagle2")
    assert decoding.codes.equal(expected) and not gpu.num_launches
    assert [record.getMessage() for record in caplog.records] == [
        "CUDA graphs are off, which is slower but does not change the image: CUDA error: unspecified launch failure."
    ]


def test_graphs_are_off_if_a_capture_also_fails_without_kernels(expected, target, drafters, gpu, monkeypatch):
    """First a capture fails, then the image starts again without kernels, and another capture fails."""
    gpu.fail_at = "capture"
    gpu.error = ERRORS[0]
    capture = Tape.__call__
    failures = [ERRORS[1]]

    def fail_next(tape, run):
        if get_runtime().kernel_failure and failures:
            raise failures.pop()
        return capture(tape, run)

    monkeypatch.setattr(Tape, "__call__", fail_next)
    decoding = draw(target, drafters["network"], "eagle2")
    assert decoding.codes.equal(expected) and len(get_runtime().graph_failures) == 1
    assert bool(failures) is not gpu.survives_failure


def test_later_processes_capture_no_kernels_with_an_allocator_that_ends_captures(target, drafters, gpu):
    gpu.fail_at = "capture"
    gpu.error = ERRORS[0]
    draw(target, drafters["network"], "eagle2")
    with new_runtime():
        reason = choice.missing_support(target.decoder.embedding.device)
        allowed = choice.supports_kernels(target.decoder.embedding.device)
    if gpu.survives_failure:
        assert allowed
    else:
        assert reason == f"with the allocator cudaMallocAsync, they could not be captured (ValueError: {ERRORS[0]})"


def test_a_decoding_starts_again_if_another_decoding_has_switched_the_kernels_off(expected, target, drafters, gpu):
    rows = [target.encode_prompt(prompt) for prompt in PROMPTS]
    decoding = new_decoding(target, rows, drafting=Drafting("eagle2"), drafter=drafters["network"])
    for round in decoding:
        if round.index == 5:
            choice.switch_off("another decoding failed")
    assert decoding.codes.equal(expected) and decoding.conditions()["kernels"] == []


@pytest.mark.parametrize("value, used", [("1", True), ("", True), ("norm, gate", True), ("norm", False), ("0", False)])
def test_the_variable_lists_the_operations_with_kernels(gpu, monkeypatch, value, used):
    monkeypatch.setenv(choice.VARIABLE, value)
    assert gate.uses_kernel(torch.zeros(2, 8), "silu") is used


def test_an_unknown_operation_in_the_variable_is_an_error(gpu, monkeypatch):
    monkeypatch.setenv(choice.VARIABLE, "gate,gemm")
    with raises_key("triton.bad_variable", variable="ADT_TREE_KERNELS", value="'gate,gemm'", operations="attend, gate"):
        gate.uses_kernel(torch.zeros(2, 8), "silu")
