"""Tests of the choice between Triton kernels and their references.

The trials run on a CPU: the tests replace the check of the device and the measurement of times.
"""

from types import SimpleNamespace

import pytest
import torch

from adt_core.kernels import choice
from adt_core.kernels import verdicts as stored
from adt_core.kernels.choice import Case, Trial, uses_kernel, verdicts
from adt_core.models.torch_private import product_settings
from adt_core.runtime import new_runtime

X = torch.arange(6.0)
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def gpu(runtime, monkeypatch, caplog, tmp_path):
    """Treat the CPU as a GPU with Triton, on which the kernel takes 1 ms and the reference 1.3 ms.

    Returns:
        A list with the versions of the GPU, the driver and the libraries.
    """
    versions = ["RTX 4090", "13000", "Triton 3.9"]
    caplog.set_level("INFO")
    monkeypatch.setenv("ADT_TREE_CACHE", str(tmp_path))
    monkeypatch.setattr(choice.first_use, "begin", lambda device: True)
    monkeypatch.setattr(choice, "OPERATIONS", ("double", "halve"))
    monkeypatch.setattr(stored, "environment", lambda device: ", ".join(versions))
    monkeypatch.setattr(choice, "supports_kernels", lambda device: True)
    monkeypatch.setattr(choice, "device_times", lambda functions, device: [1.0, 1.3])
    return versions


def trial(kernel=lambda: X + 1, reference=lambda: X + 1, equal_results=lambda: [("1 and 2 rows", X, X)]):
    return Trial([Case(kernel, reference)], 0.01, equal_results)


def choose(**parts):
    return uses_kernel("double", X, (3, 4), lambda: trial(**parts))


def test_a_kernel_that_passes_is_used_and_tried_once(caplog):
    assert choose()
    assert uses_kernel("double", X, (3, 4), lambda: pytest.fail("the trial ran twice"))
    assert [verdict.reason for verdict in verdicts()] == ["it is 1.30 times as fast as PyTorch"]
    assert not caplog.records


def test_each_operation_dtype_and_shape_has_its_own_trial():
    assert choose()
    assert not uses_kernel("double", X, (3, 5), lambda: trial(kernel=lambda: X))
    assert not uses_kernel("halve", X, (3, 4), lambda: trial(kernel=lambda: X))
    assert not uses_kernel("double", X.double(), (3, 4), lambda: trial(kernel=lambda: X))
    assert [verdict.uses_kernel for verdict in verdicts()] == [True, False, False, False]
    assert verdicts()[1].operands == "float32, 3, 5"


def fail(error):
    def kernel():
        raise error

    return kernel


def launch(kernel):
    def launched():
        with choice.launching(X):
            return kernel()

    return launched


@pytest.mark.parametrize(
    "parts, reason",
    [
        (dict(kernel=lambda: X + 2), "its values differ from PyTorch's by 1"),
        (dict(kernel=lambda: X + torch.nan), "its values differ from PyTorch's by nan"),
        (
            dict(equal_results=lambda: [("1 and 2 rows", X, X.nextafter(X + 1))]),
            "its results for 1 and 2 rows are not bitwise equal",
        ),
        (dict(kernel=fail(TypeError("at 3:4:\n\tno such dtype."))), "TypeError: at 3:4: no such dtype"),
        (dict(kernel=fail(RuntimeError(""))), "RuntimeError"),
        (dict(kernel=launch(fail(ValueError("cpu tensor?")))), "ValueError: cpu tensor?"),
    ],
)
def test_a_faulty_kernel_is_replaced_with_one_warning(parts, reason, caplog):
    assert not choose(**parts)
    assert not choose(**parts)
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert record.getMessage() == f"PyTorch replaces the Triton kernel 'double' for float32, 3, 4: {reason}."


def test_values_within_the_tolerance_are_accepted():
    assert choose(kernel=lambda: X + 1.05)


def test_a_slow_kernel_is_replaced_without_a_warning(monkeypatch, caplog):
    monkeypatch.setattr(choice, "device_times", lambda functions, device: [1.3, 1.0])
    assert not choose()
    (record,) = caplog.records
    assert record.levelname == "INFO" and record.getMessage().endswith(": PyTorch is 1.30 times as fast.")


@pytest.mark.parametrize(
    "times, weights, reason",
    [
        ([1.0, 2.0, 4.0, 2.0], (1, 1), "PyTorch is 1.25 times as fast"),  # 5 and 4 ms
        ([1.0, 4.0, 4.0, 2.0], (3, 1), "it is 2.00 times as fast as PyTorch"),  # 7 and 14 ms
    ],
)
def test_the_times_of_all_cases_are_multiplied_by_their_weights_and_added(monkeypatch, times, weights, reason):
    monkeypatch.setattr(choice, "device_times", lambda functions, device: times)
    cases = [Case(lambda: X, lambda: X, weight) for weight in weights]
    assert uses_kernel("double", X, (), lambda: Trial(cases, 0, tuple)) is reason.startswith("it is")
    assert verdicts()[0].reason == reason


