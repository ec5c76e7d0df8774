"""Tests of the trials of Triton kernels: faulty kernels are not used.

The references take the place of the kernels, so the tests need neither a GPU nor Triton.
"""

import pytest
import torch

from adt_core.kernels import attend, choice, gate, linear, norm, norm_rope_store, verdicts
from adt_core.kernels.attend_trial import Operands

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
NUM_OPERANDS = {gate: 2, linear: 4, norm: 4}
"""Number of arguments of the reference, if the kernel has one more."""


def float64_kernel(q, keys, values, mask):
    """Replacement for :func:`adt_core.models.torch_private.far_attention`, which CPUs lack."""
    scores = q.double() @ keys.double().mT * q.shape[-1] ** -0.5 + mask.double()
    return scores.softmax(-1) @ values.double(), scores.logsumexp(-1)


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

    def kernel(*given):
        if module is attend:
            given = Operands(*given).for_reference()
        given = given[: NUM_OPERANDS.get(module)]  # without the number of used rows
        return module.reference(*given)

    monkeypatch.setattr(module, "kernel", kernel)
    return module


def failing(error):
    """Return a function that raises an error."""

    def kernel(*given):
        raise error

    return kernel


def replace_kernel(monkeypatch, module, change):
    kernel = module.kernel
    monkeypatch.setattr(module, "kernel", lambda *given: change(kernel(*given)))


@torch.inference_mode()
def test_a_kernel_without_faults_is_used(operation, caplog):
    assert CHOICES[operation]()
    assert not caplog.records


@torch.inference_mode()
def test_wrong_values_are_detected(operation, monkeypatch, caplog):
    replace_kernel(monkeypatch, operation, lambda y: y * 1.25)
    assert not CHOICES[operation]()
    assert "its values differ from PyTorch's by" in caplog.text


@torch.inference_mode()
def test_results_that_depend_on_the_number_of_rows_are_detected(operation, monkeypatch, caplog):
    replace_kernel(monkeypatch, operation, lambda y: y * (1 + len(y) * 2**-16))
    assert not CHOICES[operation]()
    assert "are not bitwise equal" in caplog.text


@torch.inference_mode()
def test_a_kernel_that_does_not_compile_is_replaced(operation, monkeypatch, caplog):
    monkeypatch.setattr(operation, "kernel", failing(RuntimeError("no compiler")))
    assert not CHOICES[operation]()
    assert "RuntimeError: no compiler" in caplog.text


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


@torch.inference_mode()
def test_a_lack_of_memory_is_no_verdict(operation, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(operation, "kernel", failing(torch.cuda.OutOfMemoryError("CUDA out of memory.")))
        with pytest.raises(torch.cuda.OutOfMemoryError):
            CHOICES[operation]()
    assert CHOICES[operation]()


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
