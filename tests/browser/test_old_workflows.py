"""Tests of workflows and images of version 0.1.

Old workflows must open with the current names of values and without invalid widgets, and must run.
"""

import json

import pytest
from comfy_server import ROOT
from test_sampler import NUMBERS
from test_saved_maps import drop
from test_templates import RUN

OLD = ROOT / "tests" / "fixtures" / "v0_1" / "comfyui"
NAMES = sorted(path.stem for path in OLD.glob("*.json"))
RENAMED = {
    "model's own": "model default",
    "Plain": "No drafting",
    "own": "ADT-Tree",
    "upstream": "original script",
    "seed + place in the list": "increment",
    "cut": "truncate",
    "as written": "off",
    "beside the transformer": "same folder as transformer",
}
TEXTS = {"negative", "folder", "prompts", "text", "name"}
"""Inputs with text from the user. In these inputs, renamed values aren't replaced."""
UNLISTED = """() => adtTest.nodes().flatMap(([id, node]) => (node.widgets ?? [])
  .filter(({ options, value }) => Array.isArray(options?.values) && !options.values.includes(value))
  .map(({ name, value }) => [id, node.type, name, value]))"""
"""Returns the widgets whose value isn't in their list. Nodes 2.0 marks such widgets red."""


def sent(tab) -> dict:
    """Return the inputs of each node that the page would send."""
    prompt = tab.page.evaluate("async () => (await app.graphToPrompt()).output")
    return {key: node["inputs"] for key, node in prompt.items()}


def renamed(name: str, value):
    return RENAMED.get(value, value) if name not in TEXTS and isinstance(value, str) else value


def read(name: str) -> tuple[dict, dict]:
    """Return a workflow of version 0.1, and the inputs that version 0.1 sent for its nodes.

    Values have their current names. Numbers that a preset overrides are left out.
    """
    old = json.loads((OLD / f"{name}.json").read_text(encoding="utf-8"))
    inputs = {key: {n: renamed(n, v) for n, v in node["inputs"].items()} for key, node in old["prompt"].items()}
    for node in inputs.values():
        if node.get("preset") == "model default":
            for number in NUMBERS:
                node.pop(number, None)
    return old["workflow"], inputs


@pytest.mark.every_frontend
@pytest.mark.parametrize("name", NAMES)
def test_workflow_opens_with_todays_values(tab, name):
    workflow, expected = read(name)
    tab.load(workflow)
    tab.settle()
    assert tab.page.evaluate(UNLISTED) == []
    now = sent(tab)
    assert {key: {n: v for n, v in now[key].items() if n in expected[key]} for key in now} == expected
    tab.screenshot(f"old_{name}")


@pytest.mark.every_frontend
@pytest.mark.parametrize("name", ["image", "batch", "subgraph"])
def test_workflow_runs(tab, name):
    workflow, _ = read(name)
    tab.load(workflow)
    assert tab.page.evaluate(RUN)["end"] == ["execution_success", None]


@pytest.mark.smoke
@pytest.mark.every_frontend
def test_image_opens_with_its_values_and_map(tab):
    node = drop(tab, (OLD / "image.png").read_bytes())
    tab.finished(node)
    assert tab.page.evaluate(UNLISTED) == []
    _, expected = read("image")
    now = sent(tab)[str(node)]
    assert {n: now[n] for n in expected["5"]} == expected["5"]
    caption = tab.map(node, "(panel.draw(), panel.caption.element.textContent)")
    assert "seed 7" in caption and "No drafting" in caption and "drafting" not in caption.split("No drafting")[1]
