"""Tests of replayed rounds, with a recorder for the CPU instead of CUDA graphs.

A replayed round repeats the captured operations of an earlier round, as a CUDA graph does. Images must be the same with
and without graphs. A round must be one launch and one synchronisation. Tensors must keep their addresses. Errors of the
driver must switch graphs off.
"""

import logging
from types import SimpleNamespace

import pytest
import torch

from adt_core import Drafting, Sampling, load_drafter, load_target
from adt_core.engine import graphs, pool
from adt_core.engine.request import Request
from adt_core.engine.round import run_round
from adt_core.engine.slots import Slots
from adt_core.lab.benchmark import drafters_by_name
from adt_core.policies.auto import Auto
from adt_core.runtime import get_runtime
from adt_core.settings import Lantern
from tests.drafted import METHODS, costs, new_decoding, run
from tests.tape import Tape, counted

pytestmark = pytest.mark.usefixtures("runtime")

PROMPTS = ("a cat", "three small dogs", "fog")
CASES = METHODS | {None: (None, {"method": "no-drafting"})}


@pytest.fixture
def as_on_a_gpu(monkeypatch, target):
    """Return a function that gives rounds fixed sizes, as on a GPU, and lets a recorder capture them."""

    def begin(recorder):
        monkeypatch.setattr(Request, "replayed", True)
        monkeypatch.setattr("adt_core.engine.queue.make_recorder", lambda device: recorder)
        return recorder

    yield begin
    target.decoder.free_pool()


@pytest.fixture
def tape(as_on_a_gpu):
    return as_on_a_gpu(Tape())


def count_replays(tape, monkeypatch) -> list:
    """Return a list that receives the ledger of each round that captures nothing."""
    ledgers = []

    def counted_round(*arguments):
        captured = tape.captured
        with counted(tape, monkeypatch) as ledger:
            outcome = run_round(*arguments)
        if tape.captured == captured:
            ledgers.append(ledger)
        return outcome

    monkeypatch.setattr("adt_core.engine.decoding.run_round", counted_round)
    return ledgers


# ---- the same images ---------------------------------------------------------------------------


def test_costs_are_learned_without_captures_of_their_own(target, drafters, tape, tmp_path, monkeypatch):
    """A decoding may capture one round per draft size that it uses, and one more."""
    monkeypatch.setenv("ADT_TREE_CACHE", str(tmp_path))
    captured = []
    for _ in range(3):
        decoding = run(target, drafters["network"], PROMPTS[:1], drafting=Drafting("auto"))
        sizes = {records.images[0].depth_asked for records in decoding.trace.rounds}
        captured.append(tape.captured)
        assert sum(round.prepared for round in decoding.trace.rounds) <= len(sizes) + 1
        assert tape.captured == captured[-1] and not get_runtime().graph_failures
    assert decoding.profile.decodings > 0


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("lantern", [Lantern(delta=0.3), Lantern(factor=3.0, max_substitution=0.2)])
def test_relaxed_images_are_the_same_with_graphs(target, drafters, as_on_a_gpu, lantern, temperature):
    """With LANTERN, the image depends on the trees. All have the same depth and width, so graphs don't change them."""
    sampling = Sampling(temperature=temperature)
    drafting = Drafting("eagle2", depth=3, width=2, drafts=6)
    settings = {"drafting": drafting, "lantern": lantern, "sampling": sampling}
    expected = run(target, drafters["network"], PROMPTS[:1], **settings)
    as_on_a_gpu(Tape())
    found = run(target, drafters["network"], PROMPTS[:1], **settings)
    assert found.codes.equal(expected.codes) and not get_runtime().graph_failures
    assert not expected.codes.equal(run(target, prompts=PROMPTS[:1], sampling=sampling).codes)


@pytest.mark.parametrize(
    "name",
    ["adt-tree", "merged"] + [pytest.param(name, marks=pytest.mark.long) for name in ("eagle2", "static", "jacobi")],
)
def test_trees_and_accepted_drafts_are_the_same_with_graphs(target, drafters, as_on_a_gpu, name):
    """Near the end of an image, positions after the end are cut off without graphs, and invalid nodes with graphs."""
    source, options = METHODS[name]

    def entries():
        decoding = run(target, drafters[source], PROMPTS[:1], drafting=Drafting(**options))
        every = [record for round in decoding.trace.rounds for record in round.images]
        return [record for record in every if record.position < target.length - 2 - 12]

    expected = entries()
    as_on_a_gpu(Tape())
    assert entries() == expected and not get_runtime().graph_failures


