"""Every workflow that the pack brings: it fits the nodes, is laid out for people, has a picture, and runs if it needs
nothing but the pack."""

import copy
import io
import json
import re
import uuid
from pathlib import Path

import numpy as np
import pytest
import torch
from comfy_server import ROOT, Failed
from convert import Graph, to_prompt
from PIL import Image
from safetensors.torch import save_file
from test_run import images

from adt_core.app.checkpoints import find_published
from adt_core.models.downloads import PLACE
from adt_core.models.load import FAMILIES

FOLDER = ROOT / "workflows"
NAMES = sorted(path.stem for path in FOLDER.glob("*.json"))
TO_INSTALL = {
    "ADT-Tree Anole 7B text to image": ("ADTTreeModelLoader", "model", "Anole-7b-v0.1-hf"),
    "ADT-Tree Lumina-mGPT text to image": ("ADTTreeModelLoader", "model", "Lumina-mGPT-7B-768"),
    "ADT-Tree LlamaGen text to image": ("ADTTreeModelLoader", "model", "LlamaGen-T2I-2"),
    "ADT-Tree Janus-Pro text to image": ("ADTTreeModelLoader", "model", "Janus-Pro-1B"),
    "ADT-Tree Emu3 text to image": ("ADTTreeModelLoader", "model", "Emu3-Gen-hf"),
    "ADT-Tree text to image and upscale with a model": (
        "UpscaleModelLoader",
        "model_name",
        "RealESRGAN_x4plus.safetensors",
    ),
}
"""Workflows that need a model which does not come with the pack: the node that loads it, its input, the value there."""


def read(name: str) -> dict:
    return json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))


def installed(object_info: dict, name: str) -> dict:
    """The nodes as they are where the model of workflow ``name`` is installed."""
    if name not in TO_INSTALL:
        return object_info
    node, label, value = TO_INSTALL[name]
    info = copy.deepcopy(object_info)
    kind, options = {**info[node]["input"]["required"], **info[node]["input"].get("optional", {})}[label]
    (kind if isinstance(kind, list) else options["options"]).append(value)
    return info


def write_upscaler(folder: Path) -> None:
    """The smallest upscaler of a kind that stock nodes read (SRVGGNet, here of random weights), by its shipped name."""
    folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(0)
    sizes = {"body.0": (8, 3, 3, 3), "body.2": (8, 8, 3, 3), "body.4": (48, 8, 3, 3)}
    weights = {f"{name}.weight": 0.1 * torch.randn(size, generator=generator) for name, size in sizes.items()}
    weights |= {f"{name}.bias": torch.zeros(size[0]) for name, size in sizes.items()}
    weights |= {f"body.{i}.weight": torch.full((8,), 0.2) for i in (1, 3)}
    save_file(weights, folder / TO_INSTALL["ADT-Tree text to image and upscale with a model"][2])


@pytest.fixture
def graph_of(object_info):
    """A function: a workflow as a prompt that saves under a new name."""

    def load(name: str) -> Graph:
        graph = Graph(to_prompt(read(name), installed(object_info, name)))
        for node in graph.prompt.values():
            if node["class_type"] == "SaveImage":
                node["inputs"]["filename_prefix"] = uuid.uuid4().hex
        return graph

    return load


@pytest.mark.contract
@pytest.mark.parametrize("name", NAMES)
def test_fits_the_nodes(name, object_info):
    prompt = to_prompt(read(name), installed(object_info, name))
    assert any(node["class_type"].startswith("ADTTree") for node in prompt.values())
    for node in prompt.values():
        known = object_info[node["class_type"]]["input"]
        assert set(node["inputs"]) <= {*known["required"], *known.get("optional", {})}, node


@pytest.mark.parametrize("name", [name for name in NAMES if name in TO_INSTALL])
def test_what_it_needs_is_what_it_names(name):
    node, _, value = TO_INSTALL[name]
    assert [n["widgets_values"][0] for n in read(name)["nodes"] if n["type"] == node] == [value]
    (note,) = [n["widgets_values"][0] for n in read(name)["nodes"] if n["type"] == "MarkdownNote"]
    assert value in note or "models/upscale_models" in note, "the note says where it goes"


