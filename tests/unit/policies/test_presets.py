"""Tests of the choices of drafting, of the methods that a benchmark can compare, and of the tables of the paper."""

import json
from pathlib import Path

import pytest
import torch

from adt_core import Lantern
from adt_core.lab import paper
from adt_core.lab.presets import PRESETS, find_preset, listed, presets, read_methods
from adt_core.models.load import BUNDLED_SAMPLING
from adt_core.policies import CHOICES, DEFAULT, POLICIES, method_title
from adt_core.policies.choices import RELAXABLE, RELAXED, expanded
from adt_core.recipe import Placement, Recipe
from adt_core.run.resolve import Hardware, resolve_recipe
from tests.raising import raises_key

CPU = Hardware(torch.device("cpu"))
ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("name", CHOICES)
def test_a_choice_of_the_nodes_is_a_method_of_the_command_line(name):
    choice = CHOICES[name]
    assert choice in Recipe.options()["method"].choices
    recipe = resolve_recipe({"method": choice}, CPU)
    assert recipe.drafting.method == choice.removesuffix(RELAXED)
    assert recipe.lantern == (BUNDLED_SAMPLING.lantern if name.endswith("+ LANTERN") else None)


def test_the_first_choice_is_the_default():
    assert next(iter(CHOICES.values())) == DEFAULT and set(RELAXABLE) <= set(POLICIES)


@pytest.mark.parametrize(
    "given, expected",
    [
        ({}, Lantern(100, 0.5)),
        ({"lantern_delta": 0.2}, Lantern(100, 0.2)),
        ({"lantern_k": 7, "max_substitution": 0.1}, Lantern(7, 0.5, None, 0.1)),
        ({"lantern_factor": 3.0, "lantern_delta": None}, Lantern(100, factor=3.0)),
    ],
)
def test_given_values_override_those_of_the_model(given, expected):
    values = expanded({"method": "adt-tree+lantern", **given}, Lantern(100, 0.5))
    recipe = Recipe.of(values)
    assert recipe.drafting.method == "adt-tree" and recipe.lantern == expected


def test_without_the_suffix_nothing_is_relaxed():
    assert expanded({"method": "adt-tree"}, Lantern()) == {"method": "adt-tree"} and expanded({}, Lantern()) == {}


def test_presets_follow_the_device():
    cpu, cuda = (presets(device)["adt-tree"].drafting.settings for device in ("cpu", "cuda"))
    assert cpu.drafts < cuda.drafts and cpu.width_max < cuda.width_max
    assert presets("cuda", guided=False)["eagle2"].drafting.settings.drafts == 63
    assert set(presets("cuda")) == set(PRESETS) >= set(POLICIES)


def test_the_papers_baseline_is_a_preset():
    settings = PRESETS["eagle2-paper"].drafting.settings
    assert (settings.depth, settings.width, settings.proposal) == (5, 10, "top-k")


def test_methods_with_settings():
    names = listed("eagle2, adt-tree:beta=0.5,init=vertical\n# a comment\njacobi,adt-tree+lantern:lantern-delta=0.3")
    assert names == ["eagle2", "adt-tree:beta=0.5,init=vertical", "jacobi", "adt-tree+lantern:lantern-delta=0.3"]
    found = find_preset(names[1], PRESETS, None)
    assert found.drafting == PRESETS["adt-tree"].drafting.replace(beta=0.5, init="vertical") and found.lantern is None
    assert find_preset(names[3], PRESETS, Lantern(50, 0.9)).lantern == Lantern(50, 0.3)
    assert find_preset("static:mc_sim_7b_63", PRESETS, None) == PRESETS["static:mc_sim_7b_63"]


def test_methods_from_a_file(tmp_path):
    file = tmp_path / "methods.txt"
    file.write_text("# first\neagle2:depth=5\nadt-tree\n", encoding="utf-8")
    assert read_methods(f"@{file}") == ["eagle2:depth=5", "adt-tree"]
    with raises_key("methods.unreadable"):
        read_methods(f"@{tmp_path / 'missing.txt'}")
    assert listed(f"@{file}") == [f"@{file}"], "an input of a node names no file"


@pytest.mark.parametrize(
    "name, key, values",
    [
        ("magic", "methods.unknown", {"name": "'magic'"}),
        ("no-drafting+lantern", "methods.unknown", {"name": "'no-drafting+lantern'"}),
        ("adt-tree:magic=1", "methods.unknown_setting", {"option": "'magic'"}),
        ("adt-tree:depth=deep", "methods.wrong_type", {"kind": "int"}),
        ("adt-tree:depth=0", "setting.whole_number", {"input": "depth", "value": "0"}),
        ("eagle2:beta=0.5", "methods.unknown_setting", {"option": "'beta'"}),
        ("adt-tree:lantern_delta=0.5", "methods.unknown_setting", {"option": "'lantern_delta'"}),
    ],
)
def test_wrong_methods(name, key, values):
    with raises_key(key, **values):
        find_preset(name, PRESETS, None)