def test_the_same_reason_is_logged_once(caplog):
    for shape in (1,), (2,):
        assert not uses_kernel("double", X, shape, lambda: trial(kernel=fail(RuntimeError("no compiler"))))
    assert len(caplog.records) == 1 and len(verdicts()) == 2


def test_a_lack_of_memory_is_no_verdict(caplog):
    with pytest.raises(RuntimeError):
        choose(kernel=fail(RuntimeError("CUDA out of memory. Tried to allocate 1 GiB")))
    assert not verdicts() and not caplog.records
    assert choose()


# ---- stored verdicts -----------------------------------------------------------------------------


def test_a_second_process_chooses_as_the_first_without_measuring_times(monkeypatch):
    assert choose()
    monkeypatch.setattr(choice, "device_times", lambda functions, device: [1.3, 1.0])
    with new_runtime():
        assert choose()
        assert verdicts()[0].reason == "it is 1.30 times as fast as PyTorch"
        assert not uses_kernel("double", X, (3, 5), trial), "other operands have their own trial"


def test_each_process_compares_values_and_bits_once_whatever_is_stored(caplog):
    """Somebody else may have written the file, and the compiler may have changed."""
    assert choose()
    with new_runtime():
        assert not choose(equal_results=lambda: [("1 and 2 rows", X, X + 1)])
        assert caplog.messages == [
            "PyTorch replaces the Triton kernel 'double' for float32, 3, 4: "
            "its results for 1 and 2 rows are not bitwise equal."
        ]
        assert not uses_kernel("double", X, (3, 4), lambda: pytest.fail("the trial ran twice"))
    with new_runtime():
        assert choose(), "a fault in one process is not stored"


@pytest.mark.parametrize("changed", range(3))
def test_a_new_gpu_driver_or_triton_makes_a_new_trial(gpu, monkeypatch, changed):
    assert choose()
    gpu[changed] += ".1"
    monkeypatch.setattr(choice, "device_times", lambda functions, device: [1.3, 1.0])
    with new_runtime():
        assert not choose()


def test_the_first_of_two_processes_that_try_at_the_same_time_decides(monkeypatch):
    def times(functions, device):
        monkeypatch.setattr(choice, "device_times", lambda functions, device: [1.0, 1.3])
        with new_runtime():
            assert choose()  # the other process ends its trial first
        return [1.3, 1.0]

    monkeypatch.setattr(choice, "device_times", times)
    assert choose()


def test_faults_are_not_stored_because_their_causes_can_be_removed():
    assert not choose(kernel=fail(RuntimeError("no compiler")))
    with new_runtime():
        assert choose()


@pytest.mark.parametrize("content", ["[]", '{"name": "x", "verdicts": {}}', "{", '{"verdicts": 3}', "entry"])
def test_a_damaged_file_makes_a_new_trial(tmp_path, content):
    assert choose()
    (file,) = tmp_path.glob("kernels-*.json")
    if content == "entry":
        content = file.read_text(encoding="utf-8").replace("true", '"yes"')
    file.write_text(content, encoding="utf-8")
    with new_runtime():
        assert not choose(kernel=lambda: X)


def test_the_number_of_stored_verdicts_is_limited(monkeypatch, tmp_path):
    monkeypatch.setattr(stored, "MAX_STORED", 2)
    assert all(uses_kernel("double", X, (size,), trial) for size in range(3))
    with new_runtime():
        assert not uses_kernel("double", X, (2,), lambda: trial(kernel=lambda: X)), "this trial must run again"


def test_the_environment_names_the_gpu_the_driver_and_the_versions(monkeypatch):
    monkeypatch.undo()
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "RTX 4090")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 9))
    triton = pytest.importorskip("triton")
    monkeypatch.setattr(torch.cuda, "get_allocator_backend", lambda: "cudaMallocAsync")
    named = stored.environment(torch.device("cuda"))
    assert "cudaMallocAsync" in named and stored.code_digest() in named
    assert named.startswith("RTX 4090, 8, 9, ") and torch.__version__ in named and triton.__version__ in named


def test_a_changed_kernel_file_makes_a_new_trial(monkeypatch, tmp_path):
    package = tmp_path / "kernels"
    package.mkdir()
    (package / "gate_triton.py").write_text("a kernel", encoding="utf-8")
    monkeypatch.setattr(stored, "__file__", str(package / "verdicts.py"))
    digests = []
    for content in ("a kernel", "a kernel", "another kernel"):
        (package / "gate_triton.py").write_text(content, encoding="utf-8")
        with new_runtime():
            digests.append(stored.code_digest())
    assert digests[0] == digests[1] != digests[2]


def test_changed_settings_of_products_make_a_new_trial(monkeypatch):
    """Other node packs change such settings while the process runs."""
    settings = []
    monkeypatch.setattr(choice, "product_settings", lambda: list(settings))
    choice.follow_settings()
    assert choose()
    choice.follow_settings()
    assert uses_kernel("double", X, (3, 4), lambda: pytest.fail("the same settings need no new trial"))
    settings.append("products by Cublaslt")
    choice.follow_settings()
    assert not verdicts()


