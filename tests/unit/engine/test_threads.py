"""Tests of CPU threads.

The engine must limit threads during a round, and then restore the caller's setting. A small model uses more than one
thread only if other cores are idle, and if the number of threads changes no bit.
"""

from functools import partial
from itertools import chain, repeat
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch

from adt_core import Drafting, Sampling, load_drafter, load_target
from adt_core.engine import decoding as decodings
from adt_core.engine import request as requests
from adt_core.engine.device import threads as threads_module
from adt_core.engine.device.products import product_report
from adt_core.engine.device.threads import CALM_LOOKS, LOOK_SECONDS, CpuSample, ThreadChoice, available_cores
from adt_core.policies import PLAIN
from tests.drafted import new_decoding


@pytest.fixture(params=[1, 3])
def threads(request, restored_threads):
    """Set the number of threads, as a program that calls the engine does. Return this number."""
    torch.set_num_threads(request.param)
    return request.param


@pytest.mark.parametrize("method", [PLAIN, "eagle2", "auto"])
@pytest.mark.parametrize("small", [True, False])
def test_a_small_model_runs_on_one_thread_and_a_large_one_on_all(models, threads, monkeypatch, method, small):
    seen = []
    work = decodings.run_round
    monkeypatch.setattr(decodings, "run_round", lambda *args: seen.append(torch.get_num_threads()) or work(*args))
    if not small:
        monkeypatch.setattr(requests, "MAX_ONE_THREAD_PARAMETERS", 0)
    target, drafter = models
    decoding = new_decoding(target, [target.encode_prompt("a cat")], drafting=Drafting(method), drafter=drafter)
    for _ in decoding:
        assert torch.get_num_threads() == threads, "the setting was not restored between rounds"
    own = 1 if small else threads
    assert set(seen) == {own} and torch.get_num_threads() == threads
    assert decoding.trace.settings["threads"] == own


def test_threads_are_restored_when_a_round_fails(models, threads, monkeypatch):
    monkeypatch.setattr(decodings, "run_round", Mock(side_effect=ValueError("no")))
    target, _ = models
    with pytest.raises(ValueError, match="no"):
        list(new_decoding(target, [target.encode_prompt("a cat")], drafting=Drafting(PLAIN)))
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize(
    "available, least, most, expected",
    [(2.0, 1, 4, 2), (1.7, 1, 4, 1), (2.9, 1, 4, 3), (7.9, 1, 4, 4), (0.1, 1, 4, 1), (7.9, 1, 1, 1), (0.5, 8, 4, 8)],
)
def test_a_decoding_uses_the_cores_that_are_idle(monkeypatch, available, least, most, expected):
    monkeypatch.setattr(threads_module, "available_cores", lambda: available)
    assert ThreadChoice(least, most).first == expected


