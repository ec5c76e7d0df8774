"""Choice between a Triton kernel and its reference, by a trial at the first use.

A kernel is used only if it compiles on this device, gives the values of the reference, gives bitwise equal results
where the operation requires them, and is fast enough (`Trial.min_speedup`). The result of a trial, the *verdict*, is
stored for later processes (:mod:`.verdicts`). A later process compares values and bits again, but measures no times.
Before the first trial, it writes a marker, so that a crash is not repeated (:mod:`.first_use`). No trial runs on other
devices than NVIDIA GPUs, or if Triton is missing: there, the reference is used.

A captured round must not run a trial, because a trial waits for the device. The first launch of a round is never
captured (:mod:`adt_core.engine.graphs`), so all trials are over when the round is captured.

A kernel can also fail after its trial. Then :func:`launching` raises a :class:`KernelError`. The engine switches all
kernels off (:func:`switch_off`) and starts the images again (:mod:`adt_core.engine.decoding`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from operator import mul
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..environment import variable
from ..errors import AdtError, Check, command, is_out_of_memory, one_line, shown
from ..messages import message
from ..models.torch_private import occupy_gpu, product_settings
from ..runtime import cached_per_runtime, get_runtime
from . import first_use
from .verdicts import Verdict, find_verdict, save_verdict

OPERATIONS = ("attend", "gate", "linear", "norm", "norm_rope_store")
"""Names of the operations that have a kernel."""
CAPTURES = "captured rounds"
"""Key of a stored failure of :func:`keep_out_of_captures`."""
VARIABLE = "ADT_TREE_KERNELS"
"""Environment variable with the operations whose kernels may be used: "1" for all (default), "0" for none, or names of
:data:`OPERATIONS`, separated by commas."""
MIN_CAPABILITY = (7, 5)  # oldest compute capability for which Triton compiles
ALIGNMENT = 16
"""Number by which the addresses of all operands are divisible. Triton reads 16 bytes at a time only from such
addresses. torch allocates memory at multiples of 512."""
NO_FOLDER = "neither the cache folder nor the folder for temporary files can be written"
"""Reason why kernels are off if no marker can be written."""
LONGEST_REASON = 200
"""Maximum number of characters of an error's message in a :class:`KernelError`."""
TIMED_TURNS = 5
"""Number of times that a trial measures each function. The functions take turns, and the shortest time counts."""
TIMED_CALLS = 8  # number of calls in one measurement
_log = logging.getLogger(__name__)


class Case(NamedTuple):
    """Operands for which a trial compares a kernel with its reference: the values and the time.

    The functions may overwrite their operands, as the residual stream: only the results of first calls are compared.
    """

    kernel: Callable[[], Tensor]
    reference: Callable[[], Tensor]
    weight: float = 1.0  # factor of the times


class Trial(NamedTuple):
    """Comparisons that decide whether a kernel is used.

    Attributes:
        cases: Typical operands. The times of all cases are multiplied by their weights and added.
        tolerance: Largest difference between kernel and reference, relative to the largest absolute value of the
            reference.
        equal_results: Yields pairs of results of the kernel that must be bitwise equal, each with a description such as
            "1 and 64 rows".
        min_speedup: The kernel is used if the time of the reference, divided by the time of the kernel, is at least
            this number. Kernel and reference round differently, so their images differ. The expected speed-up should
            therefore be far from this number: otherwise the measured time would decide which image a seed gives.
    """

    cases: Sequence[Case]
    tolerance: float
    equal_results: Callable[[], Iterable[tuple[str, Tensor, Tensor]]]
    min_speedup: float = 1.0


TrialMaker = Callable[[], Trial]
"""Function that returns a trial. It allocates the operands."""


class KernelError(RuntimeError):
    """A Triton kernel could not be launched, or a captured round that contains kernels failed.

    The message is a clause that names the reason, such as "ValueError: no such device".
    """

    @classmethod
    def of(cls, error: Exception) -> KernelError:
        """Return the error for an exception of Triton, its compilers or the driver, which have no common class."""
        if isinstance(error, cls):
            return error
        return cls(f"{type(error).__name__}: {_last_part(str(error))}".rstrip(".: "))


def _last_part(text: str) -> str:
    """Return the end of a message. Errors of compilers begin with source code or with a command line."""
    line = one_line(text).strip()
    return line if len(line) <= LONGEST_REASON else f"... {line[-LONGEST_REASON:]}"


