"""Tests that files of version 0.1 can be read: images, batches, benchmarks, trainings and cost profiles.

The files are in ``tests/fixtures/v0_1``. They were written with the tiny models, in the folders ``target`` and
``drafter``. The prompt is "a cat", unless a test has another prompt.
"""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from adt_core import Drafting, Lantern, Sampling, cli, load_drafter, load_target
from adt_core.app.batch_folder import BatchFolder, batch_folder
from adt_core.app.images import read_settings
from adt_core.app.pipeline import Pipeline
from adt_core.drafters.merged import MergedDrafter
from adt_core.engine.device import profiles
from adt_core.lab.benchmark import PRESETS, RUNS, Benchmark
from adt_core.lab.records import open_records
from adt_core.models.batch_invariance import TILE
from adt_core.policies import CostProfile
from adt_core.policies.cost_model import CostModel
from adt_core.recipe import Recipe

OLD = Path(__file__).parents[1] / "fixtures" / "v0_1"


@pytest.fixture
def work(tiny, tmp_path, monkeypatch):
    """Return a working directory with the models and an empty cache. The files contain relative paths to the models."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ADT_TREE_CACHE", str(tmp_path / "cache"))
    for name in ("target", "drafter"):
        shutil.copytree(tiny / name, tmp_path / name)
    return tmp_path


@pytest.mark.parametrize("name", ["plain", "auto", "relaxed", "continued"])
def test_images_are_reproduced(work, name):
    """The new PNG must contain all settings of the old PNG, and later settings such as noise and source images."""
    before = read_settings(OLD / f"{name}.png")
    named = ["--model", "target", "--drafter", before["drafter"], "--device", "cpu"]
    assert cli.main(["generate", "--from-png", str(OLD / f"{name}.png"), *named, "--output", "again.png"]) == 0
    after = read_settings(Path("again.png"))
    assert re.fullmatch("[0-9a-f]{12}", after.pop("settings_key"))
    later = {"noise": "own", "noise_batch": None, "sources": [], "kernels": []}
    assert {**after, "versions": None} == {**before, **later, "versions": None}


@pytest.mark.parametrize("name, more", [("", {}), ("cats", {"negative": "fog", "suffix": ", at noon"})])
def test_the_images_of_a_batch_are_found(work, name, more):
    target = load_target("target")
    lantern = Lantern(8, factor=2.0) if more else None
    recipe = Recipe(Sampling(seed=4, top_p=0.9), Drafting("adt-tree"), lantern, drafter="drafter", **more)
    pipeline = Pipeline(target, recipe, load_drafter("drafter", target))
    shutil.copytree(OLD / "batches", "batches")
    batch = BatchFolder(pipeline, batch_folder(work / "batches", pipeline, name))
    assert [batch.find("a cat", seed).seed for seed in (None, 5)] == [4, 5]


def test_a_benchmark_resumes(work, monkeypatch):
    """The benchmark resumes if its settings are equal. For this, commit, versions and machine must be equal."""
    shutil.copytree(OLD / "benchmark", "benchmark")
    then = PRESETS["merged"].drafting.replace(depth=16, width=3)
    monkeypatch.setitem(PRESETS, "merged", PRESETS["merged"]._replace(drafting=then))
    before = json.loads((work / "benchmark" / RUNS).read_text(encoding="utf-8").splitlines()[0])["settings"]
    target = load_target("target")
    sampling = Sampling(**before["sampling"])
    recipe = Recipe(sampling, lantern=Lantern(delta=0.2), drafter="drafter")
    benchmark = Benchmark(before["prompts"], list(before["methods"])[1:], recipe)
    now = benchmark.settings(target)
    machine = {name: before[name] for name in ("engine", "commit", "torch", "python", "device", "threads")}
    assert now | machine == before
    (record,) = open_records(work / "benchmark", now | machine)
    assert list(record["runs"]) == ["autoregressive", "adt-tree", "merged+lantern"]


def test_a_training_resumes(work):
    Path("captions.txt").write_text("a cat\na dog\na cow\nan owl\n", encoding="utf-8")
    options = "--model target --prompts captions.txt --held-out 2 --batch 2 --steps 1 --device cpu --output trained"
    assert cli.main(["train-drafter", *options.split()]) == 0
    settings = Path("trained/training/settings.json")
    assert json.loads(settings.read_text(encoding="utf-8")) == json.loads(
        (OLD / "training.json").read_text(encoding="utf-8")
    )


@pytest.mark.parametrize("path", sorted(OLD.glob("costs-*.json")), ids=lambda path: path.stem)
def test_measured_costs_of_earlier_versions_are_replaced(work, path):
    """Profiles in PNGs are still read. Costs in the cache folder are learned again within a few images."""
    profile = CostProfile.from_json(json.loads(path.read_text(encoding="utf-8")))
    Path("cache").mkdir()
    shutil.copy(path, Path("cache") / path.name)
    model = CostModel(profile.name, profile.images, MergedDrafter.modes, on_cpu=True)
    assert model.with_json(profiles.find_costs(profile.name, profile.images)) == model
    profiles.save_costs(replace(model, decodings=1))
    assert [file.name for file in Path("cache").iterdir()] == [path.name], (
        "the new costs must replace the old costs in the same file"
    )
    assert model.with_json(profiles.find_costs(profile.name, profile.images)).decodings == 1


def test_names_of_cost_profiles_have_not_changed(work):
    """The name depends on the machine, torch's version, the tile size of the batch-invariant mode, and the draft modes.

    Version 0.1 had another draft mode, "both chain".
    """
    names = {
        json.loads(path.read_text(encoding="utf-8"))["name"].split("; ", 1)[1] for path in OLD.glob("costs-*.json")
    }
    names = {re.sub(r"(exact, .*? weights);", rf"\1, tiles of {TILE['cpu']};", name) for name in names}
    names = {name.replace("chain+both chain+both", "chain+both") for name in names}
    for dtype, path in (("float32", "again.png"), ("bfloat16", "half.png")):
        line = f"--model target --drafter drafter+jacobi --prompt cat --dtype {dtype} --device cpu --output {path}"
        assert cli.main(["generate", *line.split()]) == 0
    names = {name for name in names if not name.endswith("relaxed")}  # these costs are no longer learned
    now = {
        json.loads(path.read_text(encoding="utf-8"))["name"].split("; ", 1)[1]
        for path in Path("cache").glob("costs-*.json")
    }
    assert now == names
