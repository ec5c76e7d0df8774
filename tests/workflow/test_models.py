"""Tests with models in the user's folders.

The Model Loader must list them, and the Sampler must generate images with them. Unloading weights between runs must not
change an image.
"""

import shutil
import uuid

import numpy as np
import pytest
import torch
from convert import Graph, text_to_image
from messages import PREVIEWS
from safetensors.torch import load
from small import with_small_models
from test_cancel import LIMIT, interrupt_and_time
from test_families import drawing
from test_workflows import NAMES, TO_INSTALL, prompt_of

from adt_core import load_target
from tests.layouts.glm_pixels import finer, published_pipeline

BATCH = "ADT-Tree batch of prompts with report"
COMPARED = "ADT-Tree compared with no drafting"
START = "ADT-Tree text to image (start here)"
LLAMAGEN = "ADT-Tree LlamaGen text to image"
GLM = "ADT-Tree GLM-Image text to image", "ADT-Tree GLM-Image edit a picture"
FIRST = {START, COMPARED, "ADT-Tree continue a picture", LLAMAGEN, BATCH}
"""Workflows that together contain every node that uses weights. LlamaGen is included as the family with most parts."""
SIZES = {
    "ADT-Tree Lumina-mGPT text to image": (96, 64),
    "ADT-Tree Lumina-mGPT 2.0 text to image": (64, 32),
    "ADT-Tree Emu3 text to image": (48, 40),
    **dict.fromkeys(GLM, (96, 64)),
}
"""Small image sizes in pixels, for models that support several."""
DRAWN = {
    "ADT-Tree Anole 7B text to image": (32, 32),
    LLAMAGEN: (256, 256),
    "ADT-Tree Janus-Pro text to image": (64, 64),
    "ADT-Tree Liquid text to image": (512, 512),
    "ADT-Tree image of the original script (Janus-Pro)": (64, 64),
    **SIZES,
}
"""Template of a family -> width and height of its image in pixels."""
LUMINA = "Lumina-mGPT-7B-768"


@pytest.fixture
def stocked_template(stocked_info):
    """Return a function that loads a workflow of the pack and converts it to a prompt with a small image size."""

    def load(name: str) -> Graph:
        graph = prompt_of(name, stocked_info)
        if name in SIZES:
            width, height = SIZES[name]
            small = graph.add("ADTTreeImageSize", model=graph.link("ADTTreeModelLoader"), width=width, height=height)
            graph.set("ADTTreeSampler", model=small)
        return graph.set("ADTTreeGLMImageDecode", steps=2) if name in GLM else graph

    return load


def choices(server, node: str, name: str) -> list[str]:
    return server.get(f"/object_info/{node}")[node]["input"]["optional"][name][1]["options"]


def missing(server) -> dict[str, dict]:
    """Return the models in the Model Loader's list that aren't installed, with their download sizes."""
    info = server.get("/object_info/ADTTreeModelLoader")["ADTTreeModelLoader"]
    return info["input"]["optional"]["model"][1]["downloads"]


def test_models_of_the_user_are_listed_and_draw(stocked):
    """The folder also has language models, text encoders and codecs. The loader must not list these."""
    listed = choices(stocked, "ADTTreeModelLoader", "model")
    there = [name for name in listed if name not in missing(stocked)]
    published = {value for node, _, value in TO_INSTALL.values() if node == "ADTTreeModelLoader"}
    assert there == listed[: len(there)] and there[0] == "bundled"
    others = {"someone/copy", "deep/er/elsewhere", "small", "t2i_XL_stage1_256.pt", "GLM-Image"}
    assert set(there[1:]) == published | others
    drafters = choices(stocked, "ADTTreeDrafterLoader", "drafter")
    assert drafters[:3] == ["auto", "bundled", "jacobi"]
    assert set(drafters[3:]) == {"mine", "small", f"LANTERN-{LUMINA}"}
    graph = text_to_image()
    (bundled,) = stocked.draw(graph.prompt)
    graph.set("ADTTreeModelLoader", model="deep/er/elsewhere").set("ADTTreeDrafterLoader", drafter="mine")
    (same,) = stocked.draw(graph.set("SaveImage", filename_prefix="elsewhere").prompt)
    np.testing.assert_array_equal(same, bundled)
    folder = stocked.base / "models" / "ar_image"
    shutil.copytree(folder / "someone" / "copy", folder / "new")
    assert "new" in choices(stocked, "ADTTreeModelLoader", "model"), "a model installed while ComfyUI runs is listed"
    shutil.rmtree(folder / "new")


