"""Conversion of a saved workflow into a prompt for the server, and helpers to change prompts.

In ComfyUI, the browser does this conversion, with the node definitions of ``/object_info``. The browser silently
repairs some errors of a workflow, or runs it with widget values in the wrong inputs. This conversion raises an
AssertionError instead.
"""

from __future__ import annotations

import uuid
from typing import Any

_WIDGETS = {"INT", "FLOAT", "STRING", "BOOLEAN", "COMBO"}
_NOT_RUN = {"Note", "MarkdownNote"}
_CONTROLS = {"fixed", "increment", "decrement", "randomize"}


def to_prompt(workflow: dict, object_info: dict[str, dict]) -> dict[str, dict]:
    """Convert UI format 0.4 to API format ``{node id: {"class_type", "inputs"}}``."""
    assert workflow["version"] == 0.4
    nodes = {node["id"]: node for node in workflow["nodes"]}
    links = {link[0]: link for link in workflow["links"]}
    assert len(nodes) == len(workflow["nodes"]) <= workflow["last_node_id"]
    assert len(links) == len(workflow["links"]) and max(links) <= workflow["last_link_id"]
    used = set()
    prompt = {}
    for node in nodes.values():
        if node["type"] in _NOT_RUN:
            continue
        assert node.get("mode", 0) == 0, f"{node['type']} is muted or bypassed"
        definition = object_info[node["type"]]
        inputs = _widget_values(node, definition)
        for slot, socket in enumerate(node["inputs"]):
            if socket["link"] is not None:
                inputs[socket["name"]] = _origin(links[socket["link"]], nodes, node, slot, socket, object_info)
                used.add(socket["link"])
        missing = set(definition["input"]["required"]) - set(inputs)
        assert not missing, f"{node['type']} lacks {missing}"
        prompt[str(node["id"])] = {"class_type": node["type"], "inputs": inputs}
    assert used == set(links), "there are links that lead nowhere"
    return prompt


def _options(definition: dict) -> dict[str, list]:
    """Return type and options of each input of a node, in the order of the widgets in the browser."""
    sections = definition["input"]
    return {
        name: sections[section][name]
        for section in ("required", "optional")
        for name in definition["input_order"].get(section, ())
    }


def _widget_values(node: dict, definition: dict) -> dict[str, Any]:
    values = list(node.get("widgets_values", ()))
    inputs = {}
    for name, (kind, *rest) in _options(definition).items():
        options = rest[0] if rest else {}
        if options.get("forceInput") or not (isinstance(kind, list) or kind in _WIDGETS):
            continue
        assert values, f"{node['type']}: no saved value for the widget '{name}'"
        value = inputs[name] = values.pop(0)
        _check_value(node["type"], name, value, kind, options)
        if options.get("control_after_generate"):
            assert values.pop(0) in _CONTROLS, f"{node['type']}: '{name}' has no control value after it"
    assert not values, f"{node['type']}: {len(values)} saved values too many"
    return inputs


def _check_value(node_type: str, name: str, value: Any, kind: str | list, options: dict) -> None:
    where = f"{node_type}.{name} = {value!r}"
    choices = kind if isinstance(kind, list) else options.get("options")
    if choices is not None:
        assert value in choices, f"{where} is not one of {choices}"
    elif kind in ("INT", "FLOAT"):
        assert isinstance(value, int if kind == "INT" else (int, float)) and not isinstance(value, bool), where
        assert options.get("min", value) <= value <= options.get("max", value), where
    else:
        assert isinstance(value, bool if kind == "BOOLEAN" else str), where


def _origin(link: list, nodes: dict, node: dict, slot: int, socket: dict, object_info: dict) -> list:
    link_id, source_id, source_slot, target_id, target_slot, kind = link
    source = nodes[source_id]
    output = source["outputs"][source_slot]
    assert (target_id, target_slot) == (node["id"], slot), f"link {link_id} does not end where it is used"
    assert link_id in output["links"], f"link {link_id} is not listed in the output where it starts"
    expected = _options(object_info[node["type"]])[socket["name"]][0]
    given = object_info[source["type"]]["output"][source_slot]
    assert kind == given == output["type"] and expected == socket["type"] and expected in (given, "*"), (
        f"link {link_id} joins {given} to {expected}"
    )
    return [str(source_id), source_slot]


class Graph:
    """Prompt in API format, with methods to change it."""

    def __init__(self, prompt: dict):
        self.prompt = prompt

    def id(self, class_type: str, which: int = 0) -> str:
        return [key for key, node in self.prompt.items() if node["class_type"] == class_type][which]

    def inputs(self, class_type: str, which: int = 0) -> dict:
        return self.prompt[self.id(class_type, which)]["inputs"]

    def set(self, class_type: str, **inputs) -> Graph:
        self.inputs(class_type).update(inputs)
        return self

    def drop(self, class_type: str, *inputs: str) -> Graph:
        for name in inputs:
            del self.inputs(class_type)[name]
        return self

    def add(self, class_type: str, **inputs) -> list:
        """Add a node, and return a link to its first output."""
        key = str(max(map(int, self.prompt)) + 1)
        self.prompt[key] = {"class_type": class_type, "inputs": inputs}
        return [key, 0]

    def link(self, class_type: str, output: int = 0) -> list:
        return [self.id(class_type), output]


def text_to_image() -> Graph:
    """Return a text-to-image prompt with a new file name, because old ComfyUIs list no files of a cached output."""
    graph = Graph({"1": {"class_type": "ADTTreeModelLoader", "inputs": {"model": "bundled", "dtype": "auto"}}})
    model, clip, vae = (graph.link("ADTTreeModelLoader", output) for output in range(3))
    sockets = {
        "positive": graph.add("CLIPTextEncode", clip=clip, text="A red house on the left of a grassy field."),
        "negative": graph.add("CLIPTextEncode", clip=clip, text=""),
        "drafter": graph.add("ADTTreeDrafterLoader", model=model, drafter="bundled"),
        "settings": graph.add("ADTTreeSettings", method="auto"),
    }
    numbers = {"seed": 0, "guidance": 3.0, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "preset": "custom"}
    samples = graph.add("ADTTreeSampler", model=model, **sockets, **numbers, batch_size=1)
    images = graph.add("VAEDecode", samples=samples, vae=vae)
    graph.add("SaveImage", images=images, filename_prefix=uuid.uuid4().hex)
    return graph
