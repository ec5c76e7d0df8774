"""Tests of saved maps: their size, the digest of a node's inputs, and their place in workflows.

A map is the data of the widget that shows how an image was decoded. Its home is the workflow and the node that show it.
"""

import json
import random
import time
from types import SimpleNamespace

import pytest
from adt_tree_pack.nodes.saved_map import attach, digest, homes, pack, remind

from adt_core.rules.trace import ImageRound, Round

PROMPT = {
    "1": {"class_type": "Loader", "inputs": {"model": "bundled"}},
    "2": {"class_type": "Text", "inputs": {"text": "a house", "clip": ["1", 1]}},
    "3": {"class_type": "ADTTreeSampler", "inputs": {"model": ["1", 0], "positive": ["2", 0], "seed": 5}},
    "4": {"class_type": "Save", "inputs": {"images": ["3", 0], "name": "x"}},
}


def changed(node: str, **inputs) -> dict:
    prompt = json.loads(json.dumps(PROMPT))
    prompt[node]["inputs"].update(inputs)
    return prompt


def test_a_map_of_90_by_90_tokens_in_2000_rounds_has_less_than_32_kilobytes():
    draw = random.Random(1)
    rounds = []
    position = 0
    for index in range(2000):
        depth = draw.randint(2, 12)
        levels = tuple(draw.randint(1, 6) for _ in range(depth))
        accepted = min(draw.randint(0, 6), depth)
        share = ImageRound(0, position, 12, 6, depth, sum(levels), accepted, (), 0, max(levels), levels)
        position += accepted + 1
        rounds.append(Round(index, draw.uniform(0.02, 0.05), draw.uniform(0.002, 0.006), depth, (share,)))
    assert len(pack(rounds)) < 32_000


def test_the_digest_depends_on_all_inputs_of_a_node():
    own = digest(PROMPT, "3")
    assert own == digest(changed("4", name="another"), "3")
    assert own == digest({key.replace("3", "33"): node for key, node in PROMPT.items()}, "33")
    assert own == digest(changed("3", seed=5), "3")
    for other in (changed("3", seed=6), changed("2", text="a barn"), changed("1", model="tiny")):
        assert own != digest(other, "3")


def test_invalid_prompts_have_no_digest_and_are_not_changed():
    for prompt in ({}, {"3": None}, {"3": {"inputs": []}}, {"3": {"class_type": "x", "inputs": {"a": [["3"], 0]}}}):
        assert digest(prompt, "3") is None
    loop = {"3": {"class_type": "ADTTreeSampler", "inputs": {"a": ["3", 0]}}}
    for request in ({}, {"prompt": []}, {"prompt": loop, "extra_data": {"extra_pnginfo": {"workflow": {"extra": []}}}}):
        assert remind(request) is request


@pytest.fixture
def many():
    """Return a request of 4 MB with 500 samplers, whose nodes have 20 inputs each, and with a workflow."""
    prompt = {}
    for number in range(5_000):
        kind = "ADTTreeSampler" if number % 10 == 9 else "Text"
        before = min(20, number % 100)  # ComfyUI's own functions are recursive, too: no chain is longer than 100 nodes
        links = {f"link{n}": [str(number - n - 1), 0] for n in range(before)}
        prompt[str(number)] = {"class_type": kind, "inputs": {"text": f"{number}".rjust(400), **links}}
    nodes = [{"id": n, "properties": {"adt_tree_map": {"tag": f"t{n}"}}} for n in range(5_000)]
    assert len(json.dumps(prompt)) > 3e6
    return {"prompt": prompt, "extra_data": {"extra_pnginfo": {"workflow": {"id": "w", "nodes": nodes}}}}


def test_many_samplers_are_handled_in_less_than_a_second(many):
    """The server answers no other request meanwhile."""
    samplers = [number for number, node in many["prompt"].items() if node["class_type"] == "ADTTreeSampler"]
    attach(hidden_of(many, samplers[-1]), [{"data": "a map"}])
    began = time.process_time()
    remind(many)
    places = homes(many)
    assert time.process_time() - began < 1
    assert places == {number: f"w t{number}" for number in samplers} and len(places) == 500
    maps = many["extra_data"]["extra_pnginfo"]["workflow"]["extra"]["adt_tree_maps"]
    assert maps == {samplers[-1]: {"parts": [{"data": "a map"}], "cached": True}}