@pytest.mark.parametrize("name", DRAWN)
def test_template_runs_after_its_model_is_installed(stocked, stocked_template, name):
    """The template must also run if the selected value still marks the model as missing. Drafts must not matter."""
    graph = stocked_template(name)
    width, height = DRAWN[name]
    graph.set("ADTTreeModelLoader", model=TO_INSTALL[name][2])
    outputs = stocked.run(graph.prompt)
    (image,) = stocked.images(outputs)
    assert image.shape[:2] == (height, width)
    assert all(b"adt_tree" not in file for file in stocked.files(outputs)), "no metadata was wanted, nor a map"
    graph.set("ADTTreeSampler", drafting="No drafting").set("SaveImage", filename_prefix=f"{name}-plain")
    (plain,) = stocked.draw(graph.prompt)
    np.testing.assert_array_equal(image, plain)


def test_glm_image_pixels_equal_those_of_diffusers(stocked, stocked_template):
    """The LATENT of the sampler contains the tokens. The test decodes them with diffusers and compares the pixels."""
    graph = stocked_template(GLM[0])
    graph.add("SaveLatent", samples=graph.link("ADTTreeSampler"), filename_prefix="glm")
    outputs = stocked.run(graph.prompt)
    (image,) = stocked.images(outputs)
    (latent,) = stocked.files(outputs, "latents")
    folder = stocked.base / "models" / "ar_image" / "GLM-Image"
    (codes,) = load_target(folder).codec.nearest(load(latent)["latent_tensor"])
    (pixels,) = published_pipeline(folder)(
        graph.inputs("CLIPTextEncode")["text"],
        height=image.shape[0],
        width=image.shape[1],
        num_inference_steps=graph.inputs("ADTTreeGLMImageDecode")["steps"],
        generator=torch.Generator().manual_seed(graph.inputs("ADTTreeGLMImageDecode")["seed"]),
        prior_token_ids=finer(codes)[None],
        output_type="np",
    ).images
    np.testing.assert_allclose(image, 255 * pixels, atol=1)


@pytest.mark.alone
def test_glm_image_second_stage_shows_previews_and_stops_within_a_step(stocked, stocked_template):
    graph = stocked_template(GLM[0]).set("ADTTreeGLMImageDecode", steps=1000)
    own = graph.id("ADTTreeGLMImageDecode")
    with stocked.socket() as browser:
        prompt_id = stocked.queue(graph.prompt, browser.id)
        begun = browser.wait_for(lambda m: m.type == "progress" and m.data["node"] == own)
        browser.wait_for(lambda m: m.type in PREVIEWS and m.at > begun.at)
        assert interrupt_and_time(stocked, browser, prompt_id) < LIMIT
    assert stocked.draw(graph.set("ADTTreeGLMImageDecode", steps=2).prompt)


def test_glm_image_from_text_from_a_picture_and_continued(stocked):
    """Drafts must not change an image. A source picture and a kept part of another image must change it."""
    seen = {}
    for name in ("text", "source", "continued"):
        graph = drawing("GLM-Image", drafter="auto")
        picture = graph.add("EmptyImage", width=96, height=64, batch_size=1, color=0xC04010)
        latent = graph.add("VAEEncode", pixels=picture, vae=graph.link("ADTTreeModelLoader", 2))
        if name == "source":
            prompt = graph.inputs("ADTTreeSampler")["positive"]
            graph.set("ADTTreeSampler", positive=graph.add("ReferenceLatent", conditioning=prompt, latent=latent))
        if name == "continued":
            graph.set("ADTTreeSampler", latent_image=latent)
        (drawn,) = stocked.draw(graph.prompt)
        graph.set("ADTTreeSampler", drafting="No drafting").set("SaveImage", filename_prefix=f"glm-{name}-plain")
        (plain,) = stocked.draw(graph.prompt)
        np.testing.assert_array_equal(drawn, plain)
        assert drawn.shape[:2] == (64, 96)
        seen[name] = drawn
    assert (seen["text"] != seen["source"]).any() and (seen["text"] != seen["continued"]).any()


