"""Half precision, which GPUs use: what its exact mode says, and what it asks of a device."""

from unittest import mock

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from adt_core import load_target
from adt_core.models import batch_invariance, layers
from adt_core.runtime import new_runtime
from tests.drafted import run


def test_the_trace_says_whether_it_is_exact(tiny, monkeypatch):
    target = load_target(tiny / "target", dtype=torch.bfloat16)
    assert run(target).trace.settings["exact"] is True
    monkeypatch.setattr(target.decoder, "exact", False)
    assert run(target).trace.settings["exact"] is False


def test_a_lack_of_memory_is_not_taken_for_a_missing_kernel(runtime, monkeypatch):
    """Tried again, there is one, and else all keys would be added in float64 for the rest of the process."""
    full = torch.cuda.OutOfMemoryError("CUDA out of memory.")
    monkeypatch.setattr(batch_invariance, "far_attention", mock.Mock(side_effect=[full, None]))
    model = torch.device("cpu"), torch.bfloat16, 64
    with pytest.raises(torch.cuda.OutOfMemoryError):
        batch_invariance.near_window(*model)
    assert batch_invariance.near_window(*model) == batch_invariance.NEAR_WINDOW


def test_a_model_asks_for_the_kernel_of_its_own_kind(tiny, monkeypatch):
    """Older GPUs have it in float16 and not in bfloat16."""
    asked = []
    monkeypatch.setattr("adt_core.engine.request.near_window", lambda *model: asked.append(model))
    target = load_target(tiny / "target", dtype=torch.float16)
    run(target)
    assert set(asked) == {(torch.device("cpu"), torch.float16, target.decoder.config.head_dim)}


def test_of_the_kernel_of_amds_gpus_nothing_is_known(monkeypatch):
    monkeypatch.setattr(batch_invariance, "far_attention", lambda *_: None)
    model = torch.device("cpu"), torch.float16, 64
    for version, near in ((None, batch_invariance.NEAR_WINDOW), ("6.4", None)):
        monkeypatch.setattr(torch.version, "hip", version)
        with new_runtime():
            assert batch_invariance.near_window(*model) == near


@pytest.mark.parametrize("even", [True, False], ids=["the same bits", "other bits"])
def test_all_rows_are_multiplied_at_once_where_that_has_the_bits_of_tiles(runtime, even):
    x, plus, asked = torch.arange(96.0).view(12, 8), torch.ones(12, 3), []

    def multiply(rows, added):
        asked.append(len(rows))
        return added.add_(rows[:, :3] if even else rows[:, :3] * len(rows))

    expected = torch.cat([multiply(*parts) for parts in zip(x.split(4), plus.clone().split(4))])
    batch_invariance.tiled_matmul(multiply, x, plus.clone(), 4, "a kind of product")
    asked.clear()
    assert batch_invariance.tiled_matmul(multiply, x, plus.clone(), 4, "a kind of product").equal(expected)
    assert asked == ([12] if even else [4, 4, 4])


class Seen(TorchDispatchMode):
    """Dtypes of what is multiplied, and of what is converted."""

    def __init__(self):
        super().__init__()
        self.multiplied, self.converted = set(), []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func._schema.name
        if any(word in name for word in ("matmul", "::mm", "addmm", "_linear")):
            self.multiplied |= {one.dtype for one in args if isinstance(one, torch.Tensor)}
        if name in ("aten::to", "aten::_to_copy"):
            self.converted.append(args[0].dtype)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("even", [True, False], ids=["at once", "in tiles"])
@torch.inference_mode()
def test_a_weight_of_bytes_is_widened_once_for_all_rows(runtime, monkeypatch, even):
    multiply = layers._multiply
    if not even:
        monkeypatch.setattr(layers, "_multiply", lambda *given: multiply(*given) * len(given[2]))
    x, weight = torch.randn(12, 64).bfloat16(), torch.randint(-9, 9, (64, 96), dtype=torch.int8)
    layers.product(x, weight, torch.ones(96), tile=4)
    with Seen() as seen:
        layers.product(x, weight, torch.ones(96), tile=4)
    assert seen.converted.count(torch.int8) == 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("fast", [torch.bfloat16, torch.float16], ids=str)
@torch.inference_mode()
def test_what_a_cpu_can_not_multiply_is_widened(monkeypatch, dtype, fast):
    """Those that have products in bfloat16 need not have them in float16."""
    monkeypatch.setattr(layers, "supports_half_matmul", lambda asked: asked == fast)
    with Seen() as seen:
        layers.product(torch.randn(4, 64).to(dtype), torch.randn(64, 96).to(dtype))
    assert seen.multiplied == {dtype if dtype == fast else torch.float32}
