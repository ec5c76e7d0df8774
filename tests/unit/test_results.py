"""What the benchmark of docs/results.md runs, and its tables."""

from adt_core.policies import PLAIN
from adt_lab.benchmark import PRESETS
from benchmarks.results import MAIN, PAIRS, RELAXED, Run, ablations, controls


def test_the_fixed_trees_have_the_budget_of_the_adaptive_one():
    shapes = [preset.drafting.flat() for preset in controls({"nodes_per_round": 4.97, "mean_depth": 2.65}).values()]
    assert [(shape["depth"], shape["width"], shape["nodes"]) for shape in shapes] == [(2, 2, 5), (3, 2, 5)]


def test_what_is_run_has_presets_and_one_change_a_line():
    assert all(name.removesuffix(RELAXED) in PRESETS for name in MAIN)
    assert all(name in MAIN for pair in PAIRS for name in pair)
    for title, (first, *others) in ((title, list(group.values())) for title, group in ablations().items()):
        assert others and all(preset != first and preset.source == first.source for preset in others), title


def test_tables_of_pairs_and_bounds():
    records = [{"runs": {PLAIN: {"seconds": 4.0}, "fast": {"seconds": seconds}}} for seconds in (1.0, 2.0, 2.0)]
    rows = [
        {"method": PLAIN, "target_forwards": 320.0, "drafter_forwards": 0.0},
        {"method": "fast", "target_forwards": 100.0, "drafter_forwards": 320.0},
    ]
    run = Run({}, records, rows)
    assert run.pairs([("fast", PLAIN)]).splitlines()[2] == "| fast | autoregressive | 2.00 | 2.00 | 4.00 |"
    assert run.bounds().splitlines()[3] == "| fast | 3.20 | 2.91 |"
