"""Tests of the pack's workflows.

They must fit the node definitions, be legible and have a preview picture. They must run, unless they need other models.
"""

import copy
import io
import json
import re
import uuid
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from comfy_server import ROOT
from convert import Graph, to_prompt
from PIL import Image
from small import QUICK, SMALL, UPSCALER

from adt_core.app.training_domain import domain_warning
from adt_core.models.load import FAMILIES, bundled_words, find_published
from model_making.captions import OBJECT_NAMES

FOLDER = ROOT / "workflows"
LOCALES = [path.name for path in (ROOT / "locales").iterdir()]
NAMES = sorted(path.stem for path in FOLDER.glob("*.json"))
FIRST = "ADT-Tree text to image (start here)"
AT_DEFAULTS = {
    FIRST: {"ADTTreeModelLoader", "ADTTreeSampler"},
    "ADT-Tree batch of prompts with report": {
        *("ADTTreeModelLoader", "ADTTreePrompts", "ADTTreeBatchSampler", "ADTTreeBatchReport"),
    },
}
"""Nodes of the workflows for beginners."""
WITH_PROMPTS = {"ADTTreeBenchmark", "ADTTreeTrainDrafter"}
"""Nodes that have their own list of prompts, and show their result."""
TO_INSTALL = {
    "ADT-Tree Anole 7B text to image": ("ADTTreeModelLoader", "model", "Anole-7b-v0.1-hf"),
    "ADT-Tree Lumina-mGPT text to image": ("ADTTreeModelLoader", "model", "Lumina-mGPT-7B-768"),
    "ADT-Tree Lumina-mGPT 2.0 text to image": ("ADTTreeModelLoader", "model", "Lumina-mGPT-2.0"),
    "ADT-Tree LlamaGen text to image": ("ADTTreeModelLoader", "model", "LlamaGen-T2I-2"),
    "ADT-Tree Janus-Pro text to image": ("ADTTreeModelLoader", "model", "Janus-Pro-1B"),
    "ADT-Tree image of the original script (Janus-Pro)": ("ADTTreeModelLoader", "model", "Janus-Pro-1B"),
    "ADT-Tree Emu3 text to image": ("ADTTreeModelLoader", "model", "Emu3-Gen-hf"),
    "ADT-Tree Liquid text to image": ("ADTTreeModelLoader", "model", "Liquid_V1_7B"),
    "ADT-Tree GLM-Image text to image": ("ADTTreeModelLoader", "model", "GLM-Image"),
    "ADT-Tree GLM-Image edit a picture": ("ADTTreeModelLoader", "model", "GLM-Image"),
    "ADT-Tree text to image and upscale with a model": ("UpscaleModelLoader", "model_name", UPSCALER),
    "ADT-Tree MS-COCO batch with upscaling": ("UpscaleModelLoader", "model_name", UPSCALER),
    "ADT-Tree run of the paper (Anole with LANTERN)": ("ADTTreeModelLoader", "model", "Anole-7b-v0.1-hf"),
}
"""Workflow that needs a model outside the pack -> node that loads the model, input of the node, value of the input."""


def read(name: str) -> dict:
    return json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))


def note_of(name: str) -> tuple[str, str]:
    """Return the note of a workflow in English and in Chinese."""
    (note,) = [node for node in read(name)["nodes"] if node["type"] == "MarkdownNote"]
    return note["widgets_values"][0], note["zh"]["note"]


def installed(object_info: dict, name: str) -> dict:
    """Return the node definitions that ComfyUI would have if the model of workflow ``name`` was installed."""
    if name not in TO_INSTALL:
        return object_info
    node, label, value = TO_INSTALL[name]
    info = copy.deepcopy(object_info)
    kind, options = {**info[node]["input"]["required"], **info[node]["input"].get("optional", {})}[label]
    (kind if isinstance(kind, list) else options["options"]).append(value)
    return info


def prompt_of(name: str, object_info: dict) -> Graph:
    """Convert a workflow to a prompt that saves its images with a new file name."""
    graph = Graph(to_prompt(read(name), installed(object_info, name)))
    for node in graph.prompt.values():
        if node["class_type"] == "SaveImage":
            node["inputs"]["filename_prefix"] = uuid.uuid4().hex
    return graph


