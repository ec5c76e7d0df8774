"""What a server keeps: nothing of ours when it is told to free its memory, and no more after many runs than after a few."""

import os
import time
from statistics import median

import pytest

RUNS = int(os.environ.get("ADT_TREE_RUNS", 12))
"""Queued runs that must not grow the server; a thorough check takes 50."""
SETTLED = 4
"""Runs before and after them whose median counts: the allocator's moods pass."""


def memory(comfy) -> dict:
    """What the probe finds, see ``probe_nodes``."""
    return comfy.get("/probe/memory")


@pytest.fixture
def everything(graph):
    """The shipped workflow and a batch of one, with a weak reference to everything that they make."""
    model, drafter = graph.link("ADTTreeModelLoader"), graph.link("ADTTreeDrafterLoader")
    values = {"file": "(the text below)", "text": "a red car", "caption": "first", "filter": "", "start": 0, "count": 1, "shuffle": 0}
    sampling = {"seed": 0, "guidance": 3.0, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "negative": "", "chunk_size": 1}
    results = [graph.add("ADTTreeBatchSampler", model=model, drafter=drafter, prompts=graph.add("ADTTreePrompts", **values), **sampling)[0], 2]
    sheet = graph.add("ADTTreeCollector", results=results, name="memory", columns=0, thumbnail=192, label="id")
    graph.add("ProbeWatch", model=model, clip=graph.link("ADTTreeModelLoader", 1), vae=graph.link("ADTTreeModelLoader", 2), drafter=drafter,
              positive=graph.link("CLIPTextEncode"), samples=graph.link("ADTTreeSampler"), trace=graph.link("ADTTreeSampler", 1),
              images=graph.link("VAEDecode"), results=results, sheet=sheet)
    return graph


def test_nothing_stays_when_memory_is_freed(comfy, everything):
    comfy.run(everything.prompt)
    held = memory(comfy)
    assert {"model", "decoder", "codec", "drafter", "network", "patcher", "trace", "vectors", "results"} <= set(held["alive"]), "ComfyUI keeps outputs"
    assert {"Decoder", "Trace", "BatchResults"} <= set(held["classes"]) and not {"Decoding", "KVCache"} & set(held["classes"]), "caches go with their run"
    comfy.post("/free", {"unload_models": True, "free_memory": True})
    deadline = time.monotonic() + 20
    while (left := memory(comfy))["alive"] and time.monotonic() < deadline:  # the server frees when it next looks, once a second
        time.sleep(0.2)
    assert left["alive"] == []
    assert not set(left["classes"]) - {"Drafting", "Family", "Lantern", "Pairing", "Preset", "Sampling", "_Names"}, "only settings that are constants"


def test_many_runs_do_not_grow_the_server(comfy, graph):
    """A run takes some 10 MB of caches; what one kept would show in the sum of many."""
    graph.set("ADTTreeDrafterLoader", drafter="jacobi").drop("ADTTreeSampler", "settings")
    sizes = []
    for seed in range(2 + RUNS + SETTLED):
        comfy.run(graph.set("ADTTreeSampler", seed=2000 + seed).prompt)
        sizes.append(memory(comfy)["bytes"] / 2**20)
    before, after = median(sizes[2 : 2 + SETTLED]), median(sizes[-SETTLED:])
    assert after - before < RUNS, f"more than 1 MB a run: {[round(size) for size in sizes]} MB"
