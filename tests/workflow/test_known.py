"""Who asks the bundled model for nothing that it knows reads that under the node, after the run."""

import json

import pytest
from comfy_server import ROOT
from convert import Graph, to_prompt
from small import with_small_models
from test_batch import TEXT

TOLD = "This small model knows houses, boats, balloons, mugs and the like, and drew something else for "


def lines_under(comfy, graph: Graph, kind: str) -> list[str]:
    """Runs a prompt. The lines of text under its node of a kind."""
    with comfy.socket() as browser:
        comfy.wait(comfy.queue(graph.prompt, browser.id), timeout=300)
        browser.wait_for(lambda m: m.type == "execution_success")
        said = [m.data for m in browser.messages if m.type == TEXT]
    node = graph.id(kind).encode()
    begins = len(node).to_bytes(4, "big") + node
    return [line.removeprefix(begins).decode() for line in said if line.startswith(begins)]


@pytest.mark.contract
def test_under_the_sampler(comfy, graph):
    """Only the positive prompt is asked for."""
    graph.set("CLIPTextEncode", text="a cat in 2024").set("ADTTreeSampler", seed=1)
    negative, _ = graph.add("CLIPTextEncode", clip=graph.link("ADTTreeModelLoader", 1), text="ugly")
    graph.set("ADTTreeSampler", negative=[negative, 0])
    assert lines_under(comfy, graph, "ADTTreeSampler") == [f"{TOLD}'a cat in 2024'."]
    graph.set("CLIPTextEncode", text="a cat in a red house")
    assert lines_under(comfy, graph, "ADTTreeSampler") == []


def test_not_under_another_models(comfy, graph):
    graph.set("CLIPTextEncode", text="a cat in 2025")
    assert lines_under(comfy, with_small_models(graph), "ADTTreeSampler") == []


def test_under_the_batch_sampler(comfy, object_info):
    """Also of images that were made before."""
    file = ROOT / "workflows" / "ADT-Tree batch of prompts with report.json"
    batch = Graph(to_prompt(json.loads(file.read_text(encoding="utf-8")), object_info))
    batch.set("ADTTreePrompts", file="(the text below)", text="a cat\na boat\n\n房子", count=0)
    batch.set("ADTTreeBatchSampler", seed=1, folder="unknown", chunk_size=3)
    for _ in range(2):
        *_, last = lines_under(comfy, batch, "ADTTreeBatchSampler")
        assert last.startswith("The images are in output/adt_tree_batches/unknown-")
        assert last.endswith(f". {TOLD}2 of 3 prompts: 'a cat', '房子'.")
        batch.set("ADTTreeBatchSampler", chunk_size=2)
    batch.set("ADTTreePrompts", text="a boat")
    assert not any(TOLD in line for line in lines_under(comfy, batch, "ADTTreeBatchSampler"))


def test_under_compare(comfy, object_info):
    file = ROOT / "workflows" / "ADT-Tree compared with plain decoding.json"
    graph = Graph(to_prompt(json.loads(file.read_text(encoding="utf-8")), object_info))
    graph.set("CLIPTextEncode", text="a cat")
    assert lines_under(comfy, graph, "ADTTreeCompare") == [f"{TOLD}'a cat'."]
