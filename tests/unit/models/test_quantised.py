"""Tests of weight-only int8, fp8 and int4: error of the logits, memory traffic, and products of digits.

A digit is an 8-bit part of an activation; the activation is the sum of its scaled digits.
"""

from unittest import mock

import pytest
import torch
from torch.torch_version import TorchVersion
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from adt_core import load_target
from adt_core.engine import conditions
from adt_core.kernels.verdicts import Verdict
from adt_core.models import int4, layers, load, quantised, quantised_matmul
from adt_core.models.config import QUANTISED
from adt_core.models.layers import MATRICES, product
from adt_core.models.load import BUNDLED_SAMPLING
from tests.drafted import run
from tests.layouts.lumina import write_lumina
from tests.raising import raises_key
from tests.reading import logits_after

KINDS = ["int8", "fp8", "int4"]
CPU = torch.device("cpu")
PROMPT = "A red house in a grassy field under a clear blue sky."


def teacher_forced(target, codes):
    """Return the logits [T, V] with guidance, after each of the T tokens of an image."""
    return logits_after(target, [PROMPT], codes, BUNDLED_SAMPLING.guidance_scale)[0, :-1]


@pytest.fixture(scope="module")
def bundled():
    """Return the codes of an image of the bundled model, and the float32 logits after its tokens."""
    full = load_target()
    codes = run(full, prompts=(PROMPT,)).codes[0]
    return codes, teacher_forced(full, codes)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_logits_stay_close_on_the_bundled_model(kind, bundled):
    """The error is the root mean square, relative to the standard deviation of the logits. It is 0.014 in bfloat16."""
    codes, true = bundled
    rounded = teacher_forced(load_target(weights=kind), codes)
    error = ((rounded - true).pow(2).mean() / true.var()).sqrt()
    assert error < {"int8": 0.014, "fp8": 0.05, "int4": 0.2}[kind]
    assert (rounded.argmax(-1) == true.argmax(-1)).float().mean() > {"int8": 0.97, "fp8": 0.94, "int4": 0.85}[kind]


NO_KERNEL = {
    "no C compiler": "RuntimeError: Failed to find C compiler",
    "an old Triton": "CompilationError: .*no attribute 'pointer_type'",
    "before 7.5": "the compute capability of the GPU is too low",
    "AMD": "the device is not an NVIDIA GPU",
    "the variable": "ADT_TREE_KERNELS is 0",
    "the list": "ADT_TREE_KERNELS does not contain linear",
    "switched off": "they have failed",
    "no Triton": "Triton is not installed",
    "float32": "it multiplies bfloat16 and float16, not float32",
}
"""Beginning of the reason for which the kernel of int4 weights can't be used."""


@pytest.fixture
def gpu(runtime, monkeypatch):
    """Return a function that emulates a GPU, on which the kernel of int4 weights can't be used for a reason."""

    def emulate(reason=""):
        monkeypatch.setattr(torch.version, "hip", "6.2" if reason == "AMD" else None)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 0 if reason == "before 7.5" else 5))
        monkeypatch.setattr(torch.cuda, "get_allocator_backend", lambda: "native")
        monkeypatch.setattr(quantised.choice, "has_triton", lambda: reason != "no Triton")
        monkeypatch.setattr(quantised.choice.first_use, "has_crashed", lambda device: False)
        monkeypatch.setattr(quantised.choice.first_use, "begin", lambda device: True)
        variables = {"the variable": "0", "the list": "gate,norm"}
        monkeypatch.setenv(quantised.choice.VARIABLE, variables.get(reason, "1"))
        if reason == "switched off":
            quantised.choice.switch_off("they have failed")
        errors = {
            "no C compiler": RuntimeError("Failed to find C compiler. Please specify via CC."),
            "an old Triton": type("CompilationError", (Exception,), {})("at 3:4:\nno attribute 'pointer_type'"),
        }
        small = quantised._small_trial

        def kernel(*given):
            if reason in errors:
                raise errors[reason]
            return quantised.linear.reference(*given)

        monkeypatch.setattr(quantised.linear, "kernel", kernel)
        monkeypatch.setattr(quantised, "_small_trial", lambda matrix, device, dtype: small(matrix, CPU, dtype))

    return emulate


