"""What a server keeps: nothing of ours when it is told to free its memory, and no more after many runs than after a
few."""

import os
from statistics import median

import pytest
from convert import Graph
from images import images
from small import TINY

RUNS = int(os.environ.get("ADT_TREE_RUNS", 12))
"""Queued runs that must not grow the server, and half as many beside another model; a thorough check takes 50."""
SETTLED = 4
"""Runs before and after them whose median counts: the allocator's moods pass."""


def memory(comfy) -> dict:
    """What the probe finds, see ``probe_nodes``."""
    return comfy.get("/probe/memory")


@pytest.fixture
def watched(graph):
    """The shipped workflow that draws half an image, with a weak reference to everything that it makes."""
    graph.set("ADTTreeModelLoader", model=TINY)
    vae = graph.link("ADTTreeModelLoader", 2)
    picture = graph.add("EmptyImage", width=96, height=96, batch_size=1, color=0x336699)
    graph.set("ADTTreeSampler", latent_image=graph.add("VAEEncode", pixels=picture, vae=vae), keep=0.5)
    graph.add(
        "ProbeWatch",
        model=graph.link("ADTTreeModelLoader"),
        clip=graph.link("ADTTreeModelLoader", 1),
        vae=vae,
        drafter=graph.link("ADTTreeDrafterLoader"),
        positive=graph.link("CLIPTextEncode"),
        samples=graph.link("ADTTreeSampler"),
        trace=graph.link("ADTTreeSampler", 1),
        images=graph.link("VAEDecode"),
    )
    return graph


@pytest.fixture
def watched_batch(watched):
    """The same, and a batch of one."""
    plugs = {"model": watched.link("ADTTreeModelLoader"), "drafter": watched.link("ADTTreeDrafterLoader")}
    batch, _ = watched.add("ADTTreeBatchSampler", **plugs, prompts="a red car", seed=0)
    sheet = watched.add("ADTTreeCollector", results=[batch, 2], name="memory")
    watched.set("ProbeWatch", results=[batch, 2], sheet=sheet)
    return watched


@pytest.fixture
def short(graph):
    """The shipped workflow with the drafter that needs no files, drawing the last row of a picture only: that takes the
    caches of a whole one, and a fraction of the time."""
    picture = graph.add("EmptyImage", width=128, height=128, batch_size=1, color=0x336699)
    latent = graph.add("VAEEncode", pixels=picture, vae=graph.link("ADTTreeModelLoader", 2))
    graph.set("ADTTreeDrafterLoader", drafter="jacobi").drop("ADTTreeSampler", "settings")
    return graph.set("ADTTreeSampler", latent_image=latent, keep=0.95)


MADE = {"model", "decoder", "codec", "drafter", "network", "patcher", "trace", "vectors"}
"""What an image takes and makes, by the names that the probe has for it."""
CONSTANTS = {
    *(
        "ImageToImageArgs",
        "Drafting",
        "WorkerArgs",
        "Family",
        "Kind",
        "Lantern",
        "Loading",
        "BatchArgs",
        "Option",
        "Pairing",
    ),
    *("Preset", "Published", "Recipe", "Sampling", "Shape", "Acceptance"),
    *(
        "DraftSettings",
        "Source",
        "FixedSettings",
        "AdtTreeSettings",
        "Download",
        "PublishedSampling",
        "Remedy",
        "Values",
        "_LowerBound",
    ),
}
"""Classes of the pack with instances that modules and schemas hold: settings, tables and bounds."""


@pytest.mark.smoke
@pytest.mark.small_models
def test_nothing_stays_when_memory_is_freed(comfy, watched):
    comfy.run(watched.prompt, preview_method="auto")
    all_goes(comfy, alive=MADE, classes={"Decoder", "Trace"})


@pytest.mark.small_models
def test_nothing_of_a_batch_stays_when_memory_is_freed(comfy, watched_batch):
    comfy.run(watched_batch.prompt, preview_method="auto")
    all_goes(comfy, alive=MADE | {"results"}, classes={"Decoder", "Trace", "BatchResults"})


def all_goes(comfy, alive: set[str], classes: set[str]) -> None:
    """Check that what was made, and instances of these classes, are alive, and that all of it goes with the memory."""
    held = memory(comfy)
    assert alive <= set(held["alive"]) and classes <= set(held["classes"]), "ComfyUI keeps outputs"
    assert not {"Decoding", "KVCache"} & set(held["classes"]), "caches go with their run"
    assert comfy.free_until(lambda: not what_stays(comfy), seconds=20, free_memory=True), what_stays(comfy)


def what_stays(comfy) -> set[str]:
    """What was watched and is still there, and the classes of the pack that still have instances."""
    found = memory(comfy)
    return {*found["alive"], *found["classes"]} - CONSTANTS


def test_other_models_come_and_go_between_our_runs(comfy, short):
    """A stock sampler's model pushes ours out every time, and ours comes back: the same image, no error, no growth."""
    stock = Graph({"1": {"class_type": "ProbeDiffusionModel", "inputs": {}}})
    theirs = stock.add("ProbeEmbedding")
    sampler = {"seed": 1, "steps": 2, "cfg": 1.0, "sampler_name": "euler", "scheduler": "normal", "denoise": 1.0}
    sampler |= {"latent_image": stock.add("EmptyLatentImage", width=64, height=64, batch_size=1)}
    pressed = stock.add("ProbePressure", model=["1", 0], run=0)
    samples = stock.add("KSampler", model=pressed, positive=theirs, negative=theirs, **sampler)
    stock.add("SaveLatent", samples=samples, filename_prefix="stock")
    sizes, first = [], None
    for run in range(1, 2 + RUNS // 2 + SETTLED):
        outputs = comfy.run(short.set("ADTTreeSampler", seed=[2900, 2901][run % 2]).prompt, preview_method="auto")
        (pixels,) = images(comfy, outputs)
        if run % 2:
            first = pixels if first is None else first
            assert (pixels == first).all()
        assert comfy.run(stock.set("ProbePressure", run=run).prompt)
        sizes.append(comfy.get("/probe/bytes")["bytes"] / 2**20)
    before, after = median(sizes[1 : 1 + SETTLED]), median(sizes[-SETTLED:])
    assert after - before < RUNS, f"more than 2 MB a run: {[round(size) for size in sizes]} MB"


@pytest.mark.long
def test_many_runs_do_not_grow_the_server(comfy, short):
    """A run takes some 10 MB of caches; what one kept would show in the sum of many."""
    sizes = []
    for seed in range(2 + RUNS + SETTLED):
        comfy.run(short.set("ADTTreeSampler", seed=2000 + seed).prompt, preview_method="auto")
        sizes.append(comfy.get("/probe/bytes")["bytes"] / 2**20)
    before, after = median(sizes[2 : 2 + SETTLED]), median(sizes[-SETTLED:])
    assert after - before < RUNS, f"more than 1 MB a run: {[round(size) for size in sizes]} MB"
