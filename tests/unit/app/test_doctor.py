"""Tests of the report on how a model runs on a machine."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from adt_core import Pipeline, Recipe, Sampling, load_drafter
from adt_core.app import diagnostics, doctor
from adt_core.app.diagnostics import PROMPTS, DiagnosticSetup
from adt_core.app.doctor import diagnose
from adt_core.cli import main
from adt_core.engine.device.products import ProductReport
from adt_core.kernels import choice
from adt_core.models import layers
from tests.layouts.families import WRITERS, load_small

TITLES = ["Machine", "Model", "No drafting", "Cost of drafts", "Methods", "Same image"]
TITLES += ["How to make it faster", "For a bug report"]


@pytest.fixture(autouse=True)
def few_tokens(runtime, monkeypatch, tmp_path):
    monkeypatch.setattr(diagnostics, "TOKENS", 24)
    monkeypatch.setattr(diagnostics, "MAX_TURN_SECONDS", 0.01)
    monkeypatch.setattr(diagnostics, "MAX_TURNS", 3)
    monkeypatch.setenv("ADT_TREE_CACHE", str(tmp_path / "cache"))


def report_on(target, check=None) -> str:
    pipeline = Pipeline(target, Recipe(Sampling(seed=3)), load_drafter("jacobi", target))
    return diagnose(DiagnosticSetup(pipeline, pipeline.encode(PROMPTS), check)).page


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return load_small("chameleon", WRITERS["chameleon"](tmp_path_factory.mktemp("model")), dtype=torch.bfloat16)


def part(page: str, title: str) -> str:
    return page.split(f"## {title}\n")[1].split("\n\n## ")[0]


@pytest.mark.long
def test_command_with_the_bundled_model(capsys):
    assert main(["doctor"]) == 0
    page = capsys.readouterr().out
    assert re.findall("^## (.*)$", page, re.M) == TITLES
    methods = part(page, "Methods")
    assert re.findall(r"^\| ([\w, -]+) \|", methods, re.M)[1:] == ["No drafting", "Auto", "ADT-Tree", "Jacobi chain"]
    assert "DIFFERS" not in methods and methods.count("the same") == 8
    assert part(page, "Same image") == "Every method gives the same tokens as no drafting."
    assert re.search(r"\| merged \| [\d.]+ \|", part(page, "Cost of drafts"))
    assert str(Path.cwd()) not in page and str(Path.home()) not in page


@pytest.mark.parametrize("turns", [3, pytest.param(6, marks=pytest.mark.long)])
def test_the_verdict_is_the_first_line_and_speeds_are_measured_in_turns(small, monkeypatch, turns):
    monkeypatch.setattr(diagnostics, "MAX_TURNS", turns)
    report = report_on(small)
    interval = r" 95 % interval: ([\d.]+) to ([\d.]+)\." if turns >= 6 else "()()"
    first = re.compile(
        rf"\*\*Same image: yes\. About ([\d.]+) times as fast\. (Keep Auto|Set drafting to No drafting)\.{interval}\*\*"
    )
    ratio, advice, low, high = first.fullmatch(report.splitlines()[0]).groups()
    assert ratio == "1.0" or (advice == "Keep Auto") == (float(ratio) > 1)
    assert not low or float(low) <= float(ratio) <= float(high)
    cell = f"{ratio} ({low} to {high})" if low else ratio
    assert f"| {cell} |" in part(report, "Methods")
    assert f"median{' with 95 % interval' if low else ''} of {turns} turns" in part(report, "Methods")


@pytest.mark.long
@pytest.mark.parametrize("family", WRITERS)
def test_report_on_every_family(family, tmp_path):
    page = report_on(load_small(family, WRITERS[family](tmp_path), dtype=torch.bfloat16))
    assert part(page, "Same image") == "Every method gives the same tokens as no drafting."
    assert "Use a drafter network" in part(page, "How to make it faster")


def test_methods_with_different_tokens_are_named(small, monkeypatch):
    monkeypatch.setattr("adt_core.engine.round.exact_agreement", lambda tree, emitted: torch.ones_like(tree.valid))
    page = report_on(small)
    assert page.startswith("**Same image: no (Auto, Jacobi chain).")
    assert "DIFFERS" in part(page, "Methods")
    assert "Auto" in part(page, "Same image") and "Jacobi chain" in part(page, "Same image")


def test_products_that_are_not_batch_invariant_are_found(small, monkeypatch):
    product = layers.product

    def position_dependent(x, *args, **options):
        y = product(x, *args, **options)
        y[len(y) // 2 :] *= 1 + 2**-7
        return y

    monkeypatch.setattr(layers, "product", position_dependent)
    assert "differ in the last bits" in part(report_on(small), "Same image")


def test_kernels_are_listed(monkeypatch, runtime):
    """The CPU takes the place of a GPU with Triton."""
    subject = SimpleNamespace(device=torch.device("cuda"))
    monkeypatch.setattr(choice, "missing_support", lambda device: "Triton is not installed")
    assert doctor.kernels(subject) == ["PyTorch computes all operations: Triton is not installed."]
    monkeypatch.setattr(choice, "missing_support", lambda device: "")
    runtime.kernel_verdicts["a"] = choice.Verdict("gate", "float16, 8", True, "it is 1.50 times as fast as PyTorch")
    runtime.kernel_verdicts["b"] = choice.Verdict("linear", "float16, 8, 9", False, "PyTorch is 1.10 times as fast")
    assert doctor.kernels(subject)[2:] == [
        "| gate | float16, 8 | Triton kernel | it is 1.50 times as fast as PyTorch |",
        "| linear | float16, 8, 9 | PyTorch | PyTorch is 1.10 times as fast |",
    ]
    assert doctor.kernels(SimpleNamespace(device=torch.device("cpu"))) == []


@pytest.mark.parametrize(
    "report, expected",
    [
        (ProductReport(True, 4), "batch-invariant. Up to 4 threads give the same bits."),
        (ProductReport(False, 1), "depends on other rows. One thread is used."),
    ],
)
def test_the_trial_of_float32_products_is_reported(tmp_path, monkeypatch, report, expected):
    monkeypatch.setattr(diagnostics, "MAX_SECONDS", -1.0)
    monkeypatch.setattr(diagnostics, "product_report", lambda request: report)
    target = load_small("chameleon", WRITERS["chameleon"](tmp_path), dtype=torch.float32)
    assert part(report_on(target), "Model").endswith(expected)


def test_slow_methods_are_skipped_and_named(small, monkeypatch):
    monkeypatch.setattr(diagnostics, "MAX_SECONDS", -1.0)
    monkeypatch.setattr(diagnostics, "MAX_RUN_SECONDS", 0.0)
    page = report_on(small)
    assert page.startswith("**Same image: yes. This model is too slow here to compare speeds.**")
    assert part(page, "Same image") == "Every method that was tested gives the same tokens as no drafting."
    assert "Skipped to save time: Auto, Jacobi chain." in part(page, "Methods")


def test_cancellation(small):
    class Cancelled(Exception):
        pass

    def cancel():
        raise Cancelled

    with pytest.raises(Cancelled):
        report_on(small, cancel)
