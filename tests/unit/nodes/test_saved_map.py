"""Tests of saved maps: their size, the digest of a node's inputs, and their place in workflows.

A map is the data of the widget that shows how an image was decoded. Its home is the workflow and the node that show it.
"""

import io
import json
import random
import time
from types import SimpleNamespace

import pytest
from adt_tree_pack.nodes.saved_map import MAX_SAVED, attach, digest, owners, pack, remind, shortened, texts_of
from PIL import Image

from adt_core.trace import ImageRound, Round
from tests.workflow.saved import unpack

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


def emu3_rounds(images: int, tokens: int = 90 * 91) -> list[Round]:
    """Return rounds that generate images of Emu3's size, with random trees."""
    draw = random.Random(1)
    positions = [0] * images
    rounds = []
    while min(positions, default=tokens) < tokens - 1:
        records = []
        for image, position in enumerate(positions):
            depth = draw.randint(2, 12)
            levels = tuple(draw.randint(1, 6) for _ in range(depth))
            accepted = min(draw.choice((0, 0, 1, 1, 2, 2, 3, 4, 6)), depth, tokens - 2 - position)
            if position < tokens - 1:
                shape = depth, sum(levels), accepted, (), 0, max(levels), levels
                records.append(ImageRound(image, position, 12, 6, *shape))
                positions[image] += accepted + 1
        times = draw.uniform(0.02, 0.05), draw.uniform(0.002, 0.006)
        rounds.append(Round(len(rounds), *times, 12, tuple(records)))
    return rounds


def test_a_map_of_90_by_90_tokens_in_2800_rounds_has_less_than_38_kilobytes():
    rounds = emu3_rounds(images=1)
    assert len(rounds) > 2700 and len(pack(rounds)) < 38_000


@pytest.mark.parametrize(
    "images, most, keeps_times, kept",
    [(2, 40_000, True, 2), (2, 20_000, False, 2), (3, 12_000, False, 1), (2, 1000, False, 0), (0, 1000, True, 0)],
)
def test_a_long_map_is_shortened(images, most, keeps_times, kept):
    """Each step leaves out less important details. Tokens per round stay exact for all images that are kept."""
    rounds = emu3_rounds(images, tokens=90 * 91 if images else 0)
    short = shortened(rounds, most)
    assert len(short) <= most
    found = unpack({"data": short})
    assert [len(records) for _, _, *records in found] == [sum(s.image < kept for s in r.images) for r in rounds]
    for (ms, drafting, *records), entry in zip(found, rounds):
        assert ([ms, drafting] == [round(1000 * x, 2) for x in (entry.seconds, entry.drafting)]) == keeps_times
        for record, own in zip(records, entry.images):
            assert record[:2] + record[4:8] == [own.image, own.position, own.depth, own.width, own.drafts, own.accepted]
            assert record[10] == [0] * own.depth, "the page draws no tree if the drafts on its levels are unknown"
    total = sum(entry.seconds for entry in rounds)
    assert sum(ms for ms, *_ in found) == pytest.approx(1000 * total, rel=1e-3)


