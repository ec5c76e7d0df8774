"""Tests of text to image in a running ComfyUI.

The image must equal the engine's image, and the page must get progress messages.
"""

import io
import json

import numpy as np
import pytest
from messages import PREVIEWS, lines_under
from PIL import Image
from reference import draw, draw_graph
from small import TINY

from adt_core.models.load import BUNDLED_SAMPLING

NOTHING = "This small model draws houses, boats, balloons, mugs and the like; the prompt names nothing that it knows."


@pytest.mark.smoke
@pytest.mark.small_models
def test_image_of_a_small_model_equals_the_engines(comfy, graph):
    """The Sampler node drafts with its default settings; the engine decodes without drafts."""
    graph.set("ADTTreeModelLoader", model=TINY).set("ADTTreeSampler", seed=5)
    (image,) = comfy.draw(graph.prompt)
    np.testing.assert_array_equal(image, draw_graph(comfy.base, graph, TINY))


def test_image_equals_the_engines(comfy, graph):
    """The sampler's inputs are only links, so it uses the model's default settings."""
    links = {name: graph.inputs("ADTTreeSampler")[name] for name in ("model", "positive")}
    graph.prompt[graph.id("ADTTreeSampler")]["inputs"] = links
    (image,) = comfy.draw(graph.prompt)
    own = {"guidance_scale": BUNDLED_SAMPLING.guidance_scale, "temperature": BUNDLED_SAMPLING.temperature}
    expected = draw(prompt=graph.inputs("CLIPTextEncode")["text"], sampling={"seed": 0, **own})["images"]
    np.testing.assert_array_equal(image, expected[0])
    assert image.std() > 20, "the image is nearly uniform"


@pytest.mark.smoke
@pytest.mark.small_models
def test_saved_png_contains_its_workflow(comfy, graph):
    (data,) = comfy.files(comfy.run(graph.prompt, extra_pnginfo={"workflow": {"nodes": []}}))
    saved = Image.open(io.BytesIO(data)).info
    workflow = json.loads(saved["workflow"])
    assert set(workflow.pop("extra")) == {"adt_tree_maps"} and workflow == {"nodes": []}
    prompt = json.loads(saved["prompt"])
    for node in prompt.values():
        node.pop("is_changed", None)  # ComfyUI stores the result of fingerprint_inputs here
    assert prompt == graph.prompt


@pytest.mark.parametrize(
    "text, lines",
    [
        ("a cat in 2024", [f"Not drawn: cat. {NOTHING}"]),
        ("two sailboats, a lighthouse", ["Not drawn: lighthouse; one of two sailboats."]),
        ("a red house", []),
    ],
)
def test_unknown_words_are_listed_under_the_sampler(comfy, graph, text, lines):
    """The list of unknown words must appear after the run, and only for the positive prompt."""
    graph.set("CLIPTextEncode", text=text).set("ADTTreeSampler", seed=1)
    graph.prompt[graph.id("CLIPTextEncode", 1)]["inputs"]["text"] = "ugly"
    _, messages = comfy.watch(graph.prompt)
    assert lines_under(messages, graph.id("ADTTreeSampler")) == lines


def test_truncation_and_ignored_settings_are_shown_under_the_sampler(comfy, graph):
    graph.set("CLIPTextEncode", text="a red house " * 148)
    numbers = {"preset": "model default", "guidance": 9.0, "temperature": 0.6}
    graph.set("ADTTreeSampler", seed=2, invalid_prompts="truncate", **numbers)
    graph.prompt[graph.id("CLIPTextEncode", 1)]["inputs"]["text"] = ""
    _, messages = comfy.watch(graph.prompt)
    assert lines_under(messages, graph.id("ADTTreeSampler")) == [
        "Prompt truncated to its first 497 of 1776 characters: 444 tokens; the bundled model accepts 125. "
        "Ignored, because preset is 'model default': guidance 9.0. Set preset to 'custom' to use your own values."
    ]


@pytest.mark.small_models
def test_same_seed_gives_the_same_image_after_unloading(comfy, graph):
    graph.set("ADTTreeSampler", seed=11)
    (before,) = comfy.draw(graph.prompt)
    comfy.free()
    outputs, messages = comfy.watch(graph.prompt)
    executed = {message.data["node"] for message in messages if message.type == "executing"}
    assert graph.id("ADTTreeModelLoader") in executed, "nothing was freed"
    np.testing.assert_array_equal(before, comfy.images(outputs)[0])


def test_progress_and_previews_are_sent(comfy, graph):
    """The progress bar counts all tokens. The map shows the figures of the run, so the node must not."""
    graph.set("ADTTreeSampler", seed=77, batch_size=2).set("ADTTreeSettings", method="no-drafting")
    _, messages = comfy.watch(graph.prompt)
    sampler = graph.id("ADTTreeSampler")
    total = 2 * 256
    steps = [(m.at, m.data) for m in messages if m.type == "progress" and m.data["node"] == sampler]
    values = [data["value"] for _, data in steps]
    assert values == sorted(values) and values[-1] == total and {data["max"] for _, data in steps} == {total}
    assert 4 < len(values) < 12 * (steps[-1][0] - steps[0][0]) + 4, "about ten per second"
    previews = [m.data for m in messages if m.type in PREVIEWS]
    assert previews, "no preview"
    assert Image.open(io.BytesIO(previews[0][4:])).format == "JPEG"  # 4 bytes are the image type


@pytest.mark.small_models
def test_preview_method_none_is_respected(comfy, graph):
    _, messages = comfy.watch(graph.set("ADTTreeSampler", seed=78, batch_size=2).prompt, preview_method="none")
    assert not [m for m in messages if m.type in PREVIEWS]