@pytest.mark.smoke
@pytest.mark.parametrize("name", NAMES)
def test_fits_the_nodes(name, object_info):
    """Workflows for beginners must use the default of each input, except for the seed and example prompts."""
    prompt = to_prompt(read(name), installed(object_info, name))
    ours = {node["class_type"] for node in prompt.values() if node["class_type"].startswith("ADTTree")}
    assert ours and ours == AT_DEFAULTS.get(name, ours)
    for node in prompt.values():
        sections = object_info[node["class_type"]]["input"]
        known = {**sections["required"], **sections.get("optional", {})}
        assert set(node["inputs"]) <= set(known), node
        if name in AT_DEFAULTS and node["class_type"] in ours:
            for label, (_, options) in known.items():
                if "default" in options and label not in ("seed", "text"):
                    assert node["inputs"][label] == options["default"], (node["class_type"], label)


@pytest.mark.smoke
@pytest.mark.parametrize("name", NAMES)
def test_form_for_app_mode_fits_the_nodes(name, object_info):
    """The form must begin with what the image shows, and have the seed and the model. Its outputs must show images."""
    workflow = read(name)
    nodes = {node["id"]: node["type"] for node in workflow["nodes"]}
    form = workflow["extra"]["linearData"]
    chosen = [(nodes[node], widget) for node, widget, *_ in form["inputs"]]
    for kind, widget in chosen:
        sections = object_info[kind]["input"]
        assert widget in {*sections["required"], *sections.get("optional", {}), "acceptance_map"}, (kind, widget)
    first = [kind for kind, _ in chosen][: 1 + (chosen[0][1] in ("image", "file"))]
    assert {*first} <= {"LoadImage", "CLIPTextEncode", "ADTTreePrompts", *WITH_PROMPTS}
    assert {"seed", "model"} <= {widget for _, widget in chosen} and len({*map(tuple, chosen)}) >= 5
    assert {nodes[node] for node in form["outputs"]} <= {
        *("SaveImage", "PreviewImage", "ADTTreeBatchSampler", "ADTTreeBatchReport", "ADTTreeDiagnostics"),
        *WITH_PROMPTS,
    }


def test_batch_template_has_example_prompts():
    """The bundled model must be able to draw the example prompts, because they show users what to type."""
    texts = {}
    for folder in ("workflows", "subgraphs"):
        (path,) = (ROOT / folder).glob("ADT-Tree batch *report.json")
        texts[folder] = re.findall(r'"\(the text below\)",\s*("[^"]+")', path.read_text(encoding="utf-8"))
    (own,), (other,) = texts.values()  # one list in each file
    prompts = json.loads(own).split("\n")
    assert own == other and len(prompts) == len(set(prompts)) == 8
    known = SimpleNamespace(words=bundled_words(), trained=None)
    assert domain_warning(known, prompts) == ""


@pytest.mark.parametrize("damage", ["shifted", "extra", "cut"])
def test_converter_rejects_damaged_workflows(object_info, damage):
    workflow = read(FIRST)
    sampler = next(node for node in workflow["nodes"] if node["type"] == "ADTTreeSampler")
    if damage == "shifted":
        sampler["widgets_values"].remove("randomize")
    elif damage == "extra":
        sampler["widgets_values"].append(1)
    else:
        workflow["links"].pop()
    with pytest.raises((AssertionError, KeyError)):
        to_prompt(workflow, object_info)


@pytest.mark.parametrize("name", [name for name in NAMES if name in TO_INSTALL])
def test_note_names_the_required_model(name):
    node, _, value = TO_INSTALL[name]
    assert [n["widgets_values"][0] for n in read(name)["nodes"] if n["type"] == node] == [value]
    note, _ = note_of(name)
    assert value in note or "models/upscale_models" in note, "the note names the folder"