@pytest.mark.parametrize("name", [None, "merged", pytest.param("adt-tree", marks=pytest.mark.long)])
def test_masked_images_are_the_same_with_graphs(target, drafters, as_on_a_gpu, monkeypatch, name):
    """Both masks begin at the same token, so the second batch reuses the memory and the rounds of the first one."""
    source, options = CASES[name]
    kept = (torch.arange(2 * target.num_cells) % target.num_codes).view(2, -1)
    masks = kept.clone(), kept.clone()
    masks[0][:, [2, 3, 8, 9, 10, 11, 12, 13]] = -1
    masks[1][:, [2, 5, 6, 7, 14]] = -1

    def draw():
        how = {"drafting": Drafting(**options), "sampling": Sampling(seed=1)}
        return [run(target, drafters.get(source), PROMPTS[:2], kept=mask, **how).codes for mask in masks]

    expected = draw()
    tape = as_on_a_gpu(Tape())
    ledgers = count_replays(tape, monkeypatch)
    found = draw()
    assert all(ledger.reads == 1 for ledger in ledgers)
    assert all(map(torch.equal, found, expected)) and not get_runtime().graph_failures
    assert tape.replayed > tape.captured, "some rounds are replayed again"


def test_plain_rounds_do_not_access_the_drafters_memory(target, drafters, as_on_a_gpu, monkeypatch):
    """Plain rounds run before the first drafts, and after drafting has ended and the drafter's memory is freed."""
    ended = []

    def stop(slots):
        ended.append((slots.proposer, [part.clone() for part in slots.proposer.state()]))
        stop_drafting(slots)

    def observe_and_stop(policy, round):
        observe(policy, round)
        policy.is_drafting = round.index < 2

    stop_drafting = Slots.stop_drafting
    observe = Auto.on_verified
    monkeypatch.setattr(Slots, "stop_drafting", stop)
    monkeypatch.setattr(Auto, "on_verified", observe_and_stop)
    as_on_a_gpu(Tape())
    found = run(target, drafters["jacobi"], PROMPTS[:1], drafting=Drafting("auto"), profile=costs("window"))
    depths = [record.depth for round in found.trace.rounds[:4] for record in round.images]
    assert [depth > 0 for depth in depths] == [False, True, True, False]
    ((proposer, before),) = ended
    assert all(map(torch.equal, proposer.state(), before)) and not get_runtime().graph_failures


# ---- one launch, one synchronisation -------------------------------------------------------------


@pytest.mark.parametrize(
    "name, images",
    [
        *((None, 3), ("merged", 3), ("adt-tree", 1)),
        *(pytest.param(name, 3, marks=pytest.mark.long) for name in METHODS if name != "merged"),
        *(pytest.param(name, 1, marks=pytest.mark.long) for name in (None, "merged")),
    ],
)
def test_a_steady_round_is_one_launch_and_one_synchronisation(target, drafters, tape, monkeypatch, name, images):
    """In addition to the replay, the control tensor is copied in each round. In some rounds, new noise is copied."""
    source, options = CASES[name]
    steady = count_replays(tape, monkeypatch)
    run(target, drafters.get(source), PROMPTS[:images], drafting=Drafting(**options), sampling=Sampling(seed=1))
    assert len(steady) > 5 and not get_runtime().graph_failures
    for ledger in steady:
        assert ledger.reads == 1 and ledger.uploads <= 1
        assert ledger.launches <= 1 + 3 * images, "more launches than for the control tensor and noise"


# ---- from one decoding to the next -------------------------------------------------------------


def test_captured_rounds_are_reused_by_the_next_decoding(target, drafters, tape):
    """The drafter's state must be reset, so that repeating an image gives the same trees."""
    settings = {"drafting": Drafting("eagle2", depth=12, width=3, drafts=16)}
    first = run(target, drafters["network+jacobi"], PROMPTS[:1], sampling=Sampling(seed=1), **settings)
    run(target, drafters["network+jacobi"], PROMPTS[1:2], sampling=Sampling(seed=2), **settings)
    captured = tape.captured
    again = run(target, drafters["network+jacobi"], PROMPTS[:1], sampling=Sampling(seed=1), **settings)
    assert tape.captured == captured
    assert [round.images for round in again.trace.rounds] == [round.images for round in first.trace.rounds]