def test_truncated_prompts_are_logged(stocked, stocked_template):
    graph = stocked_template(LLAMAGEN).set("CLIPTextEncode", text="fox " * 40)
    stocked.run(graph.prompt)
    assert "The prompt has 160 tokens, but LlamaGen-T2I-2 reads only 120" in stocked.log.read_text(encoding="utf-8")
    batch = stocked_template(BATCH).set("ADTTreePrompts", text=f"a fox\n{'fox ' * 50}")
    stocked.run(batch.set("ADTTreeModelLoader", model=TO_INSTALL[LLAMAGEN][2]).prompt)
    message = "1 of 2 prompts are truncated. The first, '2': The prompt has 200 tokens"
    assert message in stocked.log.read_text(encoding="utf-8")


def test_auto_uses_the_published_drafter_if_installed(stocked, stocked_template):
    """If the drafter is missing or damaged, 'auto' uses 'jacobi'. For a damaged drafter, a warning is logged."""
    drafter = stocked.base / "models" / "ar_image_drafters" / f"LANTERN-{LUMINA}"
    graph = stocked_template("ADT-Tree Lumina-mGPT text to image")
    alone = Graph({"1": graph.prompt[graph.id("ADTTreeModelLoader")]})
    alone.add("PreviewAny", source=alone.add("ADTTreeDrafterLoader", model=["1", 0], drafter="auto"))
    stocked.run(alone.prompt)
    message = f"'{drafter.name}' is damaged or was made for another model, so 'jacobi' drafts"
    assert message not in stocked.log.read_text(encoding="utf-8")
    (drafter / "model.safetensors").write_bytes(b"nothing")
    stocked.run(alone.prompt)
    assert f"'{drafter.name}' is damaged" in stocked.log.read_text(encoding="utf-8"), (
        "the loader does not reuse the drafter that it had loaded"
    )
    graph.set("ADTTreeSampler", seed=4)
    assert stocked.draw(graph.set("SaveImage", filename_prefix="damaged").prompt)
    assert message in stocked.log.read_text(encoding="utf-8")
    shutil.rmtree(drafter)
    assert stocked.draw(graph.set("SaveImage", filename_prefix="jacobi").prompt)


def moves(server) -> dict:
    return server.get("/moving/moves")


def unload(server) -> None:
    """Unload all models, as the button Unload Models does."""
    before = moves(server)["unloaded"]
    assert server.free_until(lambda: moves(server)["unloaded"] > before, seconds=120), "nothing was unloaded"


def run(server, graph: Graph, seed: int) -> dict[str, np.ndarray]:
    """Run a graph with the given seed in its last sampler. Check that the run loads weights.

    Returns:
        Images [H, W, 3]. A key is the node id and the index of the image, for example "9 0".
    """
    for node in graph.prompt.values():
        if node["class_type"] == "SaveImage":
            node["inputs"]["filename_prefix"] = uuid.uuid4().hex
    *_, last = (node for node in graph.prompt.values() if "seed" in node["inputs"])
    last["inputs"]["seed"] = seed
    before = moves(server)["loaded"]
    outputs = server.run(graph.prompt, preview_method="auto")
    assert moves(server)["loaded"] > before
    return {f"{key} {i}": image for key in outputs for i, image in enumerate(server.images({key: outputs[key]}))}


@pytest.mark.parametrize("name", sorted(FIRST))
def test_unloading_between_runs_changes_nothing(stocked, stocked_template, name):
    """Nodes before the last sampler are cached and don't run again, so the sampler must load all weights."""
    graph = stocked_template(name)
    if name != START:
        with_small_models(graph)
    if name == BATCH:
        graph.set("ADTTreePrompts", count=3)
    found = []
    low = 10 * NAMES.index(name)  # different seeds, so that similar workflows don't share cached results
    for seed in (low, low + 1, low):
        found.append(run(stocked, graph, seed))
        unload(stocked)
    first, other, again = found
    assert again and set(again) <= set(first), "older versions of ComfyUI do not show cached images again"
    assert any((first[name] != other[name]).any() for name in again), "another seed gives another image"
    for name in again:
        np.testing.assert_array_equal(first[name], again[name])


def test_unloading_between_benchmarks(stocked):
    graph = with_small_models(Graph({"1": {"class_type": "ADTTreeModelLoader", "inputs": {"model": "bundled"}}}))
    graph.add("ADTTreeBenchmark", model=["1", 0], prompts="a cat", count=1, methods="jacobi", seed=0)
    for seed in (1, 2):
        run(stocked, graph, seed)
        unload(stocked)
