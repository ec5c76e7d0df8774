"""The pack in ComfyUI: it loads silently, describes itself fully and brings a workflow that fits its nodes."""

import json

import pytest
from comfy_server import PACKS, ROOT, Comfy
from convert import to_prompt

SAMPLING = {"ADTTreeModelLoader", "ADTTreeDrafterLoader", "ADTTreeSettings", "ADTTreeSampler"}
BATCHES = {"ADTTreePrompts", "ADTTreeBatchSampler", "ADTTreeCollector"}
NODES = (
    SAMPLING
    | BATCHES
    | {"ADTTreeLantern", "ADTTreeCompare", "ADTTreeBenchmark", "ADTTreeMapImage", "ADTTreeFigures", "ADTTreeImageSize"}
)


@pytest.mark.contract
def test_loads_without_a_word(release, tmp_path):
    """Starting with the pack says nothing at the level of warnings that starting without it does not say."""
    together = Comfy(release, tmp_path / "together", {"ADT-Tree": PACKS["ADT-Tree"]}).load_packs()
    alone = Comfy(release, tmp_path / "alone", {}).load_packs() if together else []
    assert [line for line in together if line not in alone] == []


@pytest.mark.contract
def test_nodes_explain_themselves(object_info):
    assert NODES <= set(object_info)
    for name in NODES:
        node = object_info[name]
        assert node["category"] == "ADT-Tree"
        assert node["display_name"].startswith("ADT-Tree ")
        assert len(node["description"]) > 40
        inputs = {**node["input"]["required"], **node["input"].get("optional", {})}
        for label, (_, options) in inputs.items():
            assert len(options["tooltip"]) > 15, f"{name}.{label}"
        assert len(node["output_tooltips"]) == len(node["output"])
        assert all(len(tip or "") > 15 for tip in node["output_tooltips"]), name


@pytest.mark.contract
def test_search_finds_the_nodes_in_both_languages(object_info):
    """By what people look for who know other models of this kind."""
    found = {name: object_info[name]["search_aliases"] for name in NODES}
    for words in ("image tokens", "vqgan", "图像 token"):
        assert {name for name in NODES if words in found[name]} == {"ADTTreeModelLoader", "ADTTreeSampler"}
    for name in NODES:
        assert any(word.isascii() for word in found[name]) and not all(word.isascii() for word in found[name]), name


def test_seed_takes_64_bits_and_counts_on(object_info):
    _, seed = object_info["ADTTreeSampler"]["input"]["optional"]["seed"]
    assert seed["max"] == 2**64 - 1
    assert seed["control_after_generate"] is True


@pytest.mark.contract
def test_model_lists_start_with_the_bundled_one(object_info):
    _, models = object_info["ADTTreeModelLoader"]["input"]["optional"]["model"]
    _, drafters = object_info["ADTTreeDrafterLoader"]["input"]["optional"]["drafter"]
    assert models["options"][0] == models["default"] == "bundled"
    assert drafters["options"][:2] == ["auto", "bundled"] and drafters["default"] == "auto"


def test_comfyui_keeps_its_own_nodes(object_info):
    assert object_info["KSampler"]["python_module"] == "nodes"


@pytest.mark.contract
def test_template_is_listed_and_served(comfy, workflow):
    assert set(comfy.get("/workflow_templates")["ADT-Tree"]) == {
        path.stem for path in (ROOT / "workflows").glob("*.json")
    }
    assert comfy.get("/api/workflow_templates/ADT-Tree/ADT-Tree text to image (start here).json") == json.loads(
        (ROOT / "workflows" / "ADT-Tree text to image (start here).json").read_text(encoding="utf-8")
    )


WORKFLOWS = {
    "ADT-Tree text to image (start here)": {"ADTTreeModelLoader", "ADTTreeSampler"},
    "ADT-Tree batch of prompts with report": {"ADTTreeModelLoader"} | BATCHES,
}
"""The nodes of each workflow that starts at the defaults."""