def pointers(*operands: Tensor) -> Sequence[Tensor | int]:
    """Return the operands of a kernel in a form that Triton's launcher accepts, also in a captured round.

    The launcher asks the driver for the address of a tensor. During a capture, CUDA's asynchronous allocator returns
    tensors that the driver does not know yet, so the launcher would raise an error. It does not check plain addresses.
    Kernels declare their pointers as "*i8", because an address has no dtype, and convert them to the dtype
    (:mod:`.pointer_triton`).

    Raises:
        ValueError: If an address is not a multiple of :data:`ALIGNMENT`, which the kernels require.
    """
    if any(operand.data_ptr() % ALIGNMENT for operand in operands):
        raise ValueError(f"the address of an operand is not a multiple of {ALIGNMENT}")
    if operands[0].is_cuda and torch.cuda.get_allocator_backend() != "native":
        return [operand.data_ptr() for operand in operands]
    return operands


def aligned(x: Tensor) -> Tensor:
    """Return a tensor, or a copy if it is a view whose address is not a multiple of :data:`ALIGNMENT`."""
    return x.clone() if x.data_ptr() % ALIGNMENT else x


def triton_dtype(dtype: torch.dtype):
    """Return Triton's dtype of the same name as a dtype of torch."""
    import triton.language as tl

    return getattr(tl, str(dtype).removeprefix("torch."))


def launch(kernel: Any, grid: tuple[int, ...], operands: Sequence[Tensor], *numbers: float, **options: Any) -> None:
    """Launch a Triton kernel on the device of its first operand.

    Args:
        kernel: Function with the decorator `triton.jit`.
        grid: Number of programs in each dimension.
        operands: Tensors that the kernel reads and writes, its first arguments.
        *numbers: Its other arguments.
        **options: Compile-time constants and options of the compiler. `enable_fp_fusion` is fixed, because a user's
            environment variable (`TRITON_DEFAULT_FP_FUSION`) would otherwise change the rounding.
    """
    with launching(operands[0]):
        kernel[grid](*pointers(*operands), *numbers, **options, enable_fp_fusion=True)


@contextmanager
def launching(x: Tensor) -> Iterator[None]:
    """Launch kernels in the block on the device of a tensor.

    An exception that does not report a lack of memory becomes a KernelError.
    """
    try:
        with torch.cuda.device_of(x):
            yield
    except Exception as error:
        if is_out_of_memory(error):
            raise
        raise KernelError.of(error) from error


def uses_kernel(operation: str, x: Tensor, shape: tuple, trial: TrialMaker) -> bool:
    """Return whether to launch the Triton kernel of an operation. The first call for a shape runs a trial.

    Args:
        x: Operand whose device and dtype determine the choice.
        shape: All other properties that determine which kernel is fastest, such as sizes and dtypes of other operands.
            It must not contain the number of rows if results for different numbers of rows must be bitwise equal.
        trial: Returns the trial. Only called if there is no verdict yet.

    Raises:
        RuntimeError: If the trial runs out of memory. The next call tries again.
    """
    if not supports_kernels(x.device) or operation not in enabled_operations():
        return False
    runtime = get_runtime()
    known = runtime.kernel_verdicts
    key = operation, x.device, x.dtype, shape
    if key not in known:
        operands = ", ".join(str(part).removeprefix("torch.") for part in (x.dtype, *shape))
        verdict = find_verdict(x.device, operation, operands)
        if verdict is None or verdict.uses_kernel:
            _before_trial(is_first=verdict is None)
            if not first_use.begin(x.device):
                switch_off(NO_FOLDER)
                return False
            verdict = _tried(verdict, x.device, operation, operands, trial)
        _log_rejection(verdict)
        known[key] = verdict
    if runtime.recorded_verdicts is not None:
        runtime.recorded_verdicts.add(known[key])
    return known[key].uses_kernel


def _tried(stored: Verdict | None, device: torch.device, operation: str, operands: str, trial: TrialMaker) -> Verdict:
    """Run a trial and return its verdict. If there is a stored verdict, only values and bits are compared."""
    try:
        if stored is None:
            return save_verdict(device, Verdict(operation, operands, *_decide(trial, device)))
        problem = _problem(trial)
    except _Cancelled as cancelled:
        assert cancelled.__cause__ is not None
        raise cancelled.__cause__ from None
    return Verdict(operation, operands, False, problem, True) if problem else stored


@contextmanager
def recorded_verdicts(check: Check | None = None) -> Iterator[set[Verdict]]:
    """Yield a set that gets the verdicts on all operations that the block launches.

    Args:
        check: Called before each trial in the block; may raise an exception to cancel. A trial takes about a second,
            because it compiles the kernel.
    """
    runtime = get_runtime()
    recorded: set[Verdict] = set()
    runtime.recorded_verdicts = recorded
    runtime.trial_check = check
    try:
        yield recorded
    finally:
        runtime.recorded_verdicts = None
        runtime.trial_check = None


