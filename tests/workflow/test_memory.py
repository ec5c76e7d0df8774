"""Tests of a server's memory.

After the user frees the memory, no object of the pack may remain. Over many runs, the memory may not grow.
"""

import os
from statistics import median

import pytest
from convert import Graph
from small import TINY

RUNS = int(os.environ.get("ADT_TREE_RUNS", 12))
"""Number of runs in the test of memory growth. The test with a second model does half of them. For a thorough check,
set the environment variable ADT_TREE_RUNS to 50."""
SETTLED = 4
"""The allocator's memory fluctuates. The test therefore compares the median of the first 4 and of the last 4 runs."""


@pytest.fixture
def watched(graph):
    """Return a workflow that continues an image, with a probe node that keeps weak references to all its objects."""
    graph.set("ADTTreeModelLoader", model=TINY)
    vae = graph.link("ADTTreeModelLoader", 2)
    picture = graph.add("EmptyImage", width=96, height=96, batch_size=1, color=0x336699)
    graph.set("ADTTreeSampler", latent_image=graph.add("VAEEncode", pixels=picture, vae=vae), keep_top=0.5)
    model, clip = graph.link("ADTTreeModelLoader"), graph.link("ADTTreeModelLoader", 1)
    drafter, positive = graph.link("ADTTreeDrafterLoader"), graph.link("CLIPTextEncode")
    drawn = {"samples": graph.link("ADTTreeSampler"), "trace": graph.link("ADTTreeSampler", 1)}
    drawn["images"] = graph.link("VAEDecode")
    graph.add("ProbeWatch", model=model, clip=clip, vae=vae, drafter=drafter, positive=positive, **drawn)
    return graph


@pytest.fixture
def watched_batch(watched):
    links = {"model": watched.link("ADTTreeModelLoader"), "drafter": watched.link("ADTTreeDrafterLoader")}
    batch, _ = watched.add("ADTTreeBatchSampler", **links, prompts="a red car", seed=0)
    sheet = watched.add("ADTTreeBatchReport", results=[batch, 2], filename="memory")
    watched.set("ProbeWatch", results=[batch, 2], sheet=sheet)
    return watched


@pytest.fixture
def short(graph):
    """Return a fast workflow: it generates the last row of an image, with all caches of a complete image."""
    picture = graph.add("EmptyImage", width=128, height=128, batch_size=1, color=0x336699)
    latent = graph.add("VAEEncode", pixels=picture, vae=graph.link("ADTTreeModelLoader", 2))
    graph.set("ADTTreeDrafterLoader", drafter="jacobi").drop("ADTTreeSampler", "settings")
    return graph.set("ADTTreeSampler", latent_image=latent, keep_top=0.95)


MADE = {"model", "decoder", "codec", "drafter", "network", "patcher", "trace", "vectors"}
"""Objects that a run uses or creates, as the probe node names them."""
CONSTANTS = {
    "CpuSample",  # one per process, if torch uses several threads
    "RoundRows",
    *("Acceptance", "AdtTreeSettings", "BatchArgs", "CostEstimate", "Download", "DraftMode", "DraftSettings"),
    *("Budget", "CudaPinner", "NetworkKind", "Placement", "PredictedSettings", "Resident"),
    *("Drafting", "Family", "ShapeSettings", "ImageToImageArgs", "InvarianceReport", "Kind", "Lantern"),
    *("Loading", "Message", "Option", "PaperFigures", "Pairing", "Part", "Preset", "Published", "PublishedSampling"),
    *("Recipe", "Runtime", "Sampling", "Shape", "Tooltips", "WorkerArgs", "_LowerBound"),
}
"""Classes of the pack whose instances may exist until the process ends, for example settings and tables."""


@pytest.mark.smoke
@pytest.mark.small_models
def test_freeing_memory_releases_all_objects(comfy, watched):
    comfy.run(watched.prompt, preview_method="auto")
    check_memory_is_freed(comfy, alive=MADE, classes={"Decoder", "Trace"})


@pytest.mark.small_models
def test_freeing_memory_releases_all_objects_of_a_batch(comfy, watched_batch):
    comfy.run(watched_batch.prompt, preview_method="auto")
    check_memory_is_freed(comfy, alive=MADE | {"results"}, classes={"Decoder", "Trace", "BatchResults"})


def check_memory_is_freed(comfy, alive: set[str], classes: set[str]) -> None:
    """Check that objects ``alive`` and instances of ``classes`` exist. Free the memory and check that all are gone."""
    held = comfy.get("/probe/memory")
    assert alive <= set(held["alive"]) and classes <= set(held["classes"]), "ComfyUI keeps outputs"
    assert not {"Decoding", "KVCache"} & set(held["classes"]), "caches are released after their run"
    assert comfy.free_until(lambda: not remaining_objects(comfy), seconds=20, free_memory=True), remaining_objects(
        comfy
    )


def remaining_objects(comfy) -> set[str]:
    """Return the watched objects that still exist, and the pack's classes that still have instances."""
    found = comfy.get("/probe/memory")
    return {*found["alive"], *found["classes"]} - CONSTANTS


def check_growth(sizes: list[float]) -> None:
    """Check that the memory has grown by less than a MB per run (`RUNS`). ``sizes`` are in MB."""
    assert median(sizes[-SETTLED:]) - median(sizes[:SETTLED]) < RUNS, [round(size) for size in sizes]


def test_unloading_for_other_models_neither_changes_images_nor_leaks(comfy, short):
    """The model of a stock sampler makes ComfyUI unload our model in every run. Then our model is loaded again."""
    stock = Graph({"1": {"class_type": "ProbeDiffusionModel", "inputs": {}}})
    embedding = stock.add("ProbeEmbedding")
    sampler = {"seed": 1, "steps": 2, "cfg": 1.0, "sampler_name": "euler", "scheduler": "normal", "denoise": 1.0}
    sampler |= {"latent_image": stock.add("EmptyLatentImage", width=64, height=64, batch_size=1)}
    pressed = stock.add("ProbePressure", model=["1", 0], run=0)
    samples = stock.add("KSampler", model=pressed, positive=embedding, negative=embedding, **sampler)
    stock.add("SaveLatent", samples=samples, filename_prefix="stock")
    sizes = []
    first = None
    for run in range(1, 2 + RUNS // 2 + SETTLED):
        outputs = comfy.run(short.set("ADTTreeSampler", seed=[2900, 2901][run % 2]).prompt, preview_method="auto")
        (pixels,) = comfy.images(outputs)
        if run % 2:
            first = pixels if first is None else first
            assert (pixels == first).all()
        assert comfy.run(stock.set("ProbePressure", run=run).prompt)
        sizes.append(comfy.get("/probe/bytes")["bytes"] / 2**20)
    check_growth(sizes[1:])


@pytest.mark.long
def test_many_runs_do_not_grow_the_server(comfy, short):
    """A run allocates about 10 MB of caches. If the caches leaked, the growth would be visible after many runs."""
    sizes = []
    for seed in range(2 + RUNS + SETTLED):
        comfy.run(short.set("ADTTreeSampler", seed=2000 + seed).prompt, preview_method="auto")
        sizes.append(comfy.get("/probe/bytes")["bytes"] / 2**20)
    check_growth(sizes[2:])