@pytest.mark.parametrize("name", WORKFLOWS)
def test_workflow_fits_the_nodes_and_starts_at_their_defaults(name, object_info):
    prompt = to_prompt(read(name), object_info)
    assert {node["class_type"] for node in prompt.values()} & NODES == WORKFLOWS[name]
    for node in prompt.values():
        if node["class_type"] in NODES:
            sections = object_info[node["class_type"]]["input"]
            for label, (_, options) in {**sections["required"], **sections.get("optional", {})}.items():
                if "default" in options and label != "seed":  # the thumbnail's, which shows what the first run draws
                    assert node["inputs"][label] == options["default"], (node["class_type"], label)


def read(name: str) -> dict:
    return json.loads((ROOT / "workflows" / f"{name}.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("damage", ["shifted", "extra", "cut"])
def test_converter_notices_damage(workflow, object_info, damage):
    """The checks in the converter are real: a damaged file does not pass."""
    sampler = next(node for node in workflow["nodes"] if node["type"] == "ADTTreeSampler")
    if damage == "shifted":
        sampler["widgets_values"].remove("randomize")
    elif damage == "extra":
        sampler["widgets_values"].append(1)
    else:
        workflow["links"].pop()
    with pytest.raises((AssertionError, KeyError)):
        to_prompt(workflow, object_info)


def test_what_has_a_default_is_optional(object_info):
    """By the API it may be left out. The page makes the widgets of required inputs first: none may be left of them."""
    for name in NODES:
        sections = object_info[name]["input"]
        assert [label for label, (_, options) in sections["required"].items() if "default" in options] == [], name


@pytest.mark.contract
@pytest.mark.small_models
def test_a_prompt_needs_no_more_than_links(comfy, graph):
    """What is left out is the schema's default; a number that is given counts."""
    given = {name: graph.inputs("ADTTreeSampler")[name] for name in ("model", "positive")}
    numbers = {"seed": 0, "guidance": 2.0, "temperature": 0.6, "top_k": 0, "top_p": 1.0}
    samplers = [
        graph.add("ADTTreeSampler", **given, **more)
        for more in ({}, {**numbers, "preset": "model's own"}, {"guidance": 9.0}, {**numbers, "guidance": 9.0})
    ]
    vae = graph.inputs("VAEDecode")["vae"]
    shown = [graph.add("PreviewImage", images=graph.add("VAEDecode", samples=one, vae=vae))[0] for one in samplers]
    lantern = graph.add("ADTTreeLantern")
    batch, _ = graph.add("ADTTreeBatchSampler", model=given["model"], prompts="a cat", lantern=lantern)
    others = [
        graph.add("ADTTreeCompare", **given, settings_a=graph.add("ADTTreeSettings")),
        graph.add("ADTTreeMapImage", trace=[samplers[0][0], 1]),
        graph.add("ADTTreeCollector", results=[batch, 2]),
    ]
    shown += [graph.add("PreviewImage", images=one)[0] for one in others]
    benchmark, _ = graph.add("ADTTreeBenchmark", model=given["model"], prompts="a cat", count=1, methods="jacobi")
    del graph.prompt[graph.id("SaveImage")]
    outputs = comfy.run(graph.prompt)
    assert {*shown, batch, benchmark} <= set(outputs)
    bare, own, guided, custom = (comfy.files({0: outputs[node]})[0] for node in shown[:4])
    assert bare == own != guided == custom


def test_a_prompt_that_says_nothing_of_a_loader_gets_what_comes_with_the_pack(comfy, graph):
    model = graph.add("ADTTreeModelLoader")
    drafter = graph.add("ADTTreeDrafterLoader", model=model)
    graph.set("ADTTreeSampler", model=model, drafter=drafter, batch_size=1)
    prompts = graph.add("ADTTreePrompts", count=1)
    graph.set("CLIPTextEncode", clip=[model[0], 1], text=prompts)
    graph.set("VAEDecode", vae=[model[0], 2])
    assert len(comfy.files(comfy.run(graph.prompt))) == 1
