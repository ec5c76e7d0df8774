"""Tests of the benchmark that compares ADT-Tree with fixed trees.

They check the costs of rounds, the choice of the cheapest trees, confidence intervals, and resuming.
"""

from itertools import product

import numpy as np
import pytest

from adt_core import Drafting
from benchmarks import adt_tree
from benchmarks.adt_tree import ADAPTIVE, BUDGETS, FIXED, TEMPERATURES, Counts, Price, Runs, compare
from benchmarks.figures.trees import tables_of_trees


def counted(first: int, count: int, temperature: float, drafting: Drafting) -> Counts:
    """Return counts in which deeper trees need fewer rounds. Neighbouring captions need different numbers of rounds."""
    depth = drafting.settings.depth
    rounds = 100.0 / depth + np.arange(first, first + count) % 7
    return Counts(rounds, depth * rounds, (depth - 1) * rounds, depth * rounds)


@pytest.fixture
def runs(tmp_path, monkeypatch):
    monkeypatch.setattr(adt_tree, "count_rounds", counted)
    return Runs(tmp_path / "runs.jsonl", "1234567")


def test_cost_of_captured_rounds_includes_every_level():
    counts = Counts(*(np.array([value]) for value in (10.0, 30.0, 35.0, 50.0)))
    assert counts.cost(Price(0.5, 0.1, 0.2), 6).tolist() == pytest.approx([10 * 2.1 + 7])
    assert counts.cost(Price(0.5, 0.1, 0.2, captured=True), 6).tolist() == pytest.approx([10 * 2.1 + 10])


def test_results_are_stored_in_parts_and_reused(runs, monkeypatch):
    before = runs.counts(0, 70, 0.6, "eagle2", depth=4)
    assert len(runs.file.read_text(encoding="utf-8").splitlines()) == 3, (
        "70 captions must be split into parts of 32, 32 and 6"
    )
    monkeypatch.delattr(adt_tree, "count_rounds")
    after = Runs(runs.file, "1234567").counts(0, 70, 0.6, "eagle2", depth=4)
    assert np.array_equal(before, after) and len(after.rounds) == 70
    with pytest.raises(NameError):
        Runs(runs.file, "7654321").counts(0, 70, 0.6, "eagle2", depth=4)


def test_a_comparison_has_the_cheapest_trees_and_a_row_in_the_table(runs):
    lines = [compare(runs, 8, temperature, drafts) for drafts, temperature in product(BUDGETS[:2], TEMPERATURES)]
    assert all(line["early stop"]["ratio"][1] <= line["early stop"]["ratio"][0] for line in lines)
    assert {line["fixed"]["captured"]["depth"] for line in lines} <= {depth for depth, _ in FIXED[24] + FIXED[31]}
    assert len(tables_of_trees(lines)["trees"].splitlines()) == 2 + len(lines)


@pytest.mark.parametrize("drafts", BUDGETS)
def test_all_candidates_are_valid(drafts):
    for options in ADAPTIVE[drafts]:
        assert Drafting("adt-tree", drafts=drafts, **options).settings.drafts == drafts
    assert all(depth <= drafts for depth, _ in FIXED[drafts])


def test_interval_of_equal_costs_is_one():
    costs = np.arange(1.0, 9.0)
    assert adt_tree.ratio_with_interval(costs, costs) == [1, 1, 1]
    assert adt_tree.ratio_with_interval(2 * costs, costs) == [2, 2, 2]