@pytest.mark.parametrize(
    "change",
    [
        {"sampling": Sampling(temperature=0.5)},
        {"drafting": Drafting("eagle2", depth=2, width=2, drafts=4)},
        pytest.param({"prompts": PROMPTS[:2]}, marks=pytest.mark.long),
        {"prompts": ("a very long description of a cat " * 3,)},
        pytest.param({"lantern": Lantern()}, marks=pytest.mark.long),
        {"kept": torch.zeros(1, 3, dtype=torch.long)},
    ],
    ids=["sampling", "drafting", "images", "length", "lantern", "prefix"],
)
def test_other_settings_are_captured_separately(target, drafters, tape, change):
    how = {"prompts": PROMPTS[:1], "drafting": Drafting("eagle2"), "sampling": Sampling()}
    run(target, drafters["network"], **how)
    captured = tape.captured
    run(target, drafters["network"], **how | change)
    assert tape.captured > captured and not get_runtime().graph_failures


def test_weights_that_have_moved_are_captured_again(target, drafters, tape):
    """ComfyUI may move a model between two runs. Graphs contain the old addresses of the weights."""
    how = {"prompts": PROMPTS[:1], "drafting": Drafting("eagle2")}
    expected = run(target, drafters["network"], **how)
    captured = tape.captured
    last = target.decoder.layers[-1].down
    last.data = last.data.clone()
    assert run(target, drafters["network"], **how).codes.equal(expected.codes)
    assert tape.captured == 2 * captured


def test_alternating_methods_reuse_their_own_slots(target, drafters, tape):
    """The Compare node alternates between methods."""

    def both():
        run(target, None, PROMPTS[:1])
        run(target, drafters["network"], PROMPTS[:1], drafting=Drafting("eagle2"))

    both()
    captured = tape.captured
    both()
    assert tape.captured == captured


def test_the_pool_is_bounded(target, drafters, tape, monkeypatch):
    monkeypatch.setattr(pool, "MAX_POOLED", 2)
    held = []
    for seed in range(4):
        sampling = Sampling(temperature=1.0 + seed)
        run(target, drafters["network"], PROMPTS[:1], drafting=Drafting("eagle2"), sampling=sampling)
        held.append(target.decoder.pool_bytes)
    assert held[1] == 2 * held[0] and held[1:] == [held[1]] * 3


def test_the_pool_is_released_before_the_batch_becomes_smaller(target, drafters, tape, monkeypatch, caplog):
    how = {"prompts": PROMPTS, "drafting": Drafting("eagle2")}
    expected = run(target, drafters["network"], **how)
    failures = [torch.cuda.OutOfMemoryError("CUDA out of memory.")]

    def out_of_memory_once(*arguments):
        if failures:
            raise failures.pop()
        return run_round(*arguments)

    run(target, None, PROMPTS[:1])  # also leaves slots in the pool
    monkeypatch.setattr("adt_core.engine.decoding.run_round", out_of_memory_once)
    found = run(target, drafters["network"], **how)
    assert not failures and found.batch_size == 3 and not caplog.records
    assert found.codes.equal(expected.codes)


def test_a_released_pool_holds_no_memory(target, drafters, tape):
    run(target, drafters["network"], PROMPTS[:1], drafting=Drafting("eagle2"))
    assert target.decoder.pool_bytes > 0
    target.decoder.free_pool()
    assert target.decoder.pool_bytes == 0


def test_the_slots_of_a_cancelled_run_are_reused(target, drafters, tape):
    def check():
        if len(decoding.trace.rounds) == 6:
            raise KeyboardInterrupt

    how = {"drafting": Drafting("eagle2", depth=12, width=3, drafts=16), "sampling": Sampling(seed=5)}
    expected = run(target, drafters["network+jacobi"], PROMPTS[:1], **how)
    captured = tape.captured
    prompt = target.encode_prompt(PROMPTS[0])
    decoding = new_decoding(target, [prompt], drafter=drafters["network+jacobi"], check=check, **how)
    with pytest.raises(KeyboardInterrupt):
        decoding.run()
    assert run(target, drafters["network+jacobi"], PROMPTS[:1], **how).codes.equal(expected.codes)
    assert tape.captured == captured