@pytest.mark.parametrize("name", [name for name in NAMES if TO_INSTALL.get(name, ("",))[0] == "ADTTreeModelLoader"])
def test_a_template_without_its_model_says_what_to_download(name, comfy, graph_of):
    """When it is opened, in its note; when it is run, as its first node; and where the list's mark is chosen."""
    row = find_published(TO_INSTALL[name][2])
    (note,) = [n["widgets_values"][0] for n in read(name)["nodes"] if n["type"] == "MarkdownNote"]
    assert all(f"\n{one.command(PLACE)}\n" in note for one in row.downloads)
    assert row.drafter is None or row.drafter.command(Path("models/ar_image_drafters")) in note
    for chosen in (row.name, f"{row.name} (not installed)"):
        with pytest.raises(Failed) as failed:
            comfy.run(graph_of(name).set("ADTTreeModelLoader", model=chosen).prompt)
        said = failed.value.message
        assert failed.value.node_type == "ADTTreeModelLoader"
        assert f"'{row.name}' is not installed" in said and "press R" in said
        for one in row.downloads:
            assert f"`{one.command(comfy.base / 'models' / 'ar_image')}`" in said
            assert one.size in said and one.licence in said
        assert not row.libraries or f" -m pip install {row.libraries}`" in said


def test_every_family_has_a_template():
    shown = {find_published(value) for node, _, value in TO_INSTALL.values() if node == "ADTTreeModelLoader"}
    assert all(shown.intersection(family.published) for family in FAMILIES)


def test_models_of_one_file_are_for_comfyuis_own_dialogue():
    """It knows them by the value of a widget, so it can't serve models that are folders."""
    found = {}
    for name in NAMES:
        for node in read(name)["nodes"]:
            for model in node["properties"].get("models", []):
                found[name] = model
                assert model["name"] in node["widgets_values"] and model["url"].endswith(model["name"])
    assert {name: model["directory"] for name, model in found.items()} == {
        "ADT-Tree text to image and upscale with a model": "upscale_models"
    }


def test_titles_are_understood_alone():
    """ComfyUI lists templates in no order, and searches nothing but their titles."""
    (first,) = [name for name in NAMES if "start here" in name]
    for text in ("README.md", "docs/nodes.md"):
        assert first in (ROOT / text).read_text(encoding="utf-8")
    for name in NAMES:
        assert name.startswith("ADT-Tree ") and len(name.split()) > 3


HEADINGS = {"## ": 12.86, "### ": 11.43}
"""Pixels of a note's headings at a zoom of 1 in Nodes 2.0; in the canvas they are larger. Other text has 10."""

INK, CONTRAST = "#aaa", 4.5
"""About the colour of a note's text in Nodes 2.0 (white in the canvas), and the least contrast of a text (WCAG, AA)."""


def luminance(colour: str) -> float:
    """The relative luminance of a colour such as #abc."""
    values = np.array([int(2 * digit, 16) for digit in colour[1:]]) / 255
    linear = np.where(values > 0.04045, ((values + 0.055) / 1.055) ** 2.4, values / 12.92)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def boxes_of(workflow: dict) -> list[tuple]:
    """Left, top, right and bottom of each node with its title, and its type."""
    return [
        (n["pos"][0], n["pos"][1] - 30, n["pos"][0] + n["size"][0], n["pos"][1] + n["size"][1], n["type"])
        for n in workflow["nodes"]
    ]


@pytest.mark.parametrize("name", NAMES)
def test_is_laid_out_for_people(name):
    workflow = read(name)
    assert [n["type"] for n in workflow["nodes"]].count("MarkdownNote") == 1
    boxes = boxes_of(workflow)
    for i, a in enumerate(boxes):
        for b in boxes[i + 1 :]:
            assert a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1], (a[4], b[4])


@pytest.mark.parametrize("name", NAMES)
def test_is_legible_as_a_whole_on_a_small_screen(name):
    """ComfyUI fits a template's nodes into three quarters of the window. Sentences of a note are headings: of 10 pixels
    or more at that zoom, in both ways in which ComfyUI draws notes, and dark behind light letters."""
    workflow = read(name)
    lefts, tops, rights, bottoms, _ = zip(*boxes_of(workflow))
    width, height = max(rights) - min(lefts), max(bottoms) - min(tops)
    frame = 20  # that ComfyUI adds around them
    zoom = 0.75 * min(1280 / (width + frame), 800 / (height + frame))
    assert zoom > 0.8
    (note,) = (n for n in workflow["nodes"] if n["type"] == "MarkdownNote")
    assert (luminance(INK) + 0.05) / (luminance(note["bgcolor"]) + 0.05) >= CONTRAST
    for text in (note["widgets_values"][0], note["zh"]["note"]):
        for block in re.sub(r"```.*?```", "", text, flags=re.S).split("\n\n"):
            level = re.match("#* ?", block.strip())[0]
            assert not block.strip() or zoom * HEADINGS[level] >= 10, block


