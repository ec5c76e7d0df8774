"""Tests of float32 products on a CPU: the choice of the library, and the trial that compares bits."""

import sys

import pytest
import torch

from adt_core import Decoding, Drafting, Sampling, load_drafter, load_target
from adt_core.engine.device import products
from adt_core.engine.device.products import ProductReport, product_report
from adt_core.engine.request import Request
from adt_core.models import cpu, layers, packed
from adt_core.policies import PLAIN
from tests.drafted import new_decoding

INTEL = "processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\n"


@pytest.fixture
def target(tiny, runtime):
    return load_target(tiny / "target", dtype=torch.float32)


@pytest.fixture
def all_products_by_mkl(monkeypatch):
    """Use the rule of Intel's processors."""
    for module in (cpu, layers, packed):
        monkeypatch.setattr(module, "max_mkl_rows", lambda: cpu.ALL_ROWS)


def request_of(target, drafter=None) -> Request:
    return decoding_of(target, drafter).request


def decoding_of(target, drafter=None, **options) -> Decoding:
    drafting = Drafting(PLAIN if drafter is None else "eagle2")
    return new_decoding(target, [target.encode_prompt("a cat")], drafting=drafting, drafter=drafter, **options)


# ---- library -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "vendor, has_mkl, expected",
    [
        ("GenuineIntel", True, cpu.ALL_ROWS),
        ("GenuineIntel", False, cpu.FEW_ROWS),
        ("AuthenticAMD", True, cpu.FEW_ROWS),
        ("", True, cpu.FEW_ROWS),
    ],
)
def test_the_maker_of_the_processor_decides_which_library_multiplies(monkeypatch, vendor, has_mkl, expected):
    monkeypatch.setattr(cpu, "vendor", lambda: vendor)
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: has_mkl)
    assert cpu.max_mkl_rows.__wrapped__() == expected


@pytest.mark.parametrize(
    "content, expected", [(INTEL, "GenuineIntel"), (INTEL.replace("GenuineIntel", "AuthenticAMD"), "AuthenticAMD")]
)
def test_linux_lists_the_vendor_in_a_file(monkeypatch, tmp_path, content, expected):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(cpu, "CPU_INFO", tmp_path / "cpuinfo")
    assert cpu.vendor() == "", "there is no such file"
    (tmp_path / "cpuinfo").write_text(content, encoding="utf-8")
    assert cpu.vendor() == expected
    (tmp_path / "cpuinfo").write_text("Hardware: ARM\n", encoding="utf-8")
    assert cpu.vendor() == ""


def test_windows_lists_the_vendor_in_the_name_of_the_processor(monkeypatch):
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(cpu.platform, "processor", lambda: "Intel64 Family 6 Model 143 Stepping 8, GenuineIntel")
    assert cpu.vendor() == "GenuineIntel"


@torch.inference_mode()
def test_on_intel_mkl_computes_all_products(all_products_by_mkl, monkeypatch, target):
    packed.pack([target.decoder])
    monkeypatch.setattr(layers, "onednn_matmul", None)
    weight = target.decoder.layers[0].qkv
    assert packed.packed(weight) is None, "no memory is used for copies that nothing reads"
    for rows in (1, 3, 4, 50):
        x = torch.ones(rows, weight.shape[0])
        assert torch.equal(layers.product(x, weight), x @ weight)


# ---- trial ---------------------------------------------------------------------------------------


def multiply_by(monkeypatch, error) -> None:
    """Multiply exactly, in float64. Then add ``error(rows, threads)`` to the product."""

    def product(x, weight, plus=None):
        exact = x.double() @ weight.double() + error(len(x), torch.get_num_threads())
        return (exact if plus is None else exact + plus).float()

    monkeypatch.setattr(products, "product", product)


@pytest.mark.parametrize(
    "error, expected",
    [
        (lambda rows, threads: 0.0, ProductReport(True, 4)),
        (lambda rows, threads: 0.1 * (rows == 1), ProductReport(True, 4)),
        (lambda rows, threads: 0.1 * (rows == 3), ProductReport(False, 4)),
        (lambda rows, threads: 0.1 * (threads == 3), ProductReport(True, 2)),
        (lambda rows, threads: 0.1 * (threads == 2 and rows == 1), ProductReport(True, 1)),
    ],
    ids=["equal", "a single row differs", "three rows differ", "three threads differ", "two threads differ"],
)
def test_the_trial_finds_what_the_bits_depend_on(target, four_threads, monkeypatch, error, expected):
    multiply_by(monkeypatch, error)
    assert product_report(request_of(target)) == expected


def test_the_trial_runs_once_for_each_network(target, tiny, monkeypatch):
    drafter = load_drafter(tiny / "drafter", target)
    report = product_report(request_of(target, drafter))
    monkeypatch.setattr(products, "_results", None)
    assert product_report(request_of(target, drafter)) == report
    assert product_report(request_of(target)).rows == report.rows, "drafters must not change the image"


@pytest.mark.parametrize("dtype, weights", [(torch.bfloat16, None), (torch.float64, None), (torch.float32, "int8")])
def test_other_formats_are_not_tested(tiny, four_threads, dtype, weights):
    target = load_target(tiny / "target", dtype=dtype, weights=weights)
    assert product_report(request_of(target)) == ProductReport(False, 1)


def test_the_report_on_this_machine_is_true(target, four_threads):
    """Rows and threads that the trial has not tried must have the same bits, too."""
    report = product_report(request_of(target))
    with torch.inference_mode():
        weight = target.decoder.layers[0].gate_up
        x = torch.randn(100, weight.shape[0], generator=torch.Generator().manual_seed(1))
        complete = layers.product(x, weight)
        for threads in range(1, report.threads + 1):
            torch.set_num_threads(threads)
            for rows in (7, 26, 100):
                found = layers.product(x[:rows], weight)
                assert torch.equal(found, complete[:rows]) or not report.rows
            assert torch.equal(found, complete)


# ---- decoding ------------------------------------------------------------------------------------


@pytest.mark.parametrize("guidance", [1.0, 2.0])
def test_a_single_row_is_padded_if_products_are_batch_invariant(target, monkeypatch, guidance):
    """Without guidance, a plain round has one row. With guidance, it has two rows, and one row in the output layer."""
    multiply = layers._multiply
    rows: set[int] = set()
    monkeypatch.setattr(
        layers, "_multiply", lambda *args: rows.add(args[2].numel() // args[2].shape[-1]) or multiply(*args)
    )
    codes = []
    for is_invariant, expected in ((False, {1} | {int(guidance)}), (True, {2})):
        monkeypatch.setattr(products, "product_report", lambda request, rows=is_invariant: ProductReport(rows, 1))
        decoding = decoding_of(target, sampling=Sampling(guidance_scale=guidance))
        steps = iter(decoding)
        next(steps)
        rows.clear()
        assert len(list(steps)) > 1 and rows == expected
        codes.append(decoding.codes)
    assert torch.equal(*codes)
