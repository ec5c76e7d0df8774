"""Tests of PNGs without a workflow: of the command line, the Benchmark, and batches.

ComfyUI would make a workflow for Stable Diffusion from their text ``parameters``.
"""

import base64
import io
import json

import pytest
from map_reading import give
from PIL import Image, PngImagePlugin

RECIPE = {
    "prompt": "A blue ball.",
    "suffix": "",
    "negative_prompt": "fog",
    "model": "/somewhere/models/bundled",
    "model_name": "bundled",
    "dtype": "float32",
    "exact": "on",
    "weights": None,
    "seed": 77,
    "temperature": 0.7,
    "top_k": 40,
    "top_p": 0.9,
    "guidance_scale": 3.5,
    "noise": "adt-tree",
    "method": "adt-tree",
    "image_index": 2,
    "lantern_k": 100,
    "lantern_delta": None,
    "lantern_factor": None,
    "max_substitution": 1.0,
}
DROP = """async ([data, name]) => {
  const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
  await app.handleFile(new File([bytes], name, { type: 'image/png' }), 'file_drop');
}"""
"""Opens a file in the same way as the page does for a file that is dropped or chosen."""
GRAPH = """() => Object.fromEntries(app.graph.nodes.map((n) => [n.title + ' ' + n.type,
  Object.fromEntries((n.widgets ?? []).map((w) => [w.name, w.value]))]))"""


def png(recipe, **texts: str) -> str:
    info = PngImagePlugin.PngInfo()
    texts = {"parameters": "A blue ball.\nSteps: 256, Sampler: adt-tree, CFG scale: 2.0, Seed: 77", **texts}
    for keyword, text in texts.items():
        info.add_text(keyword, text)
    info.add_itxt("adt_tree", recipe if isinstance(recipe, str) else json.dumps(recipe))
    Image.new("RGB", (16, 16)).save(buffer := io.BytesIO(), "PNG", pnginfo=info)
    return base64.b64encode(buffer.getvalue()).decode()


def drop(tab, file: str) -> dict[str, dict]:
    tab.page.evaluate(DROP, [file, "00012.png"])
    tab.page.wait_for_function("app.graph.nodes.length > 0")
    tab.settle()
    return {key.split()[-1] if "CLIP" not in key else key: v for key, v in tab.page.evaluate(GRAPH).items()}


def test_png_without_a_workflow_opens_our_graph(tab):
    tab.page.evaluate("app.graph.clear()")
    nodes = drop(tab, png(RECIPE))
    assert "KSampler" not in nodes and "CheckpointLoaderSimple" not in nodes
    texts = {values["text"] for key, values in nodes.items() if key.endswith("CLIPTextEncode")}
    assert texts == {"A blue ball.", "fog"}
    loader, sampler = nodes["ADTTreeModelLoader"], nodes["ADTTreeSampler"]
    assert (loader["model"], loader["dtype"], loader["exact"]) == ("bundled", "float32", True)
    names = "preset", "guidance", "temperature", "top_k", "top_p", "seed", "batch_size", "drafting"
    values = "custom", 3.5, 0.7, 40, 0.9, 77, 3, "ADT-Tree"
    assert [sampler[name] for name in names] == list(values)
    tab.screenshot("recipe")
    sampler = tab.node("ADTTreeSampler")
    give(tab, sampler, "batch_size", 1)
    tab.run()
    tab.finished(sampler)
    assert tab.map(sampler, "run.seed") == "77"


def test_lantern_of_a_png_is_connected(tab):
    nodes = drop(tab, png({**RECIPE, "negative_prompt": "", "lantern_delta": 0.25, "max_substitution": 0.5}))
    assert nodes["ADTTreeLANTERN"]["delta"] == 0.25 and nodes["ADTTreeLANTERN"]["max_replaced"] == 0.5
    slot = "app.graph.nodes.find((n) => n.type === 'ADTTreeSampler').inputs.find((i) => i.name === 'lantern').link"
    assert tab.page.evaluate(slot) is not None


@pytest.mark.parametrize("odd", ["{", "[]", '{"prompt": 3}'])
def test_damaged_settings_leave_the_workflow_as_it_is(tab, workflow, odd):
    tab.load(workflow.data)
    drop(tab, png(odd))
    assert len(tab.saved()["nodes"]) == len(workflow.data["nodes"])
    tab.page.get_by_text("cannot be read").first.wait_for()


def test_odd_values_are_ignored_or_limited(tab):
    nodes = drop(tab, png({"prompt": "x", "seed": "1", "guidance_scale": 1e9, "model": ["a"], "top_k": None}))
    assert nodes["ADTTreeModelLoader"]["model"] == "bundled"
    assert nodes["ADTTreeSampler"]["seed"] == 3 and nodes["ADTTreeSampler"]["guidance"] <= 100


def test_workflow_in_a_png_is_opened_as_before(tab, workflow):
    tab.load(workflow.data)
    saved = json.dumps(tab.saved())
    drop(tab, png(RECIPE, workflow=saved))
    assert len(tab.saved()["nodes"]) == len(workflow.data["nodes"])