@pytest.mark.parametrize("name", [name for name in NAMES if TO_INSTALL.get(name, ("",))[0] == "ADTTreeModelLoader"])
def test_note_explains_the_download(name):
    """With the nodes, not with a command. Tests in ``inside/`` and tests/browser check the loader's message."""
    row = find_published(TO_INSTALL[name][2])
    for text, how in zip(note_of(name), ("set *if_missing* to *download*", "设为*下载*")):
        assert row.name in text and how in text and f"{row.size}" in text and "```" not in text


def test_first_note_says_what_the_bundled_model_is_for():
    """The note must name a model for real pictures and every object of the bundled model's training data, in a line."""
    objects = [names[0] for names in OBJECT_NAMES.values()]
    assert all(bundled_words().things.intersection(words.split()) for words in objects)
    for text in note_of(FIRST):
        _, purpose, list_of_objects, *_ = text.split("\n\n")
        assert find_published(re.search(r"\*([\w-]+)\*", purpose)[1]).downloads and "\n" not in purpose
        assert re.split("[:：]", list_of_objects)[1].strip().rstrip(".").split(", ") == objects
    assert "A small demonstration model; for real pictures choose *Janus-Pro-1B*." in note_of(FIRST)[0]


@pytest.mark.parametrize("language", LOCALES)
@pytest.mark.parametrize("name", NAMES)
def test_titles_and_notes_are_translated(language, name):
    """Each translation must be stored next to the text."""
    workflow = read(name)
    for part in [*workflow["nodes"], *workflow["groups"]]:
        words = part.get(language, {})
        note = part.get("type") == "MarkdownNote"
        assert set(words) == {*(["title"] if "title" in part else []), *(["note"] if note else [])}, part["title"]
        if note:
            own = part["widgets_values"][0]
            other = words["note"]
            assert own.count("\n#") == other.count("\n#")


def test_every_family_has_a_template():
    shown = {find_published(value) for node, _, value in TO_INSTALL.values() if node == "ADTTreeModelLoader"}
    assert all(shown.intersection(family.published) for family in FAMILIES)


def test_models_in_one_file_use_comfyuis_download_dialogue():
    """ComfyUI's dialogue finds a missing model by a widget value, so it doesn't support models that are folders."""
    found = {}
    for name in NAMES:
        for node in read(name)["nodes"]:
            for model in node["properties"].get("models", []):
                found[name] = model
                assert model["name"] in node["widgets_values"] and model["url"].endswith(model["name"])
    assert {name: model["directory"] for name, model in found.items()} == {
        "ADT-Tree text to image and upscale with a model": "upscale_models",
        "ADT-Tree MS-COCO batch with upscaling": "upscale_models",
    }


def test_titles_are_unambiguous_without_context():
    """ComfyUI lists templates in an arbitrary order and searches only their titles."""
    (first,) = [name for name in NAMES if "start here" in name]
    for text in ("README.md", "docs/nodes.md"):
        assert first in (ROOT / text).read_text(encoding="utf-8")
    for name in NAMES:
        assert name.startswith("ADT-Tree ") and len(name.split()) > 3


HEADINGS = {"## ": 12.86, "### ": 11.43}
"""Height of a note's headings in pixels, at a zoom of 1 in Nodes 2.0. In the canvas, headings are larger. Other text
has 10 pixels."""

INK = "#aaa"
"""Approximate colour of a note's text in Nodes 2.0. In the canvas, the text is white."""
CONTRAST = 4.5  # minimum contrast of text according to WCAG, level AA


def luminance(colour: str) -> float:
    """Return the relative luminance (WCAG) of a colour such as #abc, from 0 to 1."""
    values = np.array([int(2 * digit, 16) for digit in colour[1:]]) / 255
    linear = np.where(values > 0.04045, ((values + 0.055) / 1.055) ** 2.4, values / 12.92)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def boxes_of(workflow: dict) -> list[tuple]:
    """Return (left, top, right, bottom, type) of each node. The box includes the title."""
    return [
        (n["pos"][0], n["pos"][1] - 30, n["pos"][0] + n["size"][0], n["pos"][1] + n["size"][1], n["type"])
        for n in workflow["nodes"]
    ]