def _before_trial(is_first: bool) -> None:
    """Let the user cancel, and tell once why the first image of a model takes longer if no process tried the kernel."""
    runtime = get_runtime()
    if runtime.trial_check is not None:
        runtime.trial_check()
    if is_first and runtime.recorded_verdicts is not None and not runtime.kernel_verdicts:
        (runtime.notify or _log.info)(message("device.compiling"))


class _Cancelled(BaseException):
    """Carries an exception of the cancellation callback out of a trial, where it would count as a fault."""


def _check_cancelled() -> None:
    check = get_runtime().trial_check
    if check is None:
        return
    try:
        check()
    except Exception as error:
        raise _Cancelled from error


def switch_off(reason: str) -> None:
    """Use no kernels until the process ends, and log why once."""
    runtime = get_runtime()
    if not runtime.kernel_failure:
        runtime.kernel_failure = reason
        _log.warning("Triton kernels are off until the program ends, so images take longer: %s.", reason)


def follow_settings() -> None:
    """Forget the results of all trials if settings of matrix products have changed since the last decoding."""
    runtime = get_runtime()
    settings = product_settings()
    if runtime.product_settings not in (None, settings):
        runtime.kernel_verdicts.clear()
        runtime.kernel_choices.clear()
        runtime.equal_products.clear()
    runtime.product_settings = settings


def _log_rejection(verdict: Verdict) -> None:
    """Log why a kernel is not used, unless the same reason was logged for other operands of the operation."""
    is_logged = any((other.operation, other.reason) == (verdict.operation, verdict.reason) for other in verdicts())
    if not verdict.uses_kernel and not is_logged:
        level = logging.WARNING if verdict.is_fault else logging.INFO
        text = "PyTorch replaces the Triton kernel %r for %s: %s."
        _log.log(level, text, verdict.operation, verdict.operands, verdict.reason)


def verdicts() -> list[Verdict]:
    """Return the verdicts of this process, in the order of the trials."""
    return list(get_runtime().kernel_verdicts.values())


def keep_out_of_captures(device: torch.device, reason: str) -> None:
    """Let later processes capture rounds without kernels, as long as they use the present allocator.

    With CUDA's asynchronous allocator, a failed capture ends all captures of a process. Captured rounds save more time
    than kernels.
    """
    save_verdict(device, Verdict(CAPTURES, torch.cuda.get_allocator_backend(), False, reason))


@contextmanager
def watched(device: torch.device) -> Iterator[None]:
    """Decode in the block. If it ends with an error of the device, let no process use kernels on this device again.

    Raises:
        AdtError: If the device fails, and kernels were launched. A kernel that writes to a wrong address makes all
            later operations of the process fail.
    """
    if has_launched(device):
        first_use.begin(device)
    try:
        with first_use.watched(device):
            yield
    except RuntimeError as error:
        if not (first_use.is_device_error(error) and has_launched(device)):
            raise
        raise AdtError("gpu.failed", reason=one_line(str(error))[:LONGEST_REASON], variable=VARIABLE) from error


def has_launched(device: torch.device) -> bool:
    """Return whether operations may have launched kernels on a device."""
    return supports_kernels(device) and any(verdict.uses_kernel for verdict in verdicts())


def supports_kernels(device: torch.device) -> bool:
    """Return whether Triton kernels can run on a device, if they pass their trials."""
    return not missing_support(device)


def missing_support(device: torch.device, operation: str = "") -> str:
    """Return the reason why no kernel, or not the one of an operation, can run on a device; "" if it can run."""
    if reason := _missing_support(device) or get_runtime().kernel_failure:
        return reason
    return f"{VARIABLE} does not contain {operation}" if operation and operation not in enabled_operations() else ""


def failure(device: torch.device, trial: TrialMaker) -> str:
    """Compare values and bits of a kernel outside of a choice. Return the reason why it can't be used, or ""."""
    return _problem(trial) if first_use.begin(device) else NO_FOLDER


@cached_per_runtime
def enabled_operations() -> frozenset[str]:
    """Return the operations that :data:`VARIABLE` enables, or raise an AdtError if it has an unknown name."""
    value = variable(VARIABLE, "1").strip()
    if value in ("", "0", "1"):
        return frozenset() if value == "0" else frozenset(OPERATIONS)
    names = frozenset(name.strip() for name in value.split(","))
    if not names <= set(OPERATIONS):
        raise AdtError("triton.bad_variable", variable=VARIABLE, value=shown(value), operations=", ".join(OPERATIONS))
    return names


