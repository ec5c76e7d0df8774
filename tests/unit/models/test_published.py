"""Tests that the command line uses the sampling settings of a model's authors as defaults."""

from pathlib import Path

import pytest
import torch
from PIL import Image

from adt_core import Pipeline, Recipe, Sampling, cli, load_target
from adt_core.app.args import BenchmarkArgs, TrainingArgs, TrainingDataArgs, TrainingOutputArgs, WorkerArgs
from adt_core.lab import benchmark
from adt_core.lab.training import drafter
from adt_core.models import load
from adt_core.models.load import published_sampling
from adt_core.models.target import PublishedSampling, suffixed
from adt_core.policies import PLAIN, Drafting
from adt_core.recipe import Placement
from adt_core.run.images import read_settings
from tests.command import read_grids, words
from tests.layouts.emu3 import write_emu3

ROOT = Path(__file__).resolve().parents[3]
SUFFIX = " masterpiece, film grained, best quality."


@pytest.fixture(scope="module")
def emu3(tmp_path_factory):
    return write_emu3(tmp_path_factory.mktemp("emu3") / "target")


@pytest.fixture
def generate(tiny, tmp_path, capsys):
    """Return a function that runs `generate`. It returns the settings in the PNG, and the path of the PNG."""

    def run(*options, model=tiny / "target", output="a.png"):
        path = tmp_path / output
        arguments = ["--model", model, "--device", "cpu", "--drafter", "jacobi", "--output", path, *options]
        arguments = arguments if "--from-png" in options else ["--prompt", "a cat", *arguments]
        assert cli.main(["generate", *map(str, arguments)]) == 0, capsys.readouterr().err
        return read_settings(path), path

    return run


def figures(settings):
    return tuple(settings[name] for name in ("guidance_scale", "temperature", "top_k", "top_p", "suffix"))


def test_targets_have_published_settings(tiny):
    found = load_target(tiny / "target").published_sampling, published_sampling(tiny / "target")
    assert found == (load.FAMILIES[0].sampling,) * 2
    assert load_target().published_sampling[:5] == published_sampling("bundled")[:5] == (2.0, 0.6, 0, 1.0, "")


def test_defaults_are_the_published_settings(generate):
    assert figures(generate()[0]) == (3.0, 0.7, 0, 0.9, "")
    assert figures(generate("--temperature", 1, "--top-k", 5, "--guidance-scale", 2)[0]) == (2.0, 1.0, 5, 0.9, "")


@pytest.mark.long
def test_defaults_of_the_bundled_model(generate):
    most = "--continue-from", ROOT / "docs" / "comfyui.png", "--keep", 0.93
    assert figures(generate(*most, model="bundled")[0]) == (2.0, 0.6, 0, 1.0, "")


def test_images_are_reproduced_with_their_settings(generate, monkeypatch):
    """The image must be reproducible even if another version of the pack has other defaults."""
    saved, path = generate()
    changed = [family._replace(sampling=PublishedSampling(guidance_scale=9.0)) for family in load.FAMILIES]
    monkeypatch.setattr(load, "FAMILIES", changed)
    again, other = generate("--from-png", path, output="b.png")
    assert figures(again) == figures(saved)
    with Image.open(path) as one, Image.open(other) as two:
        assert one.tobytes() == two.tobytes()


def test_the_suffix_is_appended_and_saved(emu3, generate, tmp_path):
    def tokens(*options):
        saved, path = generate("--size", "32x32", "--tokens", tmp_path / "t.json", *options, model=emu3)
        return (figures(saved), saved["prompt"], read_grids(tmp_path / "t.json")[-1], path)

    usual = tokens()
    assert usual[:2] == ((3.0, 1.0, 2048, 1.0, SUFFIX), "a cat")
    assert tokens("--prompt", f"a cat{SUFFIX}", "--suffix", "")[2] == usual[2]
    without = tokens("--suffix", "")
    assert without[0][-1] == "" and without[2] != usual[2]
    _, again = generate("--from-png", usual[3].rename(tmp_path / "kept.png"), model=emu3, output="b.png")
    with Image.open(tmp_path / "kept.png") as one, Image.open(again) as two:
        assert one.tobytes() == two.tobytes()


def test_blank_prompts_get_no_suffix():
    assert suffixed(" a cat\n", SUFFIX) == f" a cat{SUFFIX}"
    assert suffixed(" \n", SUFFIX) == " \n" and suffixed("a cat", "") == "a cat"


def test_negative_prompts_get_no_suffix(emu3):
    target = load_target(emu3, dtype=torch.float64).sized(32, 32)

    def codes(prompt, negative_prompt, suffix=""):
        texts = {"negative_prompt": negative_prompt, "suffix": suffix}
        recipe = Recipe(Sampling(seed=3, guidance_scale=3.0), Drafting(PLAIN), **texts)
        return Pipeline(target, recipe).decoding([prompt]).run().codes.tolist()

    assert codes("a cat", "fog", SUFFIX) == codes(f"a cat{SUFFIX}", "fog") != codes(f"a cat{SUFFIX}", f"fog{SUFFIX}")


def test_benchmarks_use_the_published_settings(tiny, tmp_path):
    (tmp_path / "p.txt").write_text("a cat\n", encoding="utf-8")
    given = ["--model", tiny / "target", "--drafter", "jacobi", "--prompts", tmp_path / "p.txt", "--methods", "jacobi"]
    _, options = cli.parse(["benchmark", *map(str, given), "--output", str(tmp_path), "--top-k", "7"])
    given = {name: options[name] for name in ("model", "drafter", "top_k")}
    plan = benchmark.plan(BenchmarkArgs.of(options), WorkerArgs(), given, "cpu")
    facts = benchmark.load(plan, Placement("cpu")).facts
    assert facts["sampling"] == {"seed": 0, "temperature": 0.7, "top_k": 7, "top_p": 0.9, "guidance_scale": 3.0}
    assert facts["suffix"] == ""


def test_training_uses_the_published_settings(emu3, tmp_path):
    (tmp_path / "p.txt").write_text("\n".join(f"a cat {number}" for number in range(9)), encoding="utf-8")
    given = {"model": emu3, "prompts": tmp_path / "p.txt", "output": tmp_path / "out"}
    _, options = cli.parse(words("train-drafter", **given, validation_prompts=2, training_batch_size=2))
    given = {"model": options["model"]}
    plan = drafter.plan(
        TrainingDataArgs.of(options), TrainingArgs.of(options), TrainingOutputArgs.of(options), given, Placement()
    )
    assert plan.recipe.sampling == Sampling(top_k=2048) and plan.settings["top_k"] == 2048
    assert all(prompt.endswith(SUFFIX) for prompt in plan.prompts)


def test_help_of_the_defaults(capsys):
    for command in ("generate", "benchmark", "train-drafter"):
        with pytest.raises(SystemExit):
            cli.main([command, "--help"])
        help_text = " ".join(capsys.readouterr().out.split())
        assert help_text.count("(default: the model authors' value)") == 5
