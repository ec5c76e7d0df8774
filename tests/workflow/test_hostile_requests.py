"""Tests of requests of one client that once stopped the server for all others, in a real ComfyUI."""

import json

import pytest
from test_busy import answering, prompts

MOST_MEMORY = 200e6  # maximum growth of the server's memory in bytes
pytestmark = pytest.mark.smoke


def listed(number: int, file: str) -> dict:
    """Return a prompt of nodes that read the same list."""
    nodes = {}
    for name in range(number):
        nodes[f"l{name}"] = prompts(file=file)
        nodes[f"p{name}"] = {"class_type": "PreviewAny", "inputs": {"source": [f"l{name}", 0]}}
    return nodes


def test_fifty_lists_of_line_ends_in_one_prompt(comfy):
    """Validation read the file once per node, which took 0.4 s each."""
    file = comfy.base / "input" / "ends.txt"
    file.write_bytes(b"\n" * (128 * 2**10 - 8) + b"a cat")
    with answering(comfy) as watch:
        comfy.post("/queue", {"delete": [comfy.queue(listed(50, file.name))]})
        comfy.post("/interrupt", {})
    assert watch.growth < MOST_MEMORY


def test_a_list_of_25_mib_of_line_ends(comfy):
    file = comfy.base / "input" / "many.txt"
    file.write_bytes(b"\n" * (25 * 2**20) + b"a cat")
    with answering(comfy) as watch:
        comfy.run(listed(1, file.name))
    assert watch.growth < MOST_MEMORY


def test_an_id_of_tabs_in_a_batch_report(comfy, graph):
    """The pattern that looks for formulas in a table took 56 s for this id."""
    file = comfy.base / "input" / "tabs.jsonl"
    file.write_text(json.dumps({"id": "a" + "\t" * 60_000 + "a", "prompt": "a cat"}), encoding="utf-8")
    loader = graph.id("ADTTreeModelLoader")
    prompt = {loader: graph.prompt[loader], "list": prompts(file=file.name)}
    comfy.run(graph.prompt)  # loads the model
    inputs = {"model": [loader, 0], "prompts": ["list", 0], "ids": ["list", 1]}
    prompt["batch"] = {"class_type": "ADTTreeBatchSampler", "inputs": inputs}
    prompt["report"] = {"class_type": "ADTTreeBatchReport", "inputs": {"results": ["batch", 2]}}
    with answering(comfy) as watch:
        outputs = comfy.run(prompt)
    assert outputs and watch.growth < MOST_MEMORY


def test_a_long_text_at_an_unknown_input(comfy, graph):
    """The text was sent with every message of the live map, and saved with the map in the image."""
    comfy.run(graph.prompt)  # loads the model
    sampler = graph.id("ADTTreeSampler")
    graph.prompt[sampler]["inputs"]["unknown"] = "x" * 20_000_000
    graph.prompt[sampler]["inputs"]["seed"] = 70
    with answering(comfy) as watch:
        outputs = comfy.run(graph.prompt)
    assert len(json.dumps(outputs)) < 1e6
    assert watch.growth < MOST_MEMORY