@pytest.mark.parametrize("name", NAMES)
def test_is_a_template_with_a_picture(name, comfy):
    assert name in comfy.get("/workflow_templates")["ADT-Tree"]
    assert comfy.get(f"/api/workflow_templates/ADT-Tree/{name}.json") == read(name)
    data = comfy.get(f"/api/workflow_templates/ADT-Tree/{name}.jpg")
    with Image.open(io.BytesIO(data)) as picture:
        assert picture.format == "JPEG" and min(picture.size) >= 256 and len(data) < 200_000


def show(graph: Graph, kind: str, *outputs: int) -> list[str]:
    """Connect a Preview Image to each of these outputs of a node; their ids."""
    return [graph.add("PreviewImage", images=graph.link(kind, output))[0] for output in outputs]


def previews(comfy, outputs, graph, which) -> np.ndarray:
    """What the ``which``-th Preview Image node of the graph shows."""
    key = graph.id("PreviewImage", which)
    return images(comfy, {key: outputs[key]})[0]


def test_compare_with_plain(comfy, graph_of):
    graph = graph_of("ADT-Tree compared with plain decoding")
    shown = show(graph, "ADTTreeCompare", 0, 1)
    outputs = comfy.run(graph.prompt)
    a, b = (images(comfy, {key: outputs[key]})[0] for key in shown)
    np.testing.assert_array_equal(a, b)
    assert a.std() > 20 and not previews(comfy, outputs, graph, 0).any()
    (report,) = outputs[graph.id("PreviewAny")]["text"]
    verdict, first, second = report.splitlines()
    assert "every token is the same" in verdict
    assert first.startswith("A: auto, ") and second.startswith("B: autoregressive, ")


def test_lantern(comfy, graph_of):
    graph = graph_of("ADT-Tree relaxed acceptance (LANTERN)")
    shown = show(graph, "ADTTreeCompare", 0, 1)
    outputs = comfy.run(graph.prompt)
    relaxed, exact = (images(comfy, {key: outputs[key]})[0] for key in shown)
    changed = previews(comfy, outputs, graph, 0)
    np.testing.assert_allclose(np.abs(relaxed.astype(int) - exact), changed, atol=1)
    (report,) = outputs[graph.id("PreviewAny")]["text"]
    assert "replaced by LANTERN" in report
    a, b = map(float, re.findall(r"([\d.]+) per pass", report))
    assert a > 1.3 * b, "a setting that saves nothing was chosen"


def test_the_first_picture_is_as_large_as_its_map(comfy, graph_of):
    """ComfyUI's canvas enlarges no image: one of 128 pixels stays as small as that."""
    (image,) = images(comfy, comfy.run(graph_of("ADT-Tree text to image (start here)").prompt))
    assert image.shape == (256, 256, 3) and image.std() > 20


def test_upscale_with_model(comfy, graph_of):
    """The chain of stock nodes, with a small model in place of a real one."""
    write_upscaler(comfy.base / "models" / "upscale_models")
    (image,) = images(comfy, comfy.run(graph_of("ADT-Tree text to image and upscale with a model").prompt))
    assert image.shape == (512, 512, 3) and image.std() > 20


def test_continue_image(comfy, graph_of):
    graph = graph_of("ADT-Tree continue a picture")
    decode = graph.add("VAEDecode", samples=graph.link("ADTTreeSampler"), vae=graph.link("ADTTreeModelLoader", 2))
    first = graph.add("PreviewImage", images=decode)[0]
    outputs = comfy.run(graph.prompt)
    start, saved = images(comfy, {first: outputs[first]})[0].astype(float), graph.id("SaveImage")
    continued = [image.astype(float) for image in images(comfy, {saved: outputs[saved]})]
    assert len(continued) == 4
    for image in continued:
        assert np.abs(image[:56] - start[:56]).mean() < 20, "the top is kept, as close as tokens come to it"
    assert all((a[64:] != b[64:]).any() for i, a in enumerate(continued) for b in continued[:i]), (
        "and every rest is another"
    )
