"""Half precision, which GPUs use: what its exact mode says, and what it asks of a device."""

from unittest import mock

import pytest
import torch

from adt_core import load_target
from adt_core.models import exact
from tests.drafted import run


def test_the_trace_says_whether_it_is_exact(tiny, monkeypatch):
    target = load_target(tiny / "target", dtype=torch.bfloat16)
    assert run(target).trace.settings["exact"] is True
    monkeypatch.setattr(target.decoder, "exact", False)
    assert run(target).trace.settings["exact"] is False


def test_a_lack_of_memory_is_not_taken_for_a_missing_kernel(monkeypatch):
    """Tried again, there is one, and else all keys would be added in float64 for the rest of the process."""
    full = torch.cuda.OutOfMemoryError("CUDA out of memory.")
    monkeypatch.setattr(exact, "far_attention", mock.Mock(side_effect=[full, None]))
    model = torch.device("cpu"), torch.bfloat16, 64
    exact.near_on.cache_clear()
    with pytest.raises(torch.cuda.OutOfMemoryError):
        exact.near_on(*model)
    assert exact.near_on(*model) == exact.NEAR
    exact.near_on.cache_clear()


def test_a_model_asks_for_the_kernel_of_its_own_kind(tiny, monkeypatch):
    """Older GPUs have it in float16 and not in bfloat16."""
    asked = []
    monkeypatch.setattr("adt_core.engine.task.near_on", lambda *model: asked.append(model))
    target = load_target(tiny / "target", dtype=torch.float16)
    run(target)
    assert set(asked) == {(torch.device("cpu"), torch.float16, target.decoder.config.head_dim)}