@pytest.mark.parametrize("parts", [1, 2])
def test_the_maps_of_eight_images_of_emu3_fit_into_a_jpeg(parts):
    """JPEG stores at most 64 KB of metadata. Nodes that save JPEG store the workflow there. Compare makes two runs."""
    graph = {"nodes": ["x" * 4000], "extra": {}}
    data = shortened(emu3_rounds(images=8), MAX_SAVED // parts)
    own = {"data": data, "thumbnails": ["x" * (16_000 // parts)]}
    exif = Image.Exif()
    exif[0x010E] = json.dumps({**graph, "extra": {"adt_tree_maps": {"3": {"parts": [own] * parts}}}})
    Image.new("RGB", (8, 8)).save(io.BytesIO(), "JPEG", exif=exif)


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
    """Return a request with 500 samplers and a workflow. All nodes use a text of 4 MB, and 20 nodes before them."""
    prompt = {"text": {"class_type": "Text", "inputs": {"text": "a red house " * 350_000}}}
    for number in range(5_000):
        kind = "ADTTreeSampler" if number % 10 == 9 else "Text"
        before = min(20, number % 100)  # ComfyUI's own functions are recursive, too: no chain is longer than 100 nodes
        links = {f"link{n}": [str(number - n - 1), 0] for n in range(before)}
        prompt[str(number)] = {"class_type": kind, "inputs": {"number": number, "text": ["text", 0], **links}}
    nodes = [{"id": n, "properties": {"adt_tree_map": {"tag": f"t{n}"}}} for n in range(5_000)]
    assert len(json.dumps(prompt)) > 3e6
    return {"prompt": prompt, "extra_data": {"extra_pnginfo": {"workflow": {"id": "w", "nodes": nodes}}}}


def test_many_samplers_are_handled_in_less_than_a_second(many):
    """The server answers no other request meanwhile."""
    samplers = [number for number, node in many["prompt"].items() if node["class_type"] == "ADTTreeSampler"]
    attach(hidden_of(many, samplers[-1]), [{"data": "a map"}])
    began = time.process_time()
    remind(many)
    places = owners(many)["homes"]
    assert time.process_time() - began < 1
    assert places == {number: f"w t{number}" for number in samplers} and len(places) == 500
    maps = many["extra_data"]["extra_pnginfo"]["workflow"]["extra"]["adt_tree_maps"]
    assert maps == {samplers[-1]: {"parts": [{"data": "a map", "texts": {}}], "cached": True}}


def test_shared_digests_are_those_of_single_calls(many):
    prompt = dict(list(many["prompt"].items())[:250])
    prompt["text"]["inputs"]["text"] = "a red house"
    prompt["broken"] = {"class_type": "Text"}
    prompt["below"] = {"class_type": "ADTTreeSampler", "inputs": {"a": ["broken", 0], "b": ["9", 0]}}
    known = {}
    assert [digest(prompt, key, known) for key in prompt] == [digest(prompt, key) for key in prompt]
    assert digest(prompt, "below") is None and digest(prompt, "248") is not None


def hidden_of(request, number):
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
    found = owners(queued(workflow, "3", "12:5", "12:6:7", "4", "8", "77", "3:5", "12:99"))["homes"]
    assert found == {"3": "w a", "12:5": "w b", "12:6:7": "w c"}
    assert owners({"prompt": {}}) is None and owners(queued(workflow))["homes"] == {}


@pytest.mark.parametrize("odd", ODD, ids=repr)
def test_nodes_of_invalid_workflows_have_no_home(odd):
    valid = {"3": f"None {odd}"} if isinstance(odd, str) else {}
    for nodes in (odd, [odd], [{"id": 3, "properties": odd}], [tagged(3, odd)]):
        assert owners(queued({"nodes": nodes}, "3", "3:5"))["homes"] in ({}, valid)


def test_map_of_another_workflow_gets_the_texts_of_this_one():
    """A cached run was made in a workflow whose nodes have other ids. The page would write into the wrong node."""

    def request(positive: str, negative: str) -> dict:
        prompt = {
            positive: {"class_type": "CLIPTextEncode", "inputs": {"text": "a house", "clip": ["9", 1]}},
            negative: {"class_type": "CLIPTextEncode", "inputs": {"text": "fog" * 40_000, "clip": ["9", 1]}},
            "9": {"class_type": "ADTTreeModelLoader", "inputs": {"model": "bundled"}},
        }
        links = {"positive": [positive, 0], "negative": [negative, 0]}
        prompt["7"] = {"class_type": "ADTTreeSampler", "inputs": links}
        return {"prompt": prompt, "extra_data": {"extra_pnginfo": {"workflow": {"id": "w", "nodes": []}}}}

    first, second = request("1", "2"), request("2", "1")
    attach(hidden_of(first, "7"), [{"data": "a map", "texts": texts_of(first["prompt"], "7")}])
    remind(second)
    (part,) = second["extra_data"]["extra_pnginfo"]["workflow"]["extra"]["adt_tree_maps"]["7"]["parts"]
    assert part == {"data": "a map", "texts": {"2": {"text": "a house"}}}, "very long texts are left out"
    assert owners(second)["texts"] == {"7": part["texts"]} and owners(second)["workflow"] == "w"
