"""Tests that workflows of the last release still work: a saved value belongs to the same input.

A workflow stores the values of a node's widgets as a list, without names. So a new widget must be the last of its node.
`saved_workflows.json` contains the widgets of each node, and the values in each template, at the time of the last
release. With ADT_TREE_FREEZE_WORKFLOWS=1, the test writes this file. Do so only for a release.
"""

import json
import os

import pytest

from .conftest import ROOT, info_inputs

FILE = ROOT / "tests" / "workflow" / "inside" / "saved_workflows.json"
WIDGETS = {"INT", "FLOAT", "STRING", "BOOLEAN", "COMBO"}


def widgets(node) -> dict[str, tuple]:
    """Return the widgets of a node in order: (type, options) by name."""
    found = {}
    for name, (kind, options) in info_inputs(node, "required", "optional").items():
        if (isinstance(kind, list) or kind in WIDGETS) and not options.get("forceInput"):
            found[name] = kind, options
            if options.get("control_after_generate"):
                found[f"{name}: control"] = "COMBO", {"options": ["fixed", "increment", "decrement", "randomize"]}
    return found


def template_values() -> dict[str, list]:
    """Return [type, values of the widgets] of each node of this pack in each template."""
    found = {}
    for path in sorted((ROOT / "workflows").glob("*.json")):
        saved = json.loads(path.read_text(encoding="utf-8"))
        parts = [saved, *saved.get("definitions", {}).get("subgraphs", [])]
        nodes = [node for part in parts for node in part["nodes"] if node["type"].startswith("ADTTree")]
        found[path.stem] = [[node["type"], node.get("widgets_values", [])] for node in nodes]
    return found


def is_valid(value, kind, options: dict) -> bool:
    """Return whether a saved value is one that a widget accepts. Names of files and models are not compared."""
    if kind in ("INT", "FLOAT"):
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return is_number and options.get("min", value) <= value <= options.get("max", value)
    if kind == "BOOLEAN":
        return isinstance(value, bool)
    return isinstance(value, str)


@pytest.fixture
def current(pack):
    return {name: widgets(node) for name, node in pack.nodes.items() if name.startswith("ADTTree")}


@pytest.fixture
def frozen(current):
    if os.environ.get("ADT_TREE_FREEZE_WORKFLOWS"):
        content = {"widgets": {name: list(found) for name, found in current.items()}, "templates": template_values()}
        FILE.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return json.loads(FILE.read_text(encoding="utf-8"))


def test_new_widgets_come_after_those_of_the_last_release(current, frozen):
    """If a widget has another place, old workflows put their values into other inputs."""
    for node, names in frozen["widgets"].items():
        assert list(current[node])[: len(names)] == names, node


def test_values_of_the_last_templates_fit_the_inputs(current, frozen):
    wrong = []
    for template, nodes in frozen["templates"].items():
        for node, values in nodes:
            assert len(values) <= len(current[node]), (template, node)
            for (name, (kind, options)), value in zip(current[node].items(), values):
                if not is_valid(value, kind, options):
                    wrong.append((template, node, name, value))
    assert frozen["templates"] and wrong == []
