"""Tests of Lumina-mGPT 2.0, GLM-Image and Liquid: maps, batches, continued images, training and templates."""

import io
import math
import shutil
import uuid

import numpy as np
import pytest
from comfy_server import Failed
from convert import Graph, text_to_image
from PIL import Image
from safetensors.torch import load
from saved import EVENT, unpack
from small import QUICK
from test_workflows import TO_INSTALL, prompt_of

from adt_core.models.load import find_published

SIZES = {"Lumina-mGPT-2.0": (64, 32), "GLM-Image": (96, 64), "Liquid_V1_7B": (512, 512)}
"""Model -> width and height in pixels of a small image."""
CELLS = {"Lumina-mGPT-2.0": (4, 8), "GLM-Image": (2, 3), "Liquid_V1_7B": (8, 8)}
"""Model -> rows and columns of its tokens, without end-of-row tokens and without GLM-Image's small preview image."""
TEMPLATES = [name for name, (_, _, model) in TO_INSTALL.items() if model in SIZES]

each_model = pytest.mark.parametrize("name", SIZES)


def drawing(name: str, drafter: str = "jacobi") -> Graph:
    """Return a prompt for a model, with the authors' sampling settings."""
    graph = text_to_image()
    width, height = SIZES[name]
    graph.set("ADTTreeModelLoader", model=name).set("ADTTreeDrafterLoader", drafter=drafter)
    sized = graph.add("ADTTreeImageSize", model=graph.link("ADTTreeModelLoader"), width=width, height=height)
    graph.set("ADTTreeSampler", model=sized, preset="model default").drop("ADTTreeSampler", "negative")
    return graph


def latents(server, outputs: dict) -> list:
    """Return the tensors that Save Latent nodes have written, in the order of the nodes."""
    return [load(file)["latent_tensor"] for file in server.files(outputs, "latents")]


@each_model
def test_map_has_every_token_and_the_image(stocked, name):
    """The update messages and the history must both be complete. GLM-Image generates a small preview image first."""
    graph = drawing(name)
    width, height = SIZES[name]
    outputs, messages = stocked.watch(graph.prompt)
    (kept,) = outputs[graph.id("ADTTreeSampler")]["adt_tree_map"]
    rows, columns = kept["grid"]
    assert (rows, columns) == CELLS[name] and (kept["small"] is not None) is (name == "GLM-Image")
    at = 0
    for _, _, (_, position, *_, accepted, _, _, _) in unpack(kept):
        assert position == at
        at += accepted + 1
    assert at + 1 == rows * (columns + kept["ends"]) + math.prod(kept["small"] or [0])
    updates = [message.data for message in messages if message.type == EVENT]
    assert updates and all(one[part] == kept[part] for one in updates for part in ("grid", "ends", "small"))
    (file,) = kept["pictures"]
    picture = np.asarray(Image.open(io.BytesIO(stocked.get("/view", **file)))).astype(int)
    assert picture.shape[:2] == (height, width)
    assert np.abs(picture - stocked.images(outputs)[0]).max() <= 1


@each_model
def test_image_is_continued(stocked, name):
    """The kept rows must have the tokens that the model's encoder assigns to the given image."""
    graph = drawing(name)
    width, height = SIZES[name]
    rows, _ = CELLS[name]
    picture = graph.add("EmptyImage", width=width, height=height, batch_size=1, color=0xC04010)
    encoded = graph.add("VAEEncode", pixels=picture, vae=graph.link("ADTTreeModelLoader", 2))
    graph.set("ADTTreeSampler", latent_image=encoded, keep_top=0.5)
    for samples in (encoded, graph.link("ADTTreeSampler")):
        graph.add("SaveLatent", samples=samples, filename_prefix=uuid.uuid4().hex)
    outputs = stocked.run(graph.prompt)
    given, drawn = latents(stocked, outputs)
    assert given.shape == drawn.shape
    kept = slice(0, rows // 2)
    assert given[..., kept, :].equal(drawn[..., kept, :]) and not given.equal(drawn)
    (continued,) = stocked.images(outputs)
    graph.set("ADTTreeSampler", drafting="No drafting").set("SaveImage", filename_prefix=uuid.uuid4().hex)
    np.testing.assert_array_equal(stocked.draw(graph.prompt)[0], continued)


@each_model
def test_batch_images_equal_the_samplers(stocked, stocked_info, name):
    single = drawing(name)
    batch = prompt_of("ADT-Tree batch of prompts with report", stocked_info)
    batch.set("ADTTreeModelLoader", model=name).set("ADTTreePrompts", text="a fox\na hen", count=0)
    width, height = SIZES[name]
    sized = batch.add("ADTTreeImageSize", model=batch.link("ADTTreeModelLoader"), width=width, height=height)
    batch.set("ADTTreeBatchSampler", model=sized, seed=5, seed_mode="same")
    saved, _ = batch.add("SaveImage", images=batch.link("ADTTreeBatchSampler"), filename_prefix=uuid.uuid4().hex)
    together = stocked.draw(batch.prompt, saved)
    assert len(together) == 2
    single.set("ADTTreeSampler", seed=5).set("CLIPTextEncode", text="a hen")
    (hen,) = stocked.draw(single.prompt)
    assert {*np.unique(together[1].astype(int) - hen)} <= {0, 1, -1}


@pytest.mark.parametrize("name", ["GLM-Image"])
def test_trained_drafter_does_not_change_images(stocked, name):
    """This test trains with the node. tests/unit/lab/test_train_drafter.py trains every family with the command."""
    graph = drawing(name)
    (plain,) = stocked.draw(graph.set("ADTTreeSampler", drafting="No drafting").prompt)
    kept = "ADTTreeModelLoader", "ADTTreeImageSize"
    training = Graph({key: node for key, node in graph.prompt.items() if node["class_type"] in kept})
    own = {"name": f"for {name}", "preset": "model default"}
    training.add("ADTTreeTrainDrafter", model=training.link("ADTTreeImageSize"), **QUICK, **own)
    stocked.run(training.prompt)
    graph.set("ADTTreeDrafterLoader", drafter=f"for {name}").set("ADTTreeSettings", method="eagle2")
    graph.set("ADTTreeSampler", drafting="Auto").set("SaveImage", filename_prefix=uuid.uuid4().hex)
    (drafted,) = stocked.draw(graph.prompt)
    np.testing.assert_array_equal(drafted, plain)
    (trained,) = {path.resolve() for path in stocked.base.rglob(f"for {name}")}
    shutil.rmtree(trained)  # other tests read the loader's list


@pytest.mark.parametrize("name", TEMPLATES)
def test_template_names_the_download_if_the_model_is_missing(comfy, template, name):
    with pytest.raises(Failed) as failed:
        comfy.run(template(name).prompt)
    row = find_published(TO_INSTALL[name][2])
    assert f"'{row.name}' is not installed; set if_missing to 'download' and run again" in failed.value.message