@pytest.mark.parametrize("reason", NO_KERNEL)
def test_int4_weights_without_their_kernel_are_refused_before_files_are_read(gpu, tiny, monkeypatch, reason):
    """Without the kernel, a step of a large model would take 150 to 220 ms (computed, not measured)."""
    gpu(reason)
    monkeypatch.setattr(load, "open_checkpoint", lambda *_: pytest.fail("a file was read"))
    dtype = torch.float32 if reason == "float32" else torch.float16
    with raises_key("int4.no_triton" if reason == "no Triton" else "int4.no_kernel") as error:
        load_target(tiny / "target", device="cuda", dtype=dtype, weights="int4")
    assert all(part in error.value.parameters["reason"] for part in NO_KERNEL[reason].split(".*"))
    assert ("triton-windows" in str(error.value)) is (reason == "no Triton")


@pytest.mark.parametrize(
    "kind, device, reason, dtype",
    [
        *((kind, "cuda", "", torch.float16) for kind in (None, *KINDS)),
        *((kind, "cuda", "no Triton", torch.float32) for kind in (None, "int8", "fp8")),
        ("int4", "cpu", "no Triton", torch.float32),
    ],
)
def test_weights_are_accepted_if_the_kernel_of_int4_has_run_or_is_not_needed(gpu, kind, device, reason, dtype):
    gpu(reason)
    quantised.check_device(kind, torch.device(device), dtype)


def test_int4_weights_are_refused_if_the_kernel_fails_with_the_weights_of_the_model(runtime):
    slower = Verdict("linear", "", False, "PyTorch is 1.10 times as fast")
    verdicts = [Verdict("gate", "", False, "no", True), slower, Verdict("linear", "", False, "its values differ", True)]
    quantised.check_products("int8", verdicts)
    quantised.check_products("int4", verdicts[:2])
    with raises_key("int4.no_kernel", reason="its values differ"):
        quantised.check_products("int4", verdicts)


def test_int4_weights_are_refused_after_comfyui_has_moved_them_to_a_gpu_without_the_kernel(tiny, monkeypatch):
    target = load_target(tiny / "target", weights="int4")
    checked = []
    monkeypatch.setattr(conditions, "check_device", lambda *given: checked.append(given))
    run(target)
    assert checked == [("int4", CPU, torch.float32)]


def matrices(rounded, full):
    """Return each quantised matrix with its scale and the matrix of which it was made."""
    layers = zip(rounded.decoder.layers, full.decoder.layers)
    pairs = [(layer, original, name) for layer, original in layers for name in MATRICES]
    return [(getattr(a, name), getattr(a, f"{name}_scale"), getattr(b, name)) for a, b, name in pairs]


@pytest.mark.parametrize("kind", ["int8", "fp8"])
def test_matrices_have_one_byte_per_weight(tiny, kind):
    for stored, scale, weight in matrices(load_target(tiny / "target", weights=kind), load_target(tiny / "target")):
        assert stored.element_size() == 1 and scale.shape == (weight.shape[1],)
        step = {"int8": 0.5 / 127, "fp8": 2**-4}[kind]
        assert (stored.float() * scale - weight).abs().max() <= weight.abs().max() * step


