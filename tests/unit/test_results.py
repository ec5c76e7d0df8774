"""What docs/results.md may say, and that its charts can be drawn with and without matplotlib."""

import sys

import numpy as np
import pytest
from PIL import Image

from adt_core.app.benchmark import PRESETS
from benchmarks.charts import Bar, bars
from benchmarks.findings import ENOUGH, verdict
from benchmarks.results import MAIN, RELAXED, ablations, controls


@pytest.mark.parametrize(
    "values, said",
    [
        ([1.2] * ENOUGH, "faster"),
        ([0.8] * ENOUGH, "slower"),
        ([0.8, 1.2] * ENOUGH, "neither"),
        ([1.2] * (ENOUGH - 1), "neither"),
    ],
)
def test_a_verdict_needs_an_interval_on_one_side_and_enough_prompts(values, said):
    assert verdict(np.array(values), 1, "faster", "slower", "neither") == said


def test_the_fixed_trees_have_the_budget_of_the_adaptive_one():
    shapes = [preset.drafting for preset in controls({"nodes_per_round": 4.97, "mean_depth": 2.65}).values()]
    assert [(shape.depth, shape.width, shape.nodes) for shape in shapes] == [(2, 2, 5), (3, 2, 5)]


def test_what_is_run_has_presets_and_one_change_a_line():
    assert all(name.removesuffix(RELAXED) in PRESETS for name in MAIN)
    for title, (first, *others) in ((title, list(group.values())) for title, group in ablations().items()):
        assert others and all(preset != first and preset.source == first.source for preset in others), title


@pytest.mark.parametrize("matplotlib", [True, False])
def test_a_chart(tmp_path, monkeypatch, matplotlib):
    if matplotlib:
        pytest.importorskip("matplotlib")
    else:
        monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    bars(tmp_path / "chart.png", [Bar("one", 1.5, 1.2, 1.9), Bar("two", 0.7, 0.7, 0.7, 1)], "times as fast")
    assert len(np.unique(np.array(Image.open(tmp_path / "chart.png").convert("RGB")).reshape(-1, 3), axis=0)) > 3
