"""Tests of CPU threads. The engine must limit threads during a round, and then restore the caller's setting."""

import pytest
import torch

from adt_core import Decoding, Drafting
from adt_core.engine import decoding as decodings
from adt_core.engine import request as requests
from adt_core.policies import PLAIN


@pytest.fixture(params=[1, 3])
def threads(request):
    """Set the number of threads, as a program that calls the engine does. Return this number."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize("method", [PLAIN, "eagle2", "auto"])
@pytest.mark.parametrize("small", [True, False])
def test_a_small_model_runs_on_one_thread_and_a_large_one_on_all(models, threads, monkeypatch, method, small):
    seen = []
    work = decodings.run_round
    monkeypatch.setattr(decodings, "run_round", lambda *args: seen.append(torch.get_num_threads()) or work(*args))
    if not small:
        monkeypatch.setattr(requests, "MAX_ONE_THREAD_PARAMETERS", 0)
    target, drafter = models
    decoding = Decoding(target, [target.encode_prompt("a cat")], drafting=Drafting(method), drafter=drafter)
    for _ in decoding:
        assert torch.get_num_threads() == threads, "the setting was not restored between rounds"
    own = 1 if small else threads
    assert set(seen) == {own} and torch.get_num_threads() == threads
    assert decoding.trace.settings["threads"] == own


def test_threads_are_restored_when_a_round_fails(models, threads, monkeypatch):
    def fail(*_):
        raise ValueError("no")

    monkeypatch.setattr(decodings, "run_round", fail)
    target, _ = models
    with pytest.raises(ValueError, match="no"):
        list(Decoding(target, [target.encode_prompt("a cat")], drafting=Drafting(PLAIN)))
    assert torch.get_num_threads() == threads