def test_int4_has_half_a_byte_per_weight_and_four_bytes_per_group(tiny):
    plain = load_target(tiny / "target")
    rounded = load_target(tiny / "target", weights="int4")
    for stored, scale, weight in matrices(rounded, plain):
        groups = -(-len(weight) // int4.GROUP) * weight.shape[1]
        assert stored.nbytes == 32 * groups and scale.nbytes == 4 * groups
        error = int4.unpack(stored, scale, torch.float32)[: len(weight)] - weight
        assert 0 < error.abs().max() <= weight.abs().max() / 14
    assert rounded.decoder.weights == "int4" and rounded.decoder.embedding.equal(plain.decoder.embedding)


def test_int4_is_read_from_a_checkpoint_in_shards(tmp_path):
    """Parts of a matrix, such as q, k and v, may be in different files. They must be quantised as one matrix."""
    path = write_lumina(tmp_path / "Lumina-mGPT-7B-768", scale=3.0)
    assert len(list(path.glob("*.safetensors"))) == 2
    plain = load_target(path, dtype=torch.bfloat16)
    rounded = load_target(path, dtype=torch.bfloat16, weights="int4")
    assert rounded.decoder.dtype == torch.bfloat16
    for stored, scale, weight in matrices(rounded, load_target(path)):
        expected = int4.empty(*weight.shape, weight.device)
        quantised.store(*expected, weight)
        assert stored.equal(expected[0]) and scale.equal(expected[1])
    names = dict(plain.decoder.named_parameters())
    kept = {name: part for name, part in rounded.decoder.named_parameters() if part.dtype != torch.uint8}
    assert kept.keys() == {name for name in names if name.rpartition(".")[2] not in MATRICES}
    assert all(part.equal(names[name]) for name, part in kept.items())


def test_required_memory_on_a_gpu_includes_a_piece_of_converted_int4(tiny):
    """A round and its graph each need the converted piece, 2 bytes per weight, and a quarter of it for the levels."""
    targets = [load_target(tiny / "target", dtype=torch.bfloat16, weights=weights) for weights in (None, "int4")]
    plain, packed = (run(target).memory_required(torch.device("meta")) for target in targets)
    piece = 2 * targets[0].decoder.layers[0].gate_up.numel()
    assert packed - plain == 2 * piece * 5 // 4


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_pieces_of_int4_do_not_change_a_product(monkeypatch, dtype):
    stored, scale, x = stored_weight("int4", 256, 100)
    x = x.to(dtype).repeat(4, 1)
    whole = product(x, stored, scale, tile=4)
    monkeypatch.setattr(layers, "CPU_PIECE_BYTES", 4 * 256 * 32)
    assert (product(x, stored, scale, tile=4) - whole).abs().max() <= 4 * torch.finfo(dtype).eps * whole.abs().max()


class Largest(TorchDispatchMode):
    """Recorder of the size in bytes of the largest tensor that an operation creates. Views do not count."""

    bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if not any(x.alias_info for x in func._schema.returns):
            created = [x.nbytes for x in tree_leaves(result) if isinstance(x, torch.Tensor)]
            self.bytes = max([self.bytes, *created])
        return result


@pytest.mark.parametrize("kind", KINDS)
def test_a_matrix_is_quantised_in_chunks(monkeypatch, kind):
    """Temporary tensors may have 4 bytes per element of a chunk. A float32 copy of the matrix would be larger."""
    monkeypatch.setattr(quantised, "CHUNK_SIZE", 2**12)
    value = torch.randn(256, 512, generator=torch.Generator().manual_seed(0)).bfloat16()
    stored, scale = quantised.empty(value, kind, torch.float32)
    with Largest() as largest:
        quantised.store(stored, scale, value)
    assert 0 < largest.bytes <= 4 * 2**12 < value.nbytes


@pytest.mark.parametrize("kind", KINDS)
def test_products_do_not_overflow_in_half_precision(kind):
    """Activations of real models have outliers. In float16, their product with unscaled weights would overflow."""
    generator = torch.Generator().manual_seed(0)
    weight = 0.02 * torch.randn(4096, 64, generator=generator)
    x = torch.randn(1, 4096, generator=generator)
    x[0, :4] = 300
    stored, scale = quantised.empty(weight, kind, torch.float32)
    quantised.store(stored, scale, weight)
    found = product(x.half(), stored, scale)
    assert found.isfinite().all() and (found.float() - x @ weight).abs().max() < 0.1 * (x @ weight).abs().max()


class Traffic(TorchDispatchMode):
    """Counter of the bytes that operations read and write. It ignores tensors that are smaller than a weight."""

    def __init__(self, weight):
        super().__init__()
        self.least = weight.numel()
        self.bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if not any(x.alias_info and not x.alias_info.is_write for x in func._schema.returns):  # views have no traffic
            tensors = (x for x in (*tree_leaves((args, kwargs)), *tree_leaves(result)) if isinstance(x, torch.Tensor))
            self.bytes += sum(x.numel() * x.element_size() for x in tensors if x.numel() >= self.least)
        return result


def stored_weight(kind, inputs, outputs):
    """Return a quantised weight in the layout of `quantise`, its scale, and activations with few outliers."""
    generator = torch.Generator().manual_seed(0)
    weight = 0.02 * torch.randn(inputs, outputs, generator=generator)
    stored, scale = quantised.empty(weight, kind, torch.float32)
    quantised.store(stored, scale, weight)
    x = torch.randn(3, inputs, generator=generator)
    x[:, :4] = 300
    return stored, scale, x


OLD = TorchVersion(torch.__version__) < "2.8"
FP8 = pytest.param("fp8", marks=pytest.mark.skipif(OLD, reason="before torch 2.8 only GPUs multiply fp8"))
BYTES = pytest.mark.parametrize("kind", ["int8", FP8])
HALVES = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)


