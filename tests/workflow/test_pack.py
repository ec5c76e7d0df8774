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


def test_loads_without_a_word(release, tmp_path):
    """Starting with the pack says nothing at the level of warnings that starting without it does not say."""
    together = Comfy(release, tmp_path / "together", {"ADT-Tree": PACKS["ADT-Tree"]}).load_packs()
    alone = Comfy(release, tmp_path / "alone", {}).load_packs() if together else []
    assert [line for line in together if line not in alone] == []


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


def test_seed_takes_64_bits_and_counts_on(object_info):
    _, seed = object_info["ADTTreeSampler"]["input"]["required"]["seed"]
    assert seed["max"] == 2**64 - 1
    assert seed["control_after_generate"] is True


def test_model_lists_start_with_the_bundled_one(object_info):
    _, models = object_info["ADTTreeModelLoader"]["input"]["required"]["model"]
    _, drafters = object_info["ADTTreeDrafterLoader"]["input"]["required"]["drafter"]
    assert models["options"][0] == models["default"] == "bundled"
    assert drafters["options"][:2] == ["auto", "bundled"] and drafters["default"] == "auto"


def test_comfyui_keeps_its_own_nodes(object_info):
    assert object_info["KSampler"]["python_module"] == "nodes"


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
