"""Tests of the trials of Triton kernels: faulty kernels are not used.

The references take the place of the kernels, so the tests need neither a GPU nor Triton.
"""

from functools import partial

import pytest
import torch

from adt_core.kernels import attend, choice, gate, linear, norm, norm_rope_store, verdicts
from tests.unit.kernels.references import as_kernel, float64_kernel

LIKE = torch.zeros(3, 128, dtype=torch.float16)
WEIGHT = torch.ones(128, 32, dtype=torch.int8)
SCALE = torch.ones(32)


CHOICES = {
    attend: lambda: attend.uses_kernel(LIKE, 2, 1, 64),
    gate: lambda: gate.uses_kernel(LIKE, "silu"),
    linear: lambda: linear.uses_kernel(LIKE, WEIGHT, SCALE, None, linear.reference),
    norm: lambda: norm.uses_kernel(LIKE),
    norm_rope_store: lambda: norm_rope_store.uses_kernel(LIKE, 2, 1, 64, True, True),
}
"""For each operation, a function that returns whether the kernel is used."""


@pytest.fixture(autouse=True)
def gpu(runtime, monkeypatch, tmp_path):
    """Treat the CPU as a GPU on which references take twice as long as kernels."""
    monkeypatch.setenv("ADT_TREE_CACHE", str(tmp_path))
    monkeypatch.setattr(verdicts, "environment", lambda device: "a GPU")
    monkeypatch.setattr(choice.first_use, "begin", lambda device: True)
    monkeypatch.setattr(choice, "supports_kernels", lambda device: True)
    monkeypatch.setattr(choice, "device_times", lambda functions, device: [1.0, 2.0] * (len(functions) // 2))


@pytest.fixture(params=CHOICES, ids=lambda module: module.__name__.split(".")[-1])
def operation(request, monkeypatch, caplog):
    """Return the module of an operation whose kernel gives the results of its reference."""
    module = request.param
    caplog.set_level("INFO")
    monkeypatch.setattr(attend, "far_attention", float64_kernel)
    monkeypatch.setattr(module, "is_candidate", lambda *_: True)
    monkeypatch.setattr(module, "kernel", partial(as_kernel, module))
    return module


def failing(error):
    """Return a function that raises an error."""

    def kernel(*given):
        raise error

    return kernel


@torch.inference_mode()
def test_a_kernel_without_faults_is_used(operation, caplog):
    assert CHOICES[operation]()
    assert not caplog.records


FAULTS = {
    "wrong values": (lambda y: y * 1.25, "its values differ from PyTorch's by"),
    "values that depend on the number of rows": (lambda y: y * (1 + len(y) * 2**-16), "are not bitwise equal"),
    "no compiler": (failing(RuntimeError("no compiler")), "RuntimeError: no compiler"),
}
"""Fault -> change of the kernel's result, and a part of the message."""


@pytest.mark.parametrize("fault", FAULTS)
@torch.inference_mode()
def test_faults_are_detected(operation, monkeypatch, caplog, fault):
    change, message = FAULTS[fault]
    kernel = operation.kernel
    monkeypatch.setattr(operation, "kernel", lambda *given: change(kernel(*given)))
    assert not CHOICES[operation]()
    assert message in caplog.text


@torch.inference_mode()
def test_a_slow_kernel_is_replaced(operation, monkeypatch, caplog):
    monkeypatch.setattr(choice, "device_times", lambda functions, device: [5.0, 1.0] * (len(functions) // 2))
    assert not CHOICES[operation]()
    assert "PyTorch is 5.00 times as fast" in caplog.text


@torch.inference_mode()
def test_the_choice_does_not_depend_on_small_differences_of_time(operation, monkeypatch):
    """Otherwise another process might choose the reference, whose images differ.

    A product needs a margin in its favour. The other kernels replace several launches.
    """
    monkeypatch.setattr(choice, "device_times", lambda functions, device: [1.1, 1.0] * (len(functions) // 2))
    assert CHOICES[operation]() == (operation is not linear)


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("has_norm", [True, False])
@torch.inference_mode()
def test_the_trial_runs_all_versions_that_a_model_needs(has_bias, has_norm, monkeypatch):
    """Otherwise Triton would compile a version, or fail to compile it, while an image is decoded."""
    versions = set()

    def kernel(qkv, projection, rotation, cache, positions):
        versions.add((projection.bias is not None, projection.norm_weight is not None, type(positions)))
        return norm_rope_store.reference(qkv, projection, rotation, cache, positions)

    monkeypatch.setattr(norm_rope_store, "is_candidate", lambda *_: True)
    monkeypatch.setattr(norm_rope_store, "kernel", kernel)
    assert norm_rope_store.uses_kernel(LIKE, 2, 1, 64, has_bias, has_norm)
    assert versions == {(has_bias, has_norm, torch.Tensor), (has_bias, has_norm, slice)}


@torch.inference_mode()
def test_the_trial_of_a_product_multiplies_by_the_copies_of_the_weight_in_turn(monkeypatch):
    """A single weight would stay in the L2 cache."""
    weights = [WEIGHT, 2 * WEIGHT, 3 * WEIGHT]
    multiplied = []

    def alternative(x, weight, scale, plus):
        multiplied.append(weight)
        return linear.reference(x, WEIGHT, scale, plus)

    monkeypatch.setattr(linear, "_copies", lambda weight, scale: [(weight, scale) for weight in weights])
    trial = linear._trial(LIKE, WEIGHT, SCALE, False, alternative)
    for _ in range(4):
        trial.cases[0].reference()
    assert [[weight is other for other in weights].index(True) for weight in multiplied] == [0, 1, 2, 0]


@torch.inference_mode()
def test_the_reference_replaces_a_faulty_kernel(monkeypatch):
    monkeypatch.setattr(norm, "is_candidate", lambda *_: True)
    monkeypatch.setattr(norm, "kernel", failing(RuntimeError("no compiler")))
    x = torch.randn(3, 64, generator=torch.Generator().manual_seed(0))
    assert norm.norm(x, x[0], 1e-5).equal(norm.reference(x, x[0], 1e-5))
