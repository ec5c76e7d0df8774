"""Tests of the parts of the GPU benchmark that measure Triton kernels, without a GPU."""

import os

import pytest
import torch

from adt_core.kernels import attend
from adt_core.kernels.choice import VARIABLE, Verdict, missing_support
from adt_core.runtime import get_runtime
from benchmarks.gpu import kernels as part
from benchmarks.gpu import operations
from benchmarks.gpu.models import SEVEN_B, random_target, shape_of
from benchmarks.gpu.operations import Attend, operations_of
from benchmarks.gpu.report import BARS, Bar
from tests.unit.kernels.references import float64_kernel

GPU = torch.device("cuda")
NAMES = ["attend", "norm_rope_store", "norm", "gate"]  # operations of a model whose weights are not quantised
TOLERANCE = 0.02
"""Largest difference between kernel and reference in float16, relative to the largest result. The references round
after each operation, and the kernels only once."""


def rows_of(cases, name):
    """Run a case of a rehearsal and return its rows."""
    return list(dict(cases(rehearse=True))[name]())


def test_rehearsal_measures_every_operation():
    times = rows_of(part.times, f"{SEVEN_B} bf16")
    bits = rows_of(part.bits, f"{SEVEN_B} bf16")
    assert [row["operation"] for row in times] == [name for name in NAMES for _ in part.NODES]
    assert [row["operation"] for row in bits] == NAMES
    assert [row["rows"] for row in times[:3]] == [2, 50, 128]
    assert all(row["elements"] > 0 and row["128 rows"] == 0 for row in bits)
    assert {row["table"] for row in bits} == {part.BITS}  # no trial runs on a CPU


@pytest.mark.parametrize("weights", ["int8", "fp8", "int4"])
def test_only_products_are_measured_with_quantised_weights(weights):
    rows = rows_of(part.quantised, f"{part.BUNDLED} {weights}") + rows_of(part.bits, f"{part.BUNDLED} {weights}")
    assert {(row["operation"], row["weights"]) for row in rows} == {("linear", weights)}


def test_rounds_are_measured_with_and_without_kernels():
    rows = rows_of(part.rounds, "rounds bf16")
    assert [(row["round"], row["Triton"]) for row in rows] == [
        (name, setting) for name in ("plain", "network and window") for setting in ("off", "on")
    ]
    assert all(row["times as fast"] == 1 for row in rows if row["Triton"] == "off")


@pytest.mark.parametrize("allowed", ["1", "0", "gate,norm"])
def test_each_block_has_its_setting_and_an_empty_runtime(monkeypatch, allowed):
    """Kernels that the part `smoke` has excluded stay off."""
    monkeypatch.setenv(VARIABLE, allowed)
    outside = get_runtime()
    with part.kernels(True):
        assert get_runtime() is not outside and os.environ[VARIABLE] == allowed
    with part.kernels(False):
        assert missing_support(GPU) == f"{VARIABLE} is 0"
    assert get_runtime() is outside and os.environ[VARIABLE] == allowed
    monkeypatch.delenv(VARIABLE)
    with part.kernels(True):
        assert os.environ[VARIABLE] == "1"


def test_without_support_the_reason_is_reported():
    if torch.cuda.is_available():
        pytest.skip("this device may support Triton kernels")
    for cases in (part.bits, part.rounds, part.times, part.quantised):
        ((name, measure),) = cases(rehearse=False)
        (row,) = measure()
        assert name == "support" and row["reason"] == "the device is not an NVIDIA GPU"


class Faulty:
    """Operation whose last result changes if fewer than 32 rows are computed."""

    distinct_layers = 2

    def result(self, layer, rows):
        found = torch.tensor(rows)[:, None] + torch.zeros(3)
        if len(rows) < 32:
            found[-1, 0] = torch.nan
        return found


def test_differing_elements_are_counted_in_all_layers_and_parts():
    differing = {f"{rows} rows": 4 if rows < 32 else 0 for rows in (1, 2, 25, 32, 64, 128)}
    assert part.differing_elements(Faulty()) == {"elements": 2 * 128 * 3, **differing}


def bar(words: str) -> Bar:
    return next(bar for bar in BARS if words in bar.title)


@pytest.mark.parametrize("used, expected", [(True, 7), (False, None)], ids=["used", "rejected"])
def test_bar_counts_only_elements_of_used_kernels(used, expected):
    rows = [{"table": part.BITS, "Triton is used": used, "1 rows": count, part.DIFFERING: count} for count in (0, 7)]
    assert bar("number of rows").value({"bits": rows}) == expected
    assert bar("number of rows").value({}) is None


def test_bar_compares_rounds_with_and_without_kernels():
    row = {"table": part.ROUNDS, "weights": "bf16", "round": "network and window"}
    rows = [row | {"Triton": "off", "times as fast": 1.0}, row | {"Triton": "on", "times as fast": 1.4}]
    assert bar("24 drafts").value({"rounds": rows}) == 1.4
    assert bar("24 drafts").value({}) is None


def test_verdict_of_the_trial_is_reported(monkeypatch):
    monkeypatch.setattr(part, "verdicts", lambda: [Verdict("norm", "bfloat16, 32", True, "it is 2.00 times as fast")])
    rows = rows_of(part.bits, f"{SEVEN_B} bf16")
    chosen = [row for row in rows if row["table"] == "Choices"]
    assert [row["operation"] for row in chosen] == NAMES
    assert all(row["Triton is used"] and "2.00" in row["reason"] for row in chosen)


def test_a_kernel_that_fails_does_not_stop_the_other_operations(monkeypatch):
    def fail(self, layer, *given):
        raise RuntimeError("no compiler")

    monkeypatch.setattr(Attend, "result", fail)
    rows = rows_of(part.bits, f"{SEVEN_B} bf16")
    (error,) = [row for row in rows if "error" in row]
    assert error["error"] == "RuntimeError: no compiler"
    assert error["what"].startswith(f"{SEVEN_B} bf16, attend, ")
    assert [row["operation"] for row in rows if row.get("table") == part.BITS] == NAMES[1:]


@pytest.mark.parametrize("weights", [None, "int8", "int4"])
@torch.inference_mode()
def test_kernels_get_the_operands_of_the_references(weights, monkeypatch):
    """Triton's interpreter runs the kernels with a tree of 3 nodes, so 6 rows."""
    pytest.importorskip("triton", reason="Triton is not installed")
    monkeypatch.setattr(operations, "supports_kernels", lambda device: True)
    monkeypatch.setattr(attend, "far_attention", float64_kernel)
    monkeypatch.setattr(Attend, "_reference", lambda self, *given: attend.reference(*given))
    decoder = random_target(SEVEN_B, shape_of(SEVEN_B, True), torch.float16, weights).decoder
    for operation in operations_of(decoder):
        found, expected = (calls[0]()[:6].double() for calls in operation.calls(3))
        assert (found - expected).abs().max() < TOLERANCE * expected.abs().max(), operation.operands
        assert operation.result(1 % operation.distinct_layers, range(1, 3)).shape[0] == 2
