"""Tests of PNGs from the policy `auto`.

An image must be reproducible with the same trees, even if the machine has another cost profile.
"""

import shutil
from pathlib import Path

import pytest
import torch

from adt_core import cli
from adt_core.policies import CostProfile
from adt_core.policies.cost_model import CostModel
from adt_core.run.images import read_settings, to_png
from tests.command import read_lines, words
from tests.drafted import costs


@pytest.fixture
def generate(tiny, tmp_path, monkeypatch):
    """Return a function that runs `generate` with an empty cache and returns the rounds of the last image."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ADT_TREE_CACHE", str(tmp_path / "cache"))
    models = {"model": tiny / "target", "drafter": tiny / "drafter"}

    def run(**options):
        named = {"output": "a.png", "trace": "t.json", "device": "cpu", **options, **models}
        assert cli.main(words("generate", **named)) == 0
        *_, last = read_lines("t.json")
        return [round["images"] for round in last["rounds"]]

    return run


@pytest.mark.parametrize("relaxed", [{}, {"lantern_delta": 0.3, "lantern_k": 8}], ids=["exact", "lantern"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_png_contains_the_cost_profile(generate, monkeypatch, relaxed, dtype):
    options = {"prompt": "a cat", "method": "auto", "dtype": dtype, **relaxed}
    profile = costs("merged")
    with monkeypatch.context() as other_machine:
        other_machine.setattr(CostModel, "profile", lambda *_: profile)
        rounds_of_png = generate(**options)
    shutil.rmtree("cache", ignore_errors=True)
    assert CostProfile.from_json(read_settings(Path("a.png"))["profile"]) == profile
    assert generate(from_png="a.png", output="again.png") == rounds_of_png
    assert not list(Path("cache").glob("costs-*")), "no costs may be learned if the PNG contains a profile"
    assert Path("again.png").read_bytes() == Path("a.png").read_bytes()
    assert generate(**options, output="b.png") != rounds_of_png, "the profile of this machine must differ"


def test_an_image_of_a_batch_is_reproduced_with_the_same_trees(generate):
    generate(prompt="a cat", method="auto", dtype="float64", num_images_per_prompt=2)
    batch = generate(prompt="a cat", method="auto", dtype="float64", num_images_per_prompt=2)
    assert generate(from_png="a-0002.png", output="again.png") == batch


@pytest.mark.parametrize("value", ["x", 3, [], {"name": "a", "images": 1, "costs": {"chain": 1}}])
def test_damaged_profiles_are_reported(tmp_path, monkeypatch, capsys, value):
    monkeypatch.chdir(tmp_path)
    saved = {"prompt": "a house", "method": "auto", "profile": value}
    Path("bad.png").write_bytes(to_png(torch.zeros(3, 8, 8), saved))
    assert cli.main(["generate", "--from-png", "bad.png", "--output", "a.png"]) == 2
    assert "cost profile is damaged" in capsys.readouterr().err