@pytest.fixture
def looks(monkeypatch):
    """Make a choice between 1 and 4 threads, which begins with 4. Return a function that looks after some time."""
    now = [0.0]
    available = [4.0]
    monkeypatch.setattr(threads_module.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(threads_module, "available_cores", lambda: available[0])
    choice = ThreadChoice(1, 4)

    def look(cores, seconds=1.01 * LOOK_SECONDS):
        now[0] += seconds
        available[0] = cores
        choice.update()
        return choice.count

    return look


def test_the_number_of_threads_falls_as_soon_as_other_processes_are_busy(looks):
    assert [looks(3.9), looks(2.1), looks(0.6)] == [4, 2, 1]


def test_the_number_of_threads_rises_after_several_looks(looks):
    looks(1.0)
    assert [looks(4.0) for _ in range(CALM_LOOKS)] == [1] * (CALM_LOOKS - 1) + [4]


def test_a_pause_of_other_processes_does_not_raise_the_number_of_threads(looks):
    looks(1.0)
    assert {looks(cores) for _ in range(5) for cores in [*[4.0] * (CALM_LOOKS - 1), 1.0]} == {1}


def test_the_use_of_the_cpu_is_not_measured_in_every_round(looks):
    assert looks(1.0, LOOK_SECONDS / 2) == 4
    assert looks(1.0, LOOK_SECONDS) == 1


@pytest.mark.parametrize(
    "logical, physical, idle, expected",
    [(2, 2, 2.0, 2.0), (2, 2, 1.0, 1.0), (8, 4, 8.0, 4.0), (8, 4, 6.0, 2.0), (8, None, 6.0, 6.0), (4, 2, 0.5, -1.5)],
)
def test_two_busy_threads_of_a_core_count_as_two_cores(runtime, monkeypatch, logical, physical, idle, expected):
    counts = {True: logical, False: physical}
    monkeypatch.setattr(threads_module.psutil, "cpu_count", lambda logical=True: counts[logical])
    samples = iter([CpuSample(100.0, 50.0), CpuSample(100.1, 50.0 + 0.1 * idle)])
    monkeypatch.setattr(threads_module, "_sample", lambda: next(samples))
    assert available_cores() == pytest.approx(expected)


@pytest.mark.parametrize("pause, waits", [(0.0, True), (0.5, False), (60.0, True)])
def test_the_use_of_the_cpu_is_measured_since_the_last_decoding(runtime, monkeypatch, pause, waits):
    """Without a recent measurement, the first decoding waits for a short one."""
    now = [0.0]
    slept = []
    monkeypatch.setattr(threads_module, "_sample", lambda: CpuSample(now[0], 2 * now[0]))
    monkeypatch.setattr(
        threads_module.time, "sleep", lambda seconds: slept.append(seconds) or now.append(now.pop() + seconds)
    )
    available_cores()
    assert slept == [threads_module.SAMPLE_SECONDS]
    now[0] += pause
    available_cores()
    assert len(slept) == 1 + waits


def test_work_of_this_process_counts_as_available(monkeypatch):
    monkeypatch.setattr(threads_module.psutil, "cpu_times", lambda: SimpleNamespace(idle=10.0, iowait=2.0))
    own = SimpleNamespace(cpu_times=lambda: SimpleNamespace(user=3.0, system=1.0))
    monkeypatch.setattr(threads_module.psutil, "Process", lambda: own)
    assert threads_module._sample().available == 16.0


@pytest.mark.parametrize("guidance", [1.0, 2.0])
def test_more_threads_give_the_same_tokens(tiny, runtime, four_threads, monkeypatch, guidance):
    target = load_target(tiny / "target", dtype=torch.float32)
    drafter = load_drafter(tiny / "drafter", target)
    found = []
    for cores in (1, 2, 4):
        monkeypatch.setattr(threads_module, "available_cores", lambda cores=cores: cores)
        for drafting in (Drafting(PLAIN), Drafting("auto")):
            sampling = Sampling(guidance_scale=guidance)
            rows = [target.encode_prompt("a cat")]
            decoding = new_decoding(target, rows, sampling=sampling, drafting=drafting, drafter=drafter).run()
            most = product_report(decoding.request).threads
            assert decoding.trace.settings["threads"] == min(cores, most)
            found.append(decoding.codes)
    assert all(torch.equal(codes, found[0]) for codes in found)


def test_a_decoding_changes_its_threads_and_not_its_tokens(tiny, runtime, four_threads, monkeypatch):
    """Costs are learned only from rounds with the number of threads that the cost profile is for."""
    target = load_target(tiny / "target", dtype=torch.float32)
    drafter = load_drafter(tiny / "drafter", target)
    monkeypatch.setattr(threads_module, "LOOK_SECONDS", 0.0)
    found = []
    for changing in (False, True):
        cores = chain([2.0] * 4, repeat(1.0 if changing else 2.0))
        monkeypatch.setattr(threads_module, "available_cores", partial(next, cores))
        decoding = new_decoding(target, [target.encode_prompt("a cat")], drafting=Drafting("auto"), drafter=drafter)
        recorded = []
        monkeypatch.setattr(decoding._costs, "record", lambda *_, used=recorded: used.append(torch.get_num_threads()))
        threads = [decoding._conditions.threads.count for _ in decoding]
        first = min(2, product_report(decoding.request).threads)
        assert decoding.trace.settings["threads"] == first
        assert set(threads) == ({1, first} if changing else {first})
        assert recorded == [count for count in threads if count == first]
        found.append(decoding.codes)
    assert torch.equal(*found)