def test_every_method_has_a_title_that_the_documents_list():
    """The nodes, the tables and the documents use the same name for a method."""
    table = (ROOT / "docs" / "command_line.md").read_text(encoding="utf-8")
    assert len({method_title(name) for name in PRESETS}) == len(PRESETS)
    assert [name for name in PRESETS if f"| `{name}` | {method_title(name)} |\n" not in table] == []
    assert [method_title(method) for method in CHOICES.values()] == list(CHOICES)
    title = method_title("eagle2+lantern:depth=5,lantern_delta=0.3")
    assert title == "EAGLE-2 + LANTERN (depth=5, lantern_delta=0.3)"
    assert method_title("a method of another version") == "a method of another version"


ROW = {"low": 1.0, "high": 2.0, "seconds": 1.0, "tau": 3.0, "accepted_per_round": 2.0, "substitution_rate": 0.0}


def summary_row(method: str, **values) -> dict:
    return {"method": method, "speedup": 1.5, "mean_depth": 4.3, "drafts_per_round": 6.2, **ROW, **values}


def test_fixed_trees_have_the_mean_depth_of_adt_tree():
    assert paper.fixed_trees(summary_row("adt-tree")) == ["eagle2:depth=4,drafts=6", "eagle2:depth=5,drafts=6"]
    assert paper.fixed_trees(summary_row("adt-tree", mean_depth=7.0)) == ["eagle2:depth=7,drafts=7"]


def test_paper_measures_both_temperatures_and_fixed_trees_and_writes_its_tables(tmp_path, monkeypatch):
    ran = []

    def run(args, scores, parallel, given, placement):
        names = ["no-drafting", *listed(args.methods)]
        ran.append((args.output.name, given["temperature"], names))
        args.output.mkdir(parents=True, exist_ok=True)
        rows = [summary_row(name, quality=0.25) for name in names]
        times = {name: {"seconds": 2.0 if name == "adt-tree" else 3.0} for name in names}
        settings = dict.fromkeys("drafter engine commit torch device threads dtype".split(), "?")
        settings |= {"model": "Anole-7b-v0.1-hf", "prompts": ["a cat"] * 6}
        content = {"settings": settings, "summary": rows, "records": [{"runs": times}] * 6}
        (args.output / "results.json").write_text(json.dumps(content), encoding="utf-8")

    monkeypatch.setattr(paper.benchmark, "run", run)
    args = paper.BenchmarkArgs(output=tmp_path, paper=True)
    text = paper.run(args, paper.QualityArgs(), paper.WorkerArgs(), {}, Placement("cpu"))
    assert [(name, temperature) for name, temperature, _ in ran] == [
        ("temperature-0", 0.0),
        ("temperature-0-fixed", 0.0),
        ("temperature-1", 1.0),
        ("temperature-1-fixed", 1.0),
    ]
    assert {"eagle2-paper", "eagle2-paper+lantern", "adt-tree+lantern", "adt-tree-random"} <= set(ran[0][2])
    assert ran[1][2] == ["no-drafting", "adt-tree", "eagle2:depth=4,drafts=6", "eagle2:depth=5,drafts=6"]
    written = (tmp_path / "paper.md").read_text(encoding="utf-8")
    assert text.startswith(written) and all(f"### {number}. " in written for number in ("I", "II", "III", "IV"))
    row = next(line for line in written.splitlines() if line.startswith("| 0 | ADT-Tree | "))
    assert row.endswith("|  | 2.21 | 3.40 | 3.86 |"), "the paper's figures are beside ours"
    assert written.count("1.50 (1.50 to 1.50)") == 2 * (6 + 2 + 3), "ADT-Tree's speed-up over every other method"
    assert "6 prompts, one image each. model Anole-7b-v0.1-hf, " in written
    header, *rows = (tmp_path / "paper.csv").read_text(encoding="utf-8").splitlines()
    assert "accepted_per_round" in header and len(rows) == sum(len(names) for *_, names in ran)
    ran.clear()
    part = paper.BenchmarkArgs(output=tmp_path / "shard", paper=True, shard="1/2")
    assert "run the other shards" in paper.run(part, paper.QualityArgs(), paper.WorkerArgs(), {}, Placement("cpu"))
    assert [name for name, *_ in ran] == ["temperature-0", "temperature-1"], "fixed trees need the results of all"
    with raises_key("paper.fixed", input="temperature"):
        paper.run(args, paper.QualityArgs(), paper.WorkerArgs(), {"temperature": 0.5}, Placement("cpu"))