class OnGPU(torch.Tensor):
    """CPU tensor whose `is_cuda` is True. Create it with `as_subclass`."""

    is_cuda = True


@pytest.fixture
def digits(runtime, monkeypatch):
    """Return the module `quantised_matmul` on an emulated GPU that multiplies int8 and fp8, before its first check."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    return quantised_matmul


@HALVES
@BYTES
def test_on_a_gpu_a_product_reads_only_the_stored_bytes(digits, kind, dtype):
    """On a CPU the weight would be converted, which counts as traffic."""
    stored, scale, x = stored_weight(kind, 256, 512)
    read = []
    for given in (x.to(dtype), x.to(dtype).as_subclass(OnGPU)):
        digits.quantised_matmul(given, stored, scale)  # the first call checks the GPU
        with Traffic(stored) as traffic:
            digits.quantised_matmul(given, stored, scale)
        read.append(traffic.bytes)
    assert 0 < read[1] <= 1.3 * stored.numel() < read[0]


@pytest.mark.parametrize("has_plus", [True, False])
def test_sums_of_integers_are_computed_for_used_rows_only(digits, monkeypatch, has_plus):
    """A plain round with guidance has 2 rows in a tile of 64. The other rows of the result are undefined."""
    stored, scale, x = stored_weight("int8", 256, 512)
    x = x.repeat(4, 1).bfloat16().as_subclass(OnGPU)
    plus = torch.ones(len(x), 512, dtype=torch.bfloat16) if has_plus else None
    expected = product(x[:2], stored, scale, None if plus is None else plus[:2].clone())
    multiply = mock.Mock(side_effect=digits.quantised_matmul)
    monkeypatch.setattr(layers, "quantised_matmul", multiply)
    with torch.no_grad():  # as a GPU: products on a CPU are widened in inference mode
        y = product(x, stored, scale, plus, tile=4, tokens=2)
    assert [len(call.args[0]) for call in multiply.call_args_list] == [2]
    assert y.shape == (len(x), 512) and torch.equal(y[:2], expected)
    assert plus is None or y is plus


@HALVES
@pytest.mark.parametrize("rows", [1, 3, 20])
@BYTES
def test_digits_are_as_accurate_as_converted_weights(digits, kind, dtype, rows):
    stored, scale, x = stored_weight(kind, 1024, 64)
    x = x.repeat(7, 1)[:rows].to(dtype).as_subclass(OnGPU)
    exact = x.double() @ (stored.double() * scale.double())
    found = digits.quantised_matmul(x, stored, scale)
    error = (found.double() - exact).abs().max() / exact.abs().max()
    assert found.dtype == dtype and error <= torch.finfo(dtype).eps
    assert digits.quantised_matmul(torch.zeros_like(x), stored, scale).abs().max() == 0


@pytest.mark.parametrize("kind, rows", [("int8", [12]), pytest.param("fp8", [4, 4, 4, 12], marks=FP8.marks)])
def test_sums_of_integers_need_no_tiles(digits, monkeypatch, kind, rows):
    """The order doesn't change the result. Other sums must be checked before they are used without tiles."""
    stored, scale, x = stored_weight(kind, 256, 512)
    multiply = mock.Mock(side_effect=digits.quantised_matmul)
    monkeypatch.setattr(layers, "quantised_matmul", multiply)
    monkeypatch.setattr(layers, "has_exact_sums", digits.has_exact_sums)
    product(x.repeat(4, 1).bfloat16().as_subclass(OnGPU), stored, scale, tile=4)
    assert [len(call.args[0]) for call in multiply.call_args_list] == rows


def test_required_memory_on_a_cpu_does_not_include_a_converted_weight(tiny):
    stored = (load_target(tiny / "target", dtype=torch.bfloat16, weights=weights) for weights in (None, "int8"))
    plain, bytes_ = (run(target).memory_required() for target in stored)
    assert plain == bytes_