@cached_per_runtime
def _missing_support(device: torch.device) -> str:
    if not is_nvidia(device):
        return "the device is not an NVIDIA GPU"
    if not enabled_operations():
        return f"{VARIABLE} is 0"
    if torch.cuda.get_device_capability(device) < MIN_CAPABILITY:
        return "the compute capability of the GPU is too low"
    if not has_triton():
        return "Triton is not installed"
    if first_use.has_crashed(device):
        reason = f"a program ended during its first image with them; {command('doctor --kernels')} tries them again"
        _log.warning("Triton kernels are off on this GPU, so images take longer: %s.", reason)
        return reason
    allocator = torch.cuda.get_allocator_backend()
    failed = None if allocator == "native" else find_verdict(device, CAPTURES, allocator)
    return f"with the allocator {allocator}, they could not be captured ({failed.reason})" if failed else ""


def is_nvidia(device: torch.device) -> bool:
    """Return whether a device is an NVIDIA GPU. torch's device type is "cuda" for GPUs of AMD, too."""
    return device.type == "cuda" and not torch.version.hip


@cached_per_runtime
def has_triton() -> bool:
    """Return whether Triton can be imported. The import takes up to a second."""
    try:
        import triton  # noqa: F401
    except Exception:  # a damaged installation can raise anything
        return False
    return True


def _decide(trial: TrialMaker, device: torch.device) -> tuple[bool, str, bool]:
    """Run a trial. Return the last three values of a verdict: `uses_kernel`, `reason` and `is_fault`."""
    try:
        comparisons = trial()
        problem = _wrong_result(comparisons)
        if problem:
            return False, problem, True
        kernel_time, reference_time = _total_times(comparisons.cases, device)
    except Exception as error:  # Triton, its compilers and the driver have no common exception
        if is_out_of_memory(error):
            raise  # lack of memory is temporary, so the answer must not be cached
        return False, str(KernelError.of(error)), True
    speedup = reference_time / kernel_time
    if speedup >= comparisons.min_speedup:
        return True, f"it is {speedup:.2f} times as fast as PyTorch", False
    return False, f"PyTorch is {1 / speedup:.2f} times as fast", False


def _problem(trial: TrialMaker) -> str:
    """Compare values and bits; return the reason why the kernel can't be used, or ""."""
    try:
        return _wrong_result(trial())
    except Exception as error:  # as in `_decide`
        if is_out_of_memory(error):
            raise
        return str(KernelError.of(error))


def _wrong_result(trial: Trial) -> str:
    """Return the first difference that the trial forbids, or ""."""
    for kernel, reference, _ in trial.cases:
        _check_cancelled()  # each case may compile another version, which takes 4 to 20 seconds
        expected = reference().double()
        difference = (kernel().double() - expected).abs().max()
        if not difference <= trial.tolerance * expected.abs().max():  # also if the difference is NaN
            return f"its values differ from PyTorch's by {float(difference):.2g}"
    for description, one, other in trial.equal_results():
        _check_cancelled()
        if not one.equal(other):
            return f"its results for {description} are not bitwise equal"
    return ""


def _total_times(cases: Sequence[Case], device: torch.device) -> tuple[float, float]:
    """Return the weighted sum of the times of all kernels, and the sum of all references, in ms."""
    times = device_times([function for case in cases for function in case[:2]], device)
    weights = [case.weight for case in cases]
    kernel, reference = (sum(map(mul, weights, part)) for part in (times[::2], times[1::2]))
    return kernel, reference


def device_times(functions: Sequence[Callable[[], object]], device: torch.device) -> list[float]:
    """Return the shortest time in ms of one call of each function on the device, without the time of launching.

    The device is occupied while the host launches the calls, so that they run directly after each other, as in a
    captured round.

    Args:
        functions: Functions that launch kernels and do not wait for the device. Each was called before.
    """
    times = [float("inf")] * len(functions)
    with torch.cuda.device(device):
        for _ in range(TIMED_TURNS):
            for index, function in enumerate(functions):
                start = torch.cuda.Event(enable_timing=True)
                end = torch.cuda.Event(enable_timing=True)
                occupy_gpu()
                start.record()
                for _ in range(TIMED_CALLS):
                    function()
                end.record()
                end.synchronize()
                times[index] = min(times[index], start.elapsed_time(end) / TIMED_CALLS)
    return times