def test_shared_digests_are_those_of_single_calls(many):
    prompt = dict(list(many["prompt"].items())[:250])
    prompt["broken"] = {"class_type": "Text"}
    prompt["below"] = {"class_type": "ADTTreeSampler", "inputs": {"a": ["broken", 0], "b": ["9", 0]}}
    known = {}
    assert [digest(prompt, key, known) for key in prompt] == [digest(prompt, key) for key in prompt]
    assert digest(prompt, "below") is None and digest(prompt, "249") is not None


def hidden_of(request, number):
    """Return the hidden inputs of a node of a request."""
    return SimpleNamespace(unique_id=number, prompt=request["prompt"], extra_pnginfo={"workflow": {}})


def test_maps_are_removed_from_a_queued_workflow():
    request = {"prompt": PROMPT, "extra_data": {"extra_pnginfo": {"workflow": {"extra": {"adt_tree_maps": {"3": {}}}}}}}
    remind(request)
    assert request["extra_data"]["extra_pnginfo"]["workflow"]["extra"] == {"adt_tree_maps": {}}


ODD = [None, "", 0, [], "x", 5, [5], {"3": 5}, {"3": None}, {"3": []}]


@pytest.mark.parametrize("odd", ODD, ids=repr)
def test_a_map_replaces_any_value_in_a_workflow(odd):
    for extra in ({"adt_tree_maps": odd}, odd):
        workflow = {"id": "x", "extra": extra}
        remind({"prompt": PROMPT, "extra_data": {"extra_pnginfo": {"workflow": json.loads(json.dumps(workflow))}}})
        attach(SimpleNamespace(extra_pnginfo={"workflow": workflow}, prompt=PROMPT, unique_id="3"), [{"id": "a"}])
        assert workflow["extra"]["adt_tree_maps"]["3"] == {"parts": [{"id": "a"}]}


@pytest.mark.parametrize("odd", ODD, ids=repr)
def test_invalid_workflows_are_not_changed(odd):
    for request in ({"prompt": PROMPT, "extra_data": odd}, {"prompt": PROMPT, "extra_data": {"extra_pnginfo": odd}}):
        assert remind(request) is request
    for extra_pnginfo in (odd, {"workflow": odd if not isinstance(odd, dict) else None}):
        attach(SimpleNamespace(extra_pnginfo=extra_pnginfo, prompt=odd, unique_id="3"), [])


def queued(workflow: object, *numbers: str) -> dict:
    prompt = {number: {"class_type": "ADTTreeSampler", "inputs": {}} for number in numbers}
    return {"prompt": prompt | {"9": {"class_type": "Save"}}, "extra_data": {"extra_pnginfo": {"workflow": workflow}}}


def tagged(number: int | str, tag: object) -> dict:
    return {"id": number, "type": "ADTTreeSampler", "properties": {"adt_tree_map": {"tag": tag}}}


def test_homes_have_the_workflow_and_the_tag_of_the_node_also_in_subgraphs():
    inner = {"id": "sub", "nodes": [tagged(5, "b"), {"id": 6, "type": "subsub"}]}
    subgraphs = [inner, {"id": "subsub", "nodes": [tagged(7, "c")]}]
    nodes = [tagged(3, "a"), {"id": 12, "type": "sub"}, tagged(4, None), {"id": 8, "type": "ADTTreeSampler"}]
    workflow = {"id": "w", "nodes": nodes, "definitions": {"subgraphs": subgraphs}}
    found = homes(queued(workflow, "3", "12:5", "12:6:7", "4", "8", "77", "3:5", "12:99"))
    assert found == {"3": "w a", "12:5": "w b", "12:6:7": "w c"}
    assert homes({"prompt": {}}) is None and homes(queued(workflow)) == {}


@pytest.mark.parametrize("odd", ODD, ids=repr)
def test_nodes_of_invalid_workflows_have_no_home(odd):
    for workflow in (
        {"nodes": odd},
        {"nodes": [odd]},
        {"nodes": [{"id": 3, "properties": odd}]},
        {"nodes": [tagged(3, odd)]},
    ):
        assert homes(queued(workflow, "3", "3:5")) in ({}, {"3": f"None {odd}"} if isinstance(odd, str) else {})
