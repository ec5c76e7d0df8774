"""Tests of the dtype that the Model Loader chooses automatically."""

import pytest
import torch
from small import SMALL

GPUS = {
    "with bfloat16": (True, 8e9, torch.bfloat16),
    "without bfloat16, large enough for float32": (False, 8e9, torch.float32),
    "without bfloat16, too small for float32": (False, 1e5, torch.float16),
}
"""Name -> whether the GPU supports bfloat16, memory of the GPU in bytes, and expected dtype."""


@pytest.fixture
def chosen(pack, monkeypatch):
    """Return a function that returns the dtype for a GPU, and the lines under the node."""
    loaders = pack.package(".nodes.loaders")
    shown = []
    monkeypatch.setattr(loaders, "tell", shown.append)

    def choose(has_bfloat16, memory, model=SMALL, weights=None):
        path = model if model == "bundled" else str(pack.base / "models" / "ar_image" / model)
        monkeypatch.setattr(pack.package(".nodes.comfy_runtime"), "has_bfloat16", lambda device: has_bfloat16)
        found = {"get_torch_device": torch.device("cuda"), "should_use_fp16": True, "get_total_memory": memory}
        for name, value in found.items():
            monkeypatch.setattr(loaders.mm, name, lambda *_, value=value: value)
        return loaders._dtype(f"{weights} weights" if weights else "auto", path), shown

    return choose


@pytest.mark.parametrize("gpu", GPUS)
def test_chosen_dtype_depends_on_the_gpu(chosen, gpu):
    has_bfloat16, memory, expected = GPUS[gpu]
    dtype, shown = chosen(has_bfloat16, memory)
    assert dtype == expected
    is_told = [line.startswith("float16, because this card has no bfloat16") for line in shown]
    assert is_told == [True] * (expected == torch.float16)


def test_int8_weights_compute_in_half_precision(chosen):
    assert chosen(False, 1e5, weights="int8") == (torch.float16, [])
    assert chosen(True, 1e5, weights="int8") == (torch.bfloat16, [])


def test_bundled_model_uses_float32(chosen):
    assert chosen(True, 8e9, model="bundled") == (torch.float32, [])
