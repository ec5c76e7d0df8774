"""Run, Unload Models, Run again: every workflow gives the same images wherever its weights have been meanwhile."""

import time
import uuid
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from comfy_server import FLOOR, NEWEST, PACKS, Comfy
from convert import Graph, to_prompt
from small import with_small_models, write_small
from test_errors import benchmark
from test_run import images
from test_workflows import NAMES, read, write_upscaler

MOVING = {**PACKS, "moving": Path(__file__).parent / "moving_nodes"}
"""Packs of a server whose weights move as they do where there is a GPU."""
BATCH = "ADT-Tree batch of prompts with report"
"""The workflow for the oldest supported ComfyUI: its nodes read weights in several places."""
FIRST = {
    "ADT-Tree text to image (start here)",
    "ADT-Tree compared with plain decoding",
    "ADT-Tree continue a picture",
    "ADT-Tree LlamaGen text to image",
    BATCH,
}
"""Workflows that have, together, every node that reads weights, and the family with the most parts."""
SIZES = {"ADT-Tree Lumina-mGPT text to image": (96, 64), "ADT-Tree Emu3 text to image": (48, 40)}
"""In pixels, for models that draw several: these are quick."""


@pytest.fixture(scope="module")
def moving(release, tmp_path_factory):
    """A server on which all workflows find what they need, made small: other models are random and have their names."""
    from tests.layouts.published import write_published

    base = tmp_path_factory.mktemp(f"moving-{release.version}")
    folder = base / "models" / "ar_image"
    write_published(folder)
    write_small(base / "models")
    write_upscaler(base / "models" / "upscale_models")
    with Comfy(release, base, MOVING, ("--preview-method", "auto")) as server:
        yield server


def moves(server) -> dict:
    """How often weights have been loaded and unloaded."""
    return server.get("/moving/moves")


def unload(server) -> None:
    """What the button Unload Models does."""
    before = moves(server)["unloaded"]
    assert server.free_until(lambda: moves(server)["unloaded"] > before, seconds=120), "nothing was unloaded"


def wait_until(true: Callable[[], bool], seconds: float = 60) -> bool:
    """For a server that does what it is asked to when it next looks: whether it became true within so many seconds."""
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def run(server, graph: Graph, seed: int) -> dict[str, np.ndarray]:
    """What nodes show or save with this seed of the last sampler, by node and number. It runs, and loads weights."""
    for node in graph.prompt.values():
        if node["class_type"] == "SaveImage":
            node["inputs"]["filename_prefix"] = uuid.uuid4().hex
    *_, last = (node for node in graph.prompt.values() if "seed" in node["inputs"])
    last["inputs"]["seed"] = seed
    before = moves(server)["loaded"]
    outputs = server.run(graph.prompt, preview_method="auto")
    assert moves(server)["loaded"] > before
    return {f"{key} {i}": image for key in outputs for i, image in enumerate(images(server, {key: outputs[key]}))}


@pytest.mark.parametrize(
    "release, name",
    [
        *(pytest.param(NEWEST, name, marks=[] if name in FIRST else pytest.mark.long) for name in NAMES),
        pytest.param(FLOOR, BATCH, marks=pytest.mark.contract),
    ],
    ids=lambda value: value if isinstance(value, str) else value.version,
    indirect=["release"],
)
def test_unloading_between_runs_changes_nothing(moving, release, name):
    """Nodes before the last sampler don't run again, so that it can't rely on what they load.

    One workflow draws with the bundled models, the others with small ones.
    """
    graph = Graph(to_prompt(read(name), moving.get("/object_info")))
    if name != "ADT-Tree text to image (start here)":
        with_small_models(graph)
    if name in SIZES:
        width, height = SIZES[name]
        small = graph.add("ADTTreeImageSize", model=graph.link("ADTTreeModelLoader"), width=width, height=height)
        graph.set("ADTTreeSampler", model=small)
    if name == BATCH:
        graph.set("ADTTreePrompts", count=3)
    if name == "ADT-Tree compared with plain decoding":  # it shows the difference, which is black with every seed
        graph.set("PreviewImage", images=graph.link("ADTTreeCompare"))
    found, low = [], 10 * NAMES.index(name)  # workflows that are alike don't find each other's results in the cache
    for seed in (low, low + 1, low):
        found.append(run(moving, graph, seed))
        unload(moving)
    first, other, again = found
    assert again and set(again) <= set(first), "older versions of ComfyUI don't show again what they have cached"
    assert any((first[name] != other[name]).any() for name in again), "another seed gives another image"
    for name in again:
        np.testing.assert_array_equal(first[name], again[name])


@pytest.mark.parametrize("release", [NEWEST], ids=lambda value: value.version, indirect=True)
def test_unloading_between_benchmarks(moving, release, workflow):
    graph = benchmark(with_small_models(Graph(to_prompt(workflow, moving.get("/object_info")))))
    for seed in (1, 2):
        run(moving, graph, seed)
        unload(moving)
