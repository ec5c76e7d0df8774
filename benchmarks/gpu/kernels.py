"""Triton kernels of :mod:`adt_core.kernels`, compared with PyTorch's operations on the same device.

This module has four parts of the benchmark, which measure different tables of these:

- *Rounds*: complete rounds of a 7B model with random weights in the batch-invariant mode, for one image with guidance.
  *Triton* is "on" or "off". Blocks of rounds with and without Triton alternate: off, on, on, off. *Kernels* counts all
  kernels that the device ran in a round, and *launches* the calls with which the host launched them.
- *Choices*: result of the trial with which the engine chooses between kernel and PyTorch.
- *Operations*: time of one call, in microseconds. A call reads the weights, keys and values of another layer than the
  call before, so that they are not in the cache of the device. The calls of all layers are captured as a CUDA graph.
  The graph of the kernel and the graph of PyTorch take turns, and the shortest of five times counts as one measurement.
- *Bits*: number of elements of the kernel's results that change if a forward pass computes fewer than 128 rows. 0 is
  required; otherwise the trial must reject the kernel. Each number of rows is compared for the first rows and for the
  last rows, in all layers. The activations are random. The weights of the 7B model are random, too; the weights of the
  bundled model are trained.

In a rehearsal without Triton kernels, PyTorch replaces them, so the numbers mean nothing.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import torch

from adt_core import Pipeline, Target
from adt_core.engine.graphs import disabled_reason
from adt_core.kernels.choice import Verdict, device_times, missing_support, verdicts
from adt_core.kernels.linear import TESTED_ROWS
from adt_core.policies import PLAIN

from . import device
from .device import Case, spread, the_device
from .models import MERGED, SEVEN_B, TITLES, Stream, pipeline_of, random_network, random_target, shape_of, trained
from .operations import GUIDED, MAX_ROWS, Operation, kernels, operations_of

BUNDLED = "bundled"
QUANTISED = ("int8", "int4", "fp8")
METHODS = (PLAIN, MERGED)  # methods whose rounds are timed: without drafts, and with 24 drafts
BLOCKS = (False, True, True, False)
"""Whether Triton kernels are on, for each block of rounds. The order cancels a steady change of the clock rate."""
NODES = (1, 25, 64)  # numbers of nodes in a forward pass: a plain round, a tree with 24 drafts, and a larger tree
ROUNDS = "Rounds"
BITS = "Bits"
DIFFERING = "differing in all"
REPEATS = 5  # number of measurements of an operation


# ---- operations -----------------------------------------------------------------------------------


def _call_all(calls: Sequence[Callable[[], object]]) -> None:
    for call in calls:
        call()


def _prepared(calls: Sequence[Callable[[], object]]) -> Callable[[], object]:
    """Return a function that makes all calls; on a GPU, by replaying a graph."""
    call = partial(_call_all, calls)
    call()
    return device.capture(call) if the_device().type == "cuda" else call


def _milliseconds(functions: Sequence[Callable[[], object]]) -> list[float]:
    """Measure functions in turns, and return the time of each function in ms."""
    where = the_device()
    if where.type == "cuda":
        return device_times(functions, where)
    return [1000 * device.seconds_of(function) for function in functions]


@torch.inference_mode()
def _times(operation: Operation, nodes: int, rehearse: bool) -> dict:
    """Return the columns with the times of an operation, for a forward pass of `nodes` nodes."""
    with kernels(True):
        kernel_calls, reference_calls = operation.calls(nodes)
        kernel = _prepared(kernel_calls)
    with kernels(False):
        reference = _prepared(reference_calls)
    repeats = 1 if rehearse else REPEATS
    samples = [_milliseconds([kernel, reference]) for _ in range(repeats)]
    times = [[1000 * value / len(kernel_calls) for value in values] for values in zip(*samples)]
    speedup = statistics.median(times[1]) / statistics.median(times[0])
    columns = {"Triton, µs": spread(times[0]), "PyTorch, µs": spread(times[1]), "times as fast": speedup}
    return {"rows": GUIDED * nodes} | columns


@torch.inference_mode()
def differing_elements(operation: Operation) -> dict[str, int]:
    """Return the number of elements that change with the number of rows, by the number of rows.

    The result also contains the number of elements for all rows, as "elements".
    """
    layers = range(operation.distinct_layers)
    expected = [operation.result(layer, range(MAX_ROWS)) for layer in layers]
    found = {"elements": sum(result.numel() for result in expected)}
    for count in TESTED_ROWS:
        parts = [range(count), range(MAX_ROWS - count, MAX_ROWS)]
        pairs = [(operation.result(layer, part), expected[layer][list(part)]) for part in parts for layer in layers]
        found[f"{count} rows"] = sum(int((one != other).sum()) for one, other in pairs)
    return found


@torch.inference_mode()
def _verdict(operation: Operation) -> Verdict | None:
    """Run the trial of an operation; None if the device supports no Triton kernels."""
    with kernels(True):
        operation.choose()
        found = verdicts()
    return found[-1] if found else None


def _target(name: str, weights: str | None, rehearse: bool) -> Target:
    """Return the bundled model with its trained weights, or a model with random weights."""
    if name == BUNDLED:
        return trained(torch.bfloat16, rehearse, weights)[0]
    return random_target(name, shape_of(name, rehearse), torch.bfloat16, weights)


Measure = Callable[[Operation, dict, bool], Iterator[dict]]
"""Function that yields the rows of an operation. Its other arguments are the columns that all rows have, and whether
this is a rehearsal."""


def _measure_bits(operation: Operation, head: dict, rehearse: bool) -> Iterator[dict]:
    """Yield the choice, and the differences of bits."""
    verdict = _verdict(operation)
    used = verdict and verdict.uses_kernel
    if verdict is not None:
        yield {"table": "Choices"} | head | {"Triton is used": used, "reason": verdict.reason}
    found = differing_elements(operation)
    total = sum(count for column, count in found.items() if column.endswith(" rows"))
    yield {"table": BITS} | head | {"Triton is used": used} | found | {DIFFERING: total}


def _measure_times(operation: Operation, head: dict, rehearse: bool) -> Iterator[dict]:
    for nodes in NODES:
        yield {"table": "Operations"} | head | _times(operation, nodes, rehearse)


def _operations(name: str, weights: str | None, measure: Measure, rehearse: bool) -> Iterator[dict]:
    decoder = _target(name, weights, rehearse).decoder
    with kernels(True):
        operations = operations_of(decoder)
    for operation in operations:
        head = {"model": name, "weights": weights or "bf16", "operation": operation.name}
        try:
            yield from measure(operation, head | {"operands": operation.operands}, rehearse)
        except Exception as error:  # continue with the other operations
            what = f"{name} {weights or 'bf16'}, {operation.name}, {operation.operands}"
            yield {"what": what, "error": device.describe_error(error)}
            device.synchronise()  # raises if the device has failed


# ---- rounds ---------------------------------------------------------------------------------------


class _Block(NamedTuple):
    """Block of rounds of all methods, with or without Triton kernels."""

    seconds: dict[str, list[float]]  # times of the rounds of each method
    columns: dict[str, dict]  # columns of the table that describe the last rounds of each method
    verdicts: list[Verdict]  # results of the trials


def _decode_block(target: Target, on: bool, pipelines: dict[str, Pipeline], rehearse: bool) -> _Block:
    """Decode a block of rounds in turns."""
    count, warm_up, profiled = (2, 1, 1) if rehearse else (10, 8, 4)
    seconds: dict[str, list[float]] = {name: [] for name in pipelines}
    columns = {}
    with kernels(on):
        target.decoder.free_pool()  # its captured rounds contain the kernels of the block before
        streams = {name: Stream(pipeline, device.modes()[0], warm_up=warm_up) for name, pipeline in pipelines.items()}
        for _ in range(count):
            for name, stream in streams.items():
                seconds[name].append(stream.seconds())
        for name, stream in streams.items():
            columns[name] = {
                **device.columns_of(stream.profiled(profiled), statistics.median(seconds[name])),
                "exact mode": stream.decoding.invariance.remark or "as usual",
                "graphs": disabled_reason(target.decoder) or "as usual",
            }
            stream.close()
        return _Block(seconds, columns, verdicts())


def _rounds(weights: str | None, rehearse: bool) -> Iterator[dict]:
    target = random_target(SEVEN_B, shape_of(SEVEN_B, rehearse), torch.bfloat16, weights)
    network = random_network(target)
    pipelines = {method: pipeline_of(target, network, method) for method in METHODS}
    blocks = [_decode_block(target, on, pipelines, rehearse) for on in BLOCKS]
    head = {"model": SEVEN_B, "weights": weights or "bf16"}
    for method in METHODS:
        seconds = {}
        for on in (False, True):
            own = [block for block, is_on in zip(blocks, BLOCKS) if is_on == on]
            seconds[on] = [time for block in own for time in block.seconds[method]]
            speedup = statistics.median(seconds[False]) / statistics.median(seconds[on])
            row = {"table": ROUNDS, **head, "round": TITLES[method], "Triton": "on" if on else "off"}
            yield row | {"ms": spread(seconds[on], 1000), "times as fast": speedup} | own[-1].columns[method]
    for verdict in blocks[BLOCKS.index(True)].verdicts:
        row = {"table": "Choices in these rounds"} | head | {"operation": verdict.operation}
        yield row | {"operands": verdict.operands, "Triton is used": verdict.uses_kernel, "reason": verdict.reason}


# ---- the parts ------------------------------------------------------------------------------------


def _not_supported(reason: str) -> Iterator[dict]:
    yield {"table": "Choices", "operation": "all", "Triton is used": False, "reason": reason}


def _if_supported(found: list[Case], rehearse: bool) -> list[Case]:
    """Return the given cases; on a device without Triton kernels, a case that names the reason."""
    with kernels(True):
        reason = "" if rehearse else missing_support(the_device())
    return [("support", partial(_not_supported, reason))] if reason else found


def _cases(measure: Measure, formats: Sequence[str | None], rehearse: bool) -> list[Case]:
    """Return a case for each format of weights and each model."""
    return [
        (f"{model} {weights or 'bf16'}", partial(_operations, model, weights, measure, rehearse))
        for weights in formats
        for model in (SEVEN_B, BUNDLED)
    ]


def bits(rehearse: bool) -> list[Case]:
    """Return the cases that compare bits, and report the choices, with all formats of weights."""
    return _if_supported(_cases(_measure_bits, (None, *QUANTISED), rehearse), rehearse)


def rounds(rehearse: bool) -> list[Case]:
    """Return the case that measures complete rounds in bfloat16."""
    return _if_supported([("rounds bf16", partial(_rounds, None, rehearse))], rehearse)


def times(rehearse: bool) -> list[Case]:
    """Return the cases that time each operation in bfloat16."""
    return _if_supported(_cases(_measure_times, (None,), rehearse), rehearse)


def quantised(rehearse: bool) -> list[Case]:
    """Return the cases that measure rounds, and time products, with quantised weights."""
    found: list[Case] = [(f"rounds {weights}", partial(_rounds, weights, rehearse)) for weights in QUANTISED]
    return _if_supported(found + _cases(_measure_times, QUANTISED, rehearse), rehearse)
