"""Tests of API prompts from version 0.1: they must run and give the same images as prompts with the current values.

``tests/fixtures/v0_1/comfyui`` has workflows and prompts in the form in which version 0.1 saved and sent them. Some
values have other names in the current version. The folder also has an image that version 0.1 saved.
"""

import copy
import json

import numpy as np
import pytest
from comfy_server import ROOT
from images import images
from PIL import Image

OLD = ROOT / "tests" / "fixtures" / "v0_1" / "comfyui"
NEW = {
    "image": {"5": {"speed": "No drafting", "noise": "original script"}},
    "batch": {
        "2": {"choices": "off"},
        "3": {"seed_of_each": "increment", "preset": "model default", "unfit_prompts": "truncate", "noise": "ADT-Tree"},
    },
    "compare": {"4": {"preset": "model default"}},
    "subgraph": {"1:4": {"speed": "No drafting", "preset": "model default", "noise": "ADT-Tree"}},
}
"""Prompt -> node -> inputs whose values have other names in the current version."""


def prompt_of(name: str) -> dict:
    return json.loads((OLD / f"{name}.json").read_text(encoding="utf-8"))["prompt"]


def without_times(outputs: dict, prompt: dict) -> dict:
    """Return the outputs without map images that show milliseconds, because these differ between runs."""
    maps = {key for key, node in prompt.items() if node["inputs"].get("show") == "time"}
    return {key: shown for key, shown in outputs.items() if prompt[key]["inputs"].get("images", [None])[0] not in maps}


@pytest.mark.parametrize("name", NEW)
def test_old_and_new_prompt_draw_the_same_images(comfy, name):
    old = prompt_of(name)
    new = copy.deepcopy(old)
    for node, inputs in NEW[name].items():
        assert inputs.keys() <= new[node]["inputs"].keys()
        new[node]["inputs"] |= inputs
    before, after = (images(comfy, without_times(comfy.run(prompt), prompt)) for prompt in (old, new))
    assert len(before) == len(after) > 0
    for one, other in zip(before, after):
        np.testing.assert_array_equal(one, other)


def test_prompt_in_an_image_draws_the_image(comfy):
    with Image.open(OLD / "image.png") as picture:
        prompt = json.loads(picture.text["prompt"])
        drawn = np.asarray(picture.convert("RGB"))
    saved = next(key for key, node in prompt.items() if node["class_type"] == "SaveImage")
    first, second = images(comfy, comfy.run(prompt), saved)
    assert np.abs(first.astype(int) - drawn).max() <= 2, "same tokens; other machines round pixels differently"
    assert np.abs(second.astype(int) - drawn).max() > 50


def test_batch_uses_the_given_seeds_and_report_name(comfy):
    comfy.run(prompt_of("batch"))
    (folder,) = {path.parent for path in comfy.base.glob("output/adt_tree_batches/skip-*/old report*.json")}
    rows = json.loads((folder / "old report.json").read_text(encoding="utf-8"))["images"]
    assert [(row["prompt"], row["seed"]) for row in rows] == [("a {red|blue} cat", 9), ("a {red|blue} cat", 10)]
