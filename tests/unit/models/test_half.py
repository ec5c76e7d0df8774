"""Tests of half precision: kernels that the batch-invariant mode requires, tiled products, and conversion on CPUs."""

from unittest import mock

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from adt_core import load_target
from adt_core.models import batch_invariance, layers
from adt_core.runtime import new_runtime
from tests.drafted import run


def test_the_trace_contains_the_batch_invariant_mode(tiny, monkeypatch):
    target = load_target(tiny / "target", dtype=torch.bfloat16)
    assert run(target).trace.settings["exact"] is True
    monkeypatch.setattr(target.decoder, "exact", False)
    assert run(target).trace.settings["exact"] is False


def test_a_check_that_runs_out_of_memory_is_repeated(runtime, monkeypatch):
    """If the check weren't repeated, all keys would be added in float64 until the process ends."""
    full = torch.cuda.OutOfMemoryError("CUDA out of memory.")
    monkeypatch.setattr(batch_invariance, "far_attention", mock.Mock(side_effect=[full, None]))
    model = torch.device("cpu"), torch.bfloat16, 64
    with pytest.raises(torch.cuda.OutOfMemoryError):
        batch_invariance.near_window(*model)
    assert batch_invariance.near_window(*model) == batch_invariance.NEAR_WINDOW


def test_the_kernel_is_checked_for_the_models_dtype(tiny, monkeypatch):
    """Older GPUs have this kernel in float16, but not in bfloat16."""
    checked = []
    monkeypatch.setattr("adt_core.engine.request.near_window", lambda *model: checked.append(model))
    target = load_target(tiny / "target", dtype=torch.float16)
    run(target)
    assert set(checked) == {(torch.device("cpu"), torch.float16, target.decoder.config.head_dim)}


def test_the_kernel_of_amds_gpus_is_not_used(monkeypatch):
    monkeypatch.setattr(batch_invariance, "far_attention", lambda *_: None)
    model = torch.device("cpu"), torch.float16, 64
    for version, near in ((None, batch_invariance.NEAR_WINDOW), ("6.4", None)):
        monkeypatch.setattr(torch.version, "hip", version)
        with new_runtime():
            assert batch_invariance.near_window(*model) == near


@pytest.mark.parametrize("even", [True, False], ids=["the same bits", "other bits"])
def test_rows_are_multiplied_at_once_if_bitwise_equal_to_tiles(runtime, even):
    x = torch.arange(96.0).view(12, 8)
    plus = torch.ones(12, 3)
    calls = []

    def multiply(rows, added):
        calls.append(len(rows))
        return added.add_(rows[:, :3] if even else rows[:, :3] * len(rows))

    expected = torch.cat([multiply(*parts) for parts in zip(x.split(4), plus.clone().split(4))])
    batch_invariance.tiled_matmul(multiply, x, plus.clone(), 4, "a kind of product")
    calls.clear()
    assert batch_invariance.tiled_matmul(multiply, x, plus.clone(), 4, "a kind of product").equal(expected)
    assert calls == ([12] if even else [4, 4, 4])


@pytest.mark.usefixtures("runtime")
def test_padding_does_not_change_whether_products_are_equal():
    x = torch.ones(8, 3)
    x[5:] = torch.nan
    sizes = []

    def multiply(rows, added):
        sizes.append(len(rows))
        return 2 * rows

    for _ in range(2):
        batch_invariance.tiled_matmul(multiply, x, None, 4, "padded product", 5)
    assert sizes == [4, 4, 8, 8], "the second product multiplies all rows at once"


class RecordedDtypes(TorchDispatchMode):
    """Recorder of the dtypes of the factors of matrix products, and of converted tensors."""

    def __init__(self):
        super().__init__()
        self.multiplied = set()
        self.converted = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func._schema.name
        if any(word in name for word in ("matmul", "::mm", "addmm", "_linear")):
            self.multiplied |= {one.dtype for one in args if isinstance(one, torch.Tensor)}
        if name in ("aten::to", "aten::_to_copy"):
            self.converted.append(args[0].dtype)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("even", [True, False], ids=["at once", "in tiles"])
@torch.inference_mode()
def test_a_quantised_weight_is_converted_once_for_all_rows(runtime, monkeypatch, even):
    multiply = layers._multiply
    if not even:
        monkeypatch.setattr(layers, "_multiply", lambda *given: multiply(*given) * len(given[2]))
    x = torch.randn(12, 64).bfloat16()
    weight = torch.randint(-9, 9, (64, 96), dtype=torch.int8)
    layers.product(x, weight, torch.ones(96), tile=4)
    with RecordedDtypes() as seen:
        layers.product(x, weight, torch.ones(96), tile=4)
    assert seen.converted.count(torch.int8) == 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("fast", [torch.bfloat16, torch.float16], ids=str)
@torch.inference_mode()
def test_dtypes_that_a_cpu_does_not_multiply_are_converted(monkeypatch, dtype, fast):
    """Some CPUs can multiply in bfloat16, but not in float16."""
    monkeypatch.setattr(layers, "supports_half_matmul", lambda checked: checked == fast)
    with RecordedDtypes() as seen:
        layers.product(torch.randn(4, 64).to(dtype), torch.randn(64, 96).to(dtype))
    assert seen.multiplied == {dtype if dtype == fast else torch.float32}