@pytest.mark.parametrize(
    "changed",
    [
        {"allow_bf16_reduced_precision_reduction": False},
        {"allow_fp16_reduced_precision_reduction": (False, False)},
        {"preferred_blas_library": lambda: "_BlasBackend.Cublaslt"},
        {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_settings_of_products_are_named(monkeypatch, changed):
    def settings(**changed):
        usual = {f"allow_{kind}_reduced_precision_reduction": True for kind in ("fp16", "bf16")}
        matmul = SimpleNamespace(**usual | {"fp32_precision": "ieee"} | changed)
        library = changed.get("preferred_blas_library", lambda: "_BlasBackend.Cublas")
        cuda = SimpleNamespace(matmul=matmul, preferred_blas_library=library)
        monkeypatch.setattr(torch.backends, "cuda", cuda)
        monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", changed.get("CUBLAS_WORKSPACE_CONFIG", ""))
        return product_settings()

    assert settings() == [] and len(settings(**changed)) == 1


def test_the_end_of_a_compilers_message_is_kept():
    source = "at 3:4:\n" + "    y = tl.load(x)\n" * 30
    reason = str(choice.KernelError.of(TypeError(f"{source}AssertionError: no such dtype")))
    assert reason.startswith("TypeError: ... ") and reason.endswith("AssertionError: no such dtype")
    assert len(reason) < 230


class Launched:
    """Fake kernel that records how it was launched."""

    def __getitem__(self, grid):
        return lambda *given, **options: setattr(self, "options", options)


def test_rounding_does_not_depend_on_the_users_setting_of_fused_operations():
    kernel = Launched()
    choice.launch(kernel, (1,), [torch.zeros(4)], num_warps=4)
    assert kernel.options == {"num_warps": 4, "enable_fp_fusion": True}


def test_an_operand_without_alignment_is_refused_or_copied():
    x = torch.zeros(9)[1:]
    with pytest.raises(choice.KernelError, match="not a multiple of 16"):
        choice.launch(Launched(), (1,), [x])
    choice.launch(Launched(), (1,), [choice.aligned(x)])


def test_verdicts_are_recorded_for_the_operations_in_a_block():
    assert choose()
    with choice.recorded_verdicts() as recorded:
        assert choose() and uses_kernel("halve", X, (), trial)
    assert choose() and sorted(verdict.operation for verdict in recorded) == ["double", "halve"]


class Cancelled(Exception):
    pass


def test_the_user_can_cancel_before_each_trial():
    def check():
        if verdicts():
            raise Cancelled

    with pytest.raises(Cancelled), choice.recorded_verdicts(check) as recorded:
        assert choose()
        choose()  # has a verdict, so it needs no trial
        uses_kernel("halve", X, (), trial)
    assert [verdict.operation for verdict in recorded] == ["double"]
    assert uses_kernel("halve", X, (), trial), "outside of the block, nothing is called"


def test_the_first_trial_says_why_the_first_image_takes_longer(caplog):
    with choice.recorded_verdicts():
        assert choose() and uses_kernel("halve", X, (), trial)
    assert [record.getMessage()[:9] for record in caplog.records] == ["Compiling"]


def test_the_user_is_told_and_can_cancel_between_the_versions_of_a_kernel(runtime, caplog):
    """Compiling a version takes 4 to 20 seconds."""

    def check():
        if launched:
            raise Cancelled

    texts = []
    launched = []
    runtime.notify = texts.append
    case = Case(lambda: launched.append(1) or X, lambda: X)
    with pytest.raises(Cancelled), choice.recorded_verdicts(check):
        uses_kernel("double", X, (), lambda: Trial([case] * 3, 0, tuple))
    assert len(launched) == 1 and [text.parts[0].key for text in texts] == ["device.compiling"]
    assert not verdicts() and not caplog.records


# ---- devices --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "device, triton, variable, reason",
    [
        ("cpu", True, "1", "the device is not an NVIDIA GPU"),
        ("cuda", False, "1", "Triton is not installed"),
        ("cuda", True, "0", "ADT_TREE_KERNELS is 0"),
        ("cuda", True, "1", ""),
    ],
)
def test_support_of_devices(device, triton, variable, reason, monkeypatch):
    monkeypatch.setattr(choice, "has_triton", lambda: triton)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 9))
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "get_allocator_backend", lambda: "native")
    monkeypatch.setattr(choice.first_use, "has_crashed", lambda device: False)
    monkeypatch.setenv(choice.VARIABLE, variable)
    assert choice.missing_support(torch.device(device)) == reason


def test_the_oldest_gpus_are_not_supported(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 0))
    assert choice.missing_support(torch.device("cuda")) == "the compute capability of the GPU is too low"


def test_other_devices_have_no_trial_and_no_message(monkeypatch, caplog):
    monkeypatch.undo()
    assert not uses_kernel("double", X, (), lambda: pytest.fail("a trial ran"))
    assert not verdicts() and not caplog.records
