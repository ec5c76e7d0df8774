"""Choice between a Triton kernel and its reference, by a trial at the first use.

A kernel is used only if it compiles on this device, gives the values of the reference, gives bitwise equal results
where the operation requires them, and is fast enough (`Trial.min_speedup`). The result of a trial, the *verdict*, stays
valid until the process ends. No trial runs on devices other than NVIDIA GPUs, or if Triton is missing: there, the
reference is used.

A captured round must not run a trial, because a trial waits for the device. The first launch of a round is never
captured (:mod:`adt_core.engine.graphs`), so all trials are over when the round is captured.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Sequence
from operator import mul
from typing import NamedTuple

import torch
from torch import Tensor

from ..errors import is_out_of_memory, one_line
from ..models.kernels import occupy_gpu
from ..runtime import cached_per_runtime, get_runtime

VARIABLE = "ADT_TREE_KERNELS"
"""Environment variable; "0" disables Triton kernels."""
MIN_CAPABILITY = (7, 5)
"""Oldest compute capability for which Triton compiles."""
TIMED_TURNS = 5
"""Number of times that a trial measures each function. The functions take turns, and the shortest time counts."""
TIMED_CALLS = 8
"""Number of calls in one measurement."""
_log = logging.getLogger(__name__)


class Case(NamedTuple):
    """Operands for which a trial compares the values and the time of a kernel with those of its reference.

    The functions may overwrite their operands, as the residual stream: only the results of first calls are compared.

    Attributes:
        kernel: Launches the Triton kernel and returns its result.
        reference: Returns the same result, computed with PyTorch's operations.
        weight: Factor of the times.
    """

    kernel: Callable[[], Tensor]
    reference: Callable[[], Tensor]
    weight: float = 1.0


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


class Verdict(NamedTuple):
    """Result of a trial.

    Attributes:
        operation: Name of the operation, such as "linear".
        operands: Dtype and shape of the operands, for messages.
        uses_kernel: Whether the kernel is used; if not, the reference is used.
        reason: Reason of the decision; a clause such as "it is 1.3 times as fast as PyTorch".
        is_fault: Whether the kernel is not used because it failed or gave a wrong result.
    """

    operation: str
    operands: str
    uses_kernel: bool
    reason: str
    is_fault: bool = False


def uses_kernel(operation: str, x: Tensor, shape: tuple, trial: Callable[[], Trial]) -> bool:
    """Return whether to launch the Triton kernel of an operation. The first call for a shape runs a trial.

    Args:
        operation: Name of the operation.
        x: Operand whose device and dtype determine the choice.
        shape: All other properties that determine which kernel is fastest, such as sizes and dtypes of other operands.
            It must not contain the number of rows if results for different numbers of rows must be bitwise equal.
        trial: Returns the trial. Only called if there is no verdict yet.

    Raises:
        RuntimeError: If the trial runs out of memory. The next call tries again.
    """
    if not supports_kernels(x.device):
        return False
    known = get_runtime().kernel_verdicts
    key = operation, x.device, x.dtype, shape
    if key not in known:
        operands = ", ".join(str(part).removeprefix("torch.") for part in (x.dtype, *shape))
        verdict = Verdict(operation, operands, *_decide(trial, x.device))
        _log_rejection(verdict)
        known[key] = verdict
    return known[key].uses_kernel


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


def supports_kernels(device: torch.device) -> bool:
    """Return whether Triton kernels can run on a device, if they pass their trials."""
    return not missing_support(device)


@cached_per_runtime
def missing_support(device: torch.device) -> str:
    """Return the reason why no Triton kernel can run on a device; "" if kernels can run."""
    if device.type != "cuda" or torch.version.hip:
        return "the device is not an NVIDIA GPU"
    if os.environ.get(VARIABLE) == "0":
        return f"{VARIABLE} is 0"
    if torch.cuda.get_device_capability(device) < MIN_CAPABILITY:
        return "the compute capability of the GPU is too low"
    return "" if has_triton() else "Triton is not installed"


@cached_per_runtime
def has_triton() -> bool:
    """Return whether Triton can be imported. The import takes up to a second."""
    try:
        import triton  # noqa: F401
    except Exception:  # a damaged installation can raise anything
        return False
    return True


def _decide(trial: Callable[[], Trial], device: torch.device) -> tuple[bool, str, bool]:
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
        return False, f"{type(error).__name__}: {one_line(str(error))[:200]}".rstrip(".: "), True
    speedup = reference_time / kernel_time
    if speedup >= comparisons.min_speedup:
        return True, f"it is {speedup:.2f} times as fast as PyTorch", False
    return False, f"PyTorch is {1 / speedup:.2f} times as fast", False


def _wrong_result(trial: Trial) -> str:
    """Return the first difference that the trial forbids, or ""."""
    for kernel, reference, _ in trial.cases:
        expected = reference().double()
        difference = (kernel().double() - expected).abs().max()
        if not difference <= trial.tolerance * expected.abs().max():  # also if the difference is NaN
            return f"its values differ from PyTorch's by {float(difference):.2g}"
    for description, one, other in trial.equal_results():
        if not one.equal(other):
            return f"its results for {description} are not bitwise equal"
    return ""


def _total_times(cases: Sequence[Case], device: torch.device) -> tuple[float, float]:
    """Return the weighted sum of the times of all kernels, and that of all references, in ms."""
    times = device_times([function for case in cases for function in case[:2]], device)
    weights = [case.weight for case in cases]
    kernel, reference = (sum(map(mul, weights, part)) for part in (times[::2], times[1::2]))
    return kernel, reference


def device_times(functions: Sequence[Callable[[], object]], device: torch.device) -> list[float]:
    """Measure how long the device needs for one call of each function, without the time of launching.

    The device is occupied while the host launches the calls, so that they run directly after each other, as in a
    captured round.

    Args:
        functions: Functions that launch kernels and do not wait for the device. Each was called before.
        device: CUDA device.

    Returns:
        The shortest time of each function in ms.
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
