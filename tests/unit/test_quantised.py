"""Weight-only int8 and fp8: how far the logits move, and which bytes are read."""

from unittest import mock

import pytest
import torch
from torch.torch_version import TorchVersion
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from adt_core import load_target
from adt_core.app.checkpoints import BUNDLED_SAMPLING
from adt_core.models import digits, quantised
from adt_core.models.layers import MATRICES, product
from tests.drafted import run
from tests.reading import logits_behind

KINDS = ["int8", "fp8"]
PROMPT = "A red house in a grassy field under a clear blue sky."


def teacher_forced(target, codes):
    """Guided logits [T, V] behind every token of an image."""
    return logits_behind(target, [PROMPT], codes, BUNDLED_SAMPLING.guidance)[0, :-1]


@pytest.mark.parametrize("kind", KINDS)
def test_logits_stay_close_on_the_bundled_model(kind):
    """Root mean square error, relative to the spread of the logits. With bfloat16 it is 0.014; int8 is nearer."""
    full = load_target()
    codes = run(full, prompts=(PROMPT,)).codes[0]
    true = teacher_forced(full, codes)
    rounded = teacher_forced(load_target(weights=kind), codes)
    error = ((rounded - true).pow(2).mean() / true.var()).sqrt()
    assert error < {"int8": 0.014, "fp8": 0.05}[kind]
    assert (rounded.argmax(-1) == true.argmax(-1)).float().mean() > {"int8": 0.97, "fp8": 0.94}[kind]


@pytest.mark.parametrize("kind", KINDS)
def test_matrices_take_a_byte_a_weight(tiny, kind):
    plain, rounded = load_target(tiny / "target"), load_target(tiny / "target", weights=kind)
    for ours, theirs in zip(rounded.decoder.layers, plain.decoder.layers):
        for name in MATRICES:
            stored, scale, weight = getattr(ours, name), getattr(ours, f"{name}_scale"), getattr(theirs, name)
            assert stored.element_size() == 1 and scale.shape == (weight.shape[1],)
            assert (stored.float() * scale - weight).abs().max() <= weight.abs().max() * {
                "int8": 0.5 / 127,
                "fp8": 2**-4,
            }[kind]


@pytest.mark.parametrize("kind", KINDS)
def test_half_precision_holds_the_products(kind):
    """Activations of real models have outliers; in float16 the product with unscaled bytes would overflow."""
    generator = torch.Generator().manual_seed(0)
    weight, x = 0.02 * torch.randn(4096, 64, generator=generator), torch.randn(1, 4096, generator=generator)
    x[0, :4] = 300
    stored, scale = torch.empty(4096, 64, dtype=quantised.KINDS[kind]), torch.empty(64)
    quantised.store(stored, scale, weight)
    found = product(x.half(), stored, scale)
    assert found.isfinite().all() and (found.float() - x @ weight).abs().max() < 0.1 * (x @ weight).abs().max()


class Traffic(TorchDispatchMode):
    """Bytes that operations read and write of tensors as large as ``weight`` or larger."""

    def __init__(self, weight):
        super().__init__()
        self.least, self.bytes = weight.numel(), 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if not any(x.alias_info and not x.alias_info.is_write for x in func._schema.returns):  # views move nothing
            tensors = (x for x in (*tree_leaves((args, kwargs)), *tree_leaves(result)) if isinstance(x, torch.Tensor))
            self.bytes += sum(x.numel() * x.element_size() for x in tensors if x.numel() >= self.least)
        return result


def stored_weight(kind, inputs, outputs):
    """A quantised weight as ``quantise`` lays it out, its scale, and some activations of which few are large."""
    generator = torch.Generator().manual_seed(0)
    stored, scale = torch.empty(outputs, inputs, dtype=quantised.KINDS[kind]).t(), torch.empty(outputs)
    quantised.store(stored, scale, 0.02 * torch.randn(inputs, outputs, generator=generator))
    x = torch.randn(3, inputs, generator=generator)
    x[:, :4] = 300
    return stored, scale, x


OLD = TorchVersion(torch.__version__) < "2.8"
FP8 = pytest.param("fp8", marks=pytest.mark.skipif(OLD, reason="before torch 2.8 only GPUs multiply fp8"))
BYTES = pytest.mark.parametrize("kind", ["int8", FP8])
HALVES = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)