@HALVES
@BYTES
def test_digits_represent_an_activation(digits, kind, dtype):
    """fp8 digits must be exact. The error of int8 digits may be 2 ** -14 of the row's largest element."""
    x = torch.randn(4, 64, generator=torch.Generator().manual_seed(1)).to(dtype)
    one = torch.eye(64).to(QUANTISED[kind]).t()
    scale = torch.ones(64)
    if kind == "fp8":
        assert digits.fp8_digits(x, one, scale).equal(x)
        return
    found = digits.int8_digits(x.float(), one, scale)
    assert ((found - x.float()).abs() <= 2**-14 * x.float().abs().amax(-1, keepdim=True)).all()


@pytest.mark.parametrize(
    "capability, dtype, cut, kinds",
    [
        ((7, 0), torch.bfloat16, 0, []),
        ((7, 5), torch.bfloat16, 0, ["int8"]),
        ((8, 6), torch.bfloat16, 0, ["int8"]),
        ((8, 9), torch.bfloat16, 0, ["int8", "fp8"]),
        ((9, 0), torch.bfloat16, 8, ["int8"]),
        ((9, 0), torch.bfloat16, 4, []),
        ((9, 0), torch.float32, 0, []),
    ],
)
@pytest.mark.skipif(OLD, reason="before torch 2.8 only GPUs multiply fp8")
def test_digits_are_used_on_gpus_with_8_bit_products(digits, monkeypatch, capability, dtype, cut, kinds):
    """Sizes must be multiples of 8 (int8) or 16 (fp8). int8 needs compute capability 7.5, fp8 needs 8.9."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    x = torch.ones(1, 32, dtype=dtype).as_subclass(OnGPU)
    used = []
    for kind in ("int8", "fp8"):
        stored = QUANTISED[kind]
        weight = torch.ones(32, 32).to(stored).t()[:, cut:]
        digits.quantised_matmul(x, weight, torch.ones(32 - cut))  # checks the device
        monkeypatch.setattr(digits, f"{kind}_digits", lambda *_, kind=kind: used.append(kind))
        digits.quantised_matmul(x, weight, torch.ones(32 - cut))
        digits.quantised_matmul(x.as_subclass(torch.Tensor), weight, torch.ones(32 - cut))  # this tensor isn't on a GPU
    assert used == kinds


@pytest.mark.parametrize("message", ["CUBLAS_STATUS_NOT_SUPPORTED.", "of 1 rows gave wrong", "of 130 rows gave wrong"])
@HALVES
@BYTES
def test_digits_are_checked_before_they_are_used(digits, monkeypatch, caplog, kind, dtype, message):
    """If a library raises an error or gives wrong results, weights must be converted. This must be logged once."""

    def fail(*_):
        raise RuntimeError(f"{message}\nMore words.")

    def double(x, weight, scale):
        wrong = len(x) > 64 or "130" not in message
        return (1 + wrong) * digits.quantised_matmul(x.as_subclass(torch.Tensor), weight, scale)

    stored, scale, x = stored_weight(kind, 64, 32)
    monkeypatch.setattr(digits, f"{kind}_digits", double if "wrong" in message else fail)
    converted = digits.quantised_matmul(x.to(dtype), stored, scale)
    for _ in range(2):
        assert digits.quantised_matmul(x.to(dtype).as_subclass(OnGPU), stored, scale).equal(converted)
    (logged,) = caplog.messages
    assert message in logged and "More" not in logged


def test_a_check_that_runs_out_of_memory_is_repeated(digits, monkeypatch, caplog):
    """If the check weren't repeated, every product would be slow until the process ends."""
    stored, scale, x = stored_weight("int8", 64, 32)
    full = torch.cuda.OutOfMemoryError("CUDA out of memory.")
    working = mock.Mock(wraps=digits.int8_digits, side_effect=[full, *[mock.DEFAULT] * 9])
    monkeypatch.setattr(digits, "int8_digits", working)
    with pytest.raises(torch.cuda.OutOfMemoryError):
        digits.quantised_matmul(x.half().as_subclass(OnGPU), stored, scale)
    digits.quantised_matmul(x.half().as_subclass(OnGPU), stored, scale)
    assert working.call_count == 2 + len(digits._CHECKED_ROWS), "the check is repeated, and then digits are used"
    assert not caplog.records
