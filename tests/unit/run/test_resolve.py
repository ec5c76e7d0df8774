"""Tests of the choice of device and dtype from what PyTorch reports about a machine."""

import math

import torch

from adt_core.run import resolve
from adt_core.run.resolve import Hardware, choose_device, choose_dtype, float32_bytes
from tests.raising import raises_key

NEW = Hardware(torch.device("cuda"), bfloat16=True, float16=True, memory=1e9)
OLD = Hardware(torch.device("cuda"), bfloat16=False, float16=True, memory=1e9)
NEITHER = Hardware(torch.device("xpu"), bfloat16=False, float16=False)


def test_auto_chooses_the_dtype_that_a_device_computes_well(tiny):
    """A GPU without bfloat16 computes in float32 if the model fits into its memory, and else in float16."""
    model = str(tiny / "target")
    needed = resolve.WORKING_SHARE * float32_bytes(model)
    assert float32_bytes(model) == 4 * sum(math.prod(shape) for shape in shapes(model))
    expected = {
        (Hardware(torch.device("cpu")), None): "float32",
        (NEW, None): "bfloat16",
        (NEITHER, None): "float32",
        (OLD._replace(memory=needed), None): "float32",
        (OLD._replace(memory=needed - 1), None): "float16",
        (OLD._replace(memory=needed), "int8"): "float16",
    }
    for (hardware, weights), dtype in expected.items():
        assert choose_dtype("auto", model, weights, hardware) == dtype, (hardware, weights)
    assert choose_dtype("auto", "bundled", None, NEW) == "float32"
    assert choose_dtype("float64", model, "int8", OLD) == "float64"


def shapes(model):
    checkpoint = resolve.open_checkpoint(model)
    return [checkpoint[name].shape for name in checkpoint.names]


def test_a_device_must_exist(monkeypatch):
    monkeypatch.setattr(resolve, "_device_count", lambda kind: {"cpu": 1, "cuda": 2}.get(kind, 0))
    assert choose_device("cuda:1") == torch.device("cuda:1") and choose_device("cuda").index is None
    for device, key, values in (
        ("cuda:2", "device.number", {"count": 2}),
        ("xpu", "device.missing", {"kind": "XPU"}),
        ("banana", "device.unknown", {"device": "'banana'"}),
    ):
        with raises_key(key, **values):
            choose_device(device)