@pytest.mark.parametrize("name", NAMES)
def test_nodes_do_not_overlap(name):
    workflow = read(name)
    assert [n["type"] for n in workflow["nodes"]].count("MarkdownNote") == 1
    boxes = boxes_of(workflow)
    for i, a in enumerate(boxes):
        for b in boxes[i + 1 :]:
            assert a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1], (a[4], b[4])


@pytest.mark.parametrize("name", NAMES)
def test_notes_are_legible_on_a_small_screen(name):
    """ComfyUI zooms so that all nodes fit into three quarters of the window; headings are larger than other text."""
    workflow = read(name)
    lefts, tops, rights, bottoms, _ = zip(*boxes_of(workflow))
    width = max(rights) - min(lefts)
    height = max(bottoms) - min(tops)
    frame = 20  # margin that ComfyUI adds around the nodes
    zoom = 0.75 * min(1280 / (width + frame), 800 / (height + frame))
    assert zoom > 0.8
    (note,) = (n for n in workflow["nodes"] if n["type"] == "MarkdownNote")
    assert (luminance(INK) + 0.05) / (luminance(note["bgcolor"]) + 0.05) >= CONTRAST
    for text in note_of(name):
        for block in re.sub(r"```.*?```", "", text, flags=re.S).split("\n\n"):
            level = re.match("#* ?", block.strip())[0]
            assert not block.strip() or zoom * HEADINGS[level] >= 10, block


@pytest.mark.smoke
def test_comfyui_serves_templates_pages_and_translations(comfy):
    assert set(comfy.get("/workflow_templates")["ADT-Tree"]) == set(NAMES)
    for name in NAMES:
        assert comfy.get(f"/api/workflow_templates/ADT-Tree/{name}.json") == read(name)
        data = comfy.get(f"/api/workflow_templates/ADT-Tree/{name}.jpg")
        with Image.open(io.BytesIO(data)) as picture:
            assert picture.format == "JPEG" and min(picture.size) >= 256 and len(data) < 200_000
    for language in ("en", *LOCALES):
        page = Path("docs") / "ADTTreeSampler" / f"{language}.md"
        assert comfy.get(f"/extensions/ADT-Tree/{page.as_posix()}") == (ROOT / "js" / page).read_bytes()
    for language in LOCALES:
        translated = json.loads((ROOT / "locales" / language / "nodeDefs.json").read_text(encoding="utf-8"))
        assert comfy.get("/i18n")[language]["nodeDefs"].items() >= translated.items()


def show(graph: Graph, kind: str, *outputs: int) -> list[str]:
    """Connect a Preview Image node to each of these outputs of a node. Return the ids of the new nodes."""
    return [graph.add("PreviewImage", images=graph.link(kind, output))[0] for output in outputs]


def test_compare_with_plain(comfy, template):
    graph = template("ADT-Tree compared with no drafting")
    shown = [graph.id("PreviewImage"), *show(graph, "ADTTreeCompare", 1, 2)]
    outputs = comfy.run(graph.prompt)
    a, b, difference = comfy.images(outputs, *shown)
    np.testing.assert_array_equal(a, b)
    assert a.std() > 20 and not difference.any()
    (report,) = outputs[graph.id("PreviewAny")]["text"]
    assert "every token is the same" in report and "\nA: Auto, " in report and "\nB: No drafting, " in report


def test_lantern(comfy, template):
    graph = template("ADT-Tree relaxed acceptance (LANTERN)")
    shown = [graph.id("PreviewImage"), *show(graph, "ADTTreeCompare", 1, 2)]
    outputs = comfy.run(graph.prompt)
    relaxed, exact, changed = comfy.images(outputs, *shown)
    np.testing.assert_allclose(np.abs(relaxed.astype(int) - exact), changed, atol=1)
    (report,) = outputs[graph.id("PreviewAny")]["text"]
    assert "replaced by LANTERN" in report
    a, b = map(float, re.findall(r"([\d.]+) per pass", report))
    assert a > 1.3 * b, "LANTERN must save passes"