# ---- failures ----------------------------------------------------------------------------------


class FailsToCapture(Tape):
    def __call__(self, run):
        raise RuntimeError("CUDA error: operation not permitted when stream is capturing\nCompile with more.")


class CapturesNothing(Tape):
    """Recorder that captures nothing, as if kernels were launched on another device."""

    def __call__(self, run):
        run()
        return lambda: None


class CapturesWrongly(Tape):
    def __call__(self, run):
        return lambda: run().add_(1)


@pytest.mark.parametrize(
    "recorder, reason",
    [
        (FailsToCapture, "CUDA error: operation not permitted when stream is capturing"),
        (CapturesNothing, "a replayed round gave other results than a launched one"),
        (CapturesWrongly, "a replayed round gave other results than a launched one"),
    ],
)
def test_a_failed_or_wrong_capture_is_logged_once(target, drafters, as_on_a_gpu, caplog, recorder, reason):
    expected = run(target).codes
    as_on_a_gpu(recorder())
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert run(target, drafters["network"], drafting=Drafting("adt-tree")).codes.equal(expected)
    messages = [record.getMessage() for record in caplog.records]
    assert messages == [f"CUDA graphs are off, which is slower but does not change the image: {reason}."]


class FailsOnce(Tape):
    """Recorder that runs out of memory at the third replay, with the error message of the CUDA driver."""

    def __call__(self, run):
        replay = super().__call__(run)

        def fail_once():
            replay()
            if self.replayed == 3:
                raise RuntimeError("CUDA error: out of memory\nCompile with more.")

        return fail_once


def test_an_out_of_memory_error_of_the_driver_is_handled_as_torchs(target, drafters, as_on_a_gpu, caplog):
    expected = run(target, prompts=PROMPTS).codes
    as_on_a_gpu(FailsOnce())
    found = run(target, drafters["network"], PROMPTS, drafting=Drafting("eagle2"))
    assert found.codes.equal(expected) and found.batch_size == 1 and not get_runtime().graph_failures
    assert [record.getMessage() for record in caplog.records] == ["Out of memory; continuing with one image at a time."]


def test_no_graphs_on_a_cpu_or_if_disabled(target, tape, monkeypatch):
    assert graphs.make_recorder(torch.device("cpu")) is None
    monkeypatch.setenv(graphs.VARIABLE, "0")
    run(target, None, PROMPTS[:1])
    assert tape.captured == 0
    monkeypatch.delenv(graphs.VARIABLE)
    run(target, None, PROMPTS[:1])
    captured = tape.captured
    assert captured > 0
    monkeypatch.setenv(graphs.VARIABLE, "0")
    replayed = tape.replayed
    run(target, None, PROMPTS[:1])
    assert (tape.captured, tape.replayed) == (captured, replayed)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", METHODS)
def test_real_graphs(folders, name, monkeypatch, caplog):
    """On a GPU, a captured round must give the same image as an eager round. float64 avoids near ties."""
    source, options = METHODS[name]
    target = load_target(folders[0], "cuda", torch.float64)
    drafters = drafters_by_name(load_drafter(folders[1], target))
    monkeypatch.setenv(graphs.VARIABLE, "0")
    expected = run(target).codes
    monkeypatch.delenv(graphs.VARIABLE)
    target.decoder.free_pool()
    for _ in range(2):
        assert run(target, drafters[source], drafting=Drafting(**options)).codes.equal(expected)
    assert not get_runtime().graph_failures and not caplog.records


def test_the_number_of_attended_positions_doubles():
    """Few rounds are captured, although an image of Emu3 has more than 8,000 tokens."""
    read = set()
    for position in range(8190):
        rows = SimpleNamespace(cache_offset=128, columns=range(8400))
        request = SimpleNamespace(uncommitted=64)
        read.add(Slots._columns(SimpleNamespace(positions=[position], rows=rows, request=request)))
        assert max(read) >= position + 128 + 64 and max(read) <= max(512, 2 * (position + 192))
    assert read == {512, 1024, 2048, 4096, 8192, 8400}