@HALVES
@BYTES
def test_on_a_gpu_a_product_reads_the_bytes_that_are_stored(monkeypatch, kind, dtype):
    """At most 1.3 times as many. Elsewhere the weight is converted, which this counts as well."""
    stored, scale, x = stored_weight(kind, 256, 512)
    with Traffic(stored) as elsewhere:
        product(x.to(dtype), stored, scale)
    monkeypatch.setattr(digits, "_has_digits", lambda *_: True)
    with Traffic(stored) as traffic:
        product(x.to(dtype), stored, scale)
    assert 0 < traffic.bytes <= 1.3 * stored.numel() < elsewhere.bytes


@HALVES
@pytest.mark.parametrize("rows", [1, 3, 20])
@BYTES
def test_digits_are_as_exact_as_converted_weights(monkeypatch, kind, dtype, rows):
    stored, scale, x = stored_weight(kind, 1024, 64)
    x = x.repeat(7, 1)[:rows].to(dtype)
    exact = x.double() @ (stored.double() * scale.double())
    monkeypatch.setattr(digits, "_has_digits", lambda *_: True)
    found = product(x, stored, scale)
    error = (found.double() - exact).abs().max() / exact.abs().max()
    assert found.dtype == dtype and error <= torch.finfo(dtype).eps
    assert product(torch.zeros_like(x), stored, scale).abs().max() == 0


@HALVES
@BYTES
def test_digits_hold_an_activation(kind, dtype):
    """Those of fp8 every bit of it; those of int8 to 2 ** -14 of the largest of its row."""
    x = torch.randn(4, 64, generator=torch.Generator().manual_seed(1)).to(dtype)
    one, scale = torch.eye(64).to(quantised.KINDS[kind]).t(), torch.ones(64)
    if kind == "fp8":
        assert digits.fp8_digits(x, one, scale).equal(x)
        return
    found = digits.int8_digits(x.float(), one, scale)
    assert ((found - x.float()).abs() <= 2**-14 * x.float().abs().amax(-1, keepdim=True)).all()


def test_digits_are_for_gpus_that_multiply_bytes(monkeypatch):
    """Sides must be multiples of 8 (int8) or 16 (fp8); int8 needs compute capability 7.5, fp8 8.9."""
    weights = {kind: torch.empty(32, 32, dtype=dtype, device="meta") for kind, dtype in quantised.KINDS.items()}

    class OnGPU:
        is_cuda, device = True, "cuda"

        def __init__(self, dtype):
            self.dtype = dtype

    def known(capability, dtype=torch.bfloat16, cut=0):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
        monkeypatch.setattr(digits, "_work_here", lambda *_: True)
        return [kind for kind, weight in weights.items() if digits._has_digits(OnGPU(dtype), weight[:, cut:])]

    assert known((7, 0)) == [] and known((7, 5)) == known((8, 6)) == ["int8"] and known((8, 9)) == KINDS
    assert known((9, 0), cut=8) == ["int8"] and known((9, 0), cut=4) == known((9, 0), torch.float32) == []
    assert not digits._has_digits(torch.empty(1, 32, dtype=torch.bfloat16), weights["int8"])


@HALVES
@BYTES
def test_digits_are_tried_before_they_are_used(monkeypatch, caplog, kind, dtype):
    """A library may refuse them, or be wrong: then weights are converted, and the log says so once."""

    def refuse(*_):
        raise RuntimeError("CUBLAS_STATUS_NOT_SUPPORTED.\nMore words.")

    def works():
        digits._work_here.cache_clear()
        return [digits._work_here(torch.device("cpu"), dtype, quantised.KINDS[kind]) for _ in range(2)] == [True, True]

    function = f"{kind}_digits"
    assert works() and not caplog.records
    monkeypatch.setattr(digits, function, refuse)
    assert not works()
    monkeypatch.setattr(digits, function, lambda x, weight, scale: 2 * digits._converted(x, weight, scale))
    assert not works()
    digits._work_here.cache_clear()
    first, second = (record.getMessage() for record in caplog.records)
    assert "CUBLAS_STATUS_NOT_SUPPORTED." in first and "More" not in first and "wrong" in second


def test_a_lack_of_memory_is_not_taken_for_what_the_device_can_do(monkeypatch, caplog):
    """Tried again, it may work, and else every product would be slow for the rest of the process."""
    arguments = torch.device("cpu"), torch.bfloat16, torch.int8
    digits._work_here.cache_clear()
    with monkeypatch.context() as patch, pytest.raises(torch.cuda.OutOfMemoryError):
        patch.setattr(digits, "int8_digits", mock.Mock(side_effect=torch.cuda.OutOfMemoryError("CUDA out of memory.")))
        digits._work_here(*arguments)
    assert digits._work_here(*arguments) and not caplog.records