@pytest.mark.parametrize(
    "name, side",
    [
        pytest.param(
            FIRST, 256, id="size of its map, because ComfyUI's canvas enlarges no image", marks=pytest.mark.smoke
        ),
        pytest.param("ADT-Tree text to image and upscale with a model", 512, id="stock nodes and a small upscaler"),
    ],
)
def test_image_is_enlarged(comfy, template, name, side):
    (image,) = comfy.draw(template(name).prompt)
    assert image.shape == (side, side, 3) and image.std() > 20


@pytest.mark.parametrize(
    "name, scale",
    [
        pytest.param("ADT-Tree run of the paper (Anole with LANTERN)", 1, id="the paper's run"),
        pytest.param("ADT-Tree MS-COCO batch with upscaling", 4, id="MS-COCO", marks=pytest.mark.smoke),
    ],
)
def test_caption_files(comfy, template, name, scale):
    """The longest captions of a sample of the example file, with the bundled model."""
    graph = template(name).set("ADTTreeModelLoader", model="bundled").set("ADTTreePrompts", count=2)
    folder = f"captions {uuid.uuid4().hex[:8]}"
    outputs = comfy.run(graph.set("ADTTreeBatchSampler", folder=folder).prompt)
    (report,) = comfy.base.glob(f"output/adt_tree_batches/{folder.replace(' ', '-')}-*/report.json")
    listed = json.loads((ROOT / "adt_core/bundled/captions_example.json").read_text(encoding="utf-8"))["annotations"]
    rows = json.loads(report.read_text(encoding="utf-8"))["images"]
    assert len(rows) == 2
    for row in rows:
        captions = [one["caption"] for one in listed if str(one["image_id"]) == row["id"]]
        assert row["prompt"] == max(captions, key=len) and len(captions) > 1
    if "SaveImage" in {node["class_type"] for node in graph.prompt.values()}:
        saved = comfy.images(outputs, graph.id("SaveImage"))
        assert [image.shape for image in saved] == [(scale * 128, scale * 128, 3)] * 2


def test_map_and_statistics(comfy, template):
    graph = template("ADT-Tree map and statistics of a run")
    outputs = comfy.run(graph.prompt)
    (image,) = comfy.images(outputs, graph.id("SaveImage"))
    assert image.std() > 20
    (text,) = outputs[graph.id("PreviewAny")]["text"]
    assert "ertainty" in text


def test_benchmark_and_diagnostics(comfy, template):
    graph = template("ADT-Tree benchmark and diagnostics of this machine").set("ADTTreeBenchmark", count=1)
    outputs = comfy.run(graph.prompt)
    (table,), (report,) = (outputs[graph.id(f"ADTTree{name}")]["text"] for name in ("Benchmark", "Diagnostics"))
    methods = "No drafting", "EAGLE-2", "ADT-Tree", "Jacobi window", "Network and Jacobi window", "Auto"
    assert [method for method in methods if f"| {method} |" not in table] == []
    assert "A plain round takes" in report


@pytest.mark.small_models
def test_a_drafter_is_trained(stocked, template):
    graph = template("ADT-Tree train a drafter for a model").set("ADTTreeModelLoader", model=SMALL)
    graph.set("ADTTreeTrainDrafter", name="from the template", **QUICK)
    outputs = stocked.run(graph.prompt)
    (text,) = outputs[graph.id("PreviewAny")]["text"]
    assert "10 steps" in text and (stocked.base / "models/ar_image_drafters/from the template/config.json").exists()


def test_continue_image(comfy, template):
    graph = template("ADT-Tree continue a picture")
    decode = graph.add("VAEDecode", samples=graph.link("ADTTreeSampler"), vae=graph.link("ADTTreeModelLoader", 2))
    first = graph.add("PreviewImage", images=decode)[0]
    start, *continued = (one.astype(float) for one in comfy.draw(graph.prompt, first, graph.id("SaveImage")))
    assert len(continued) == 4
    for image in continued:
        assert np.abs(image[:56] - start[:56]).mean() < 20, "the top is kept, except for rounding to tokens"
    assert all((a[64:] != b[64:]).any() for i, a in enumerate(continued) for b in continued[:i]), (
        "the rest differs in each image"
    )
