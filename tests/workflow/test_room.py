"""Tests of the memory of models.

Switching between models must need the memory of only one model. Pooled KV caches must be freed with the weights.
"""

from pathlib import Path

import numpy as np
import pytest
from convert import Graph
from test_errors import failed

LARGE = {"hidden": 1024, "layers": 4, "heads": 16, "intermediate": 3072}
"""Shape of a model of about 220 MB. This is large enough to measure in a server's memory."""


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory) -> list[Path]:
    from tests.tiny import write_tiny_checkpoint

    folder = tmp_path_factory.mktemp("large")
    return [write_tiny_checkpoint(folder / f"large-{name}", seed=seed, **LARGE) for seed, name in enumerate("ab")]


@pytest.fixture
def large(comfy, checkpoints):
    """Return the names of the large models in the Model Loader. They are listed only during a test."""
    links = [comfy.base / "models" / "ar_image" / path.name for path in checkpoints]
    for link, path in zip(links, checkpoints):
        link.parent.mkdir(exist_ok=True)
        link.symlink_to(path, target_is_directory=True)
    yield [link.name for link in links]
    for link in links:
        link.unlink()


@pytest.fixture
def plain(graph):
    return graph.set("ADTTreeSettings", method="no-drafting").drop("ADTTreeSampler", "drafter")


@pytest.mark.small_models
def test_switching_models_needs_memory_for_one(comfy, plain, large, checkpoints):
    """Freed memory is returned to the system. Otherwise, it would be up to half a model of the measured memory."""
    size = (checkpoints[0] / "model.safetensors").stat().st_size
    comfy.get("/probe/return_freed")
    comfy.run(plain.prompt)
    before = comfy.get("/probe/bytes")["bytes"]
    comfy.run(plain.set("ADTTreeModelLoader", model=large[0]).prompt)
    assert comfy.get("/probe/bytes")["bytes"] > before + 0.5 * size, "the large model replaces a smaller one"
    comfy.get("/probe/peak")
    comfy.run(plain.set("ADTTreeModelLoader", model=large[1]).prompt)
    most = (comfy.get("/probe/peak")["bytes"] - before) / size
    assert 1 < most < 1.75, f"memory for {most:.2f} models; only the new one and a part of its file may be in memory"


def test_two_models_in_one_graph_both_draw(comfy, plain, large):
    single = [comfy.draw(plain.set("ADTTreeModelLoader", model=name).prompt)[0] for name in large]
    both = Graph({key: {**node, "inputs": dict(node["inputs"])} for key, node in plain.prompt.items()})
    both.set("ADTTreeSampler", seed=both.inputs("ADTTreeSampler")["seed"] + 1)
    first = second_branch(both, large[0], plain.inputs("ADTTreeSampler")["seed"])
    same, other = comfy.draw(both.prompt, first, both.id("SaveImage"))
    np.testing.assert_array_equal(same, single[0])
    assert (other != single[1]).any()


def second_branch(graph: Graph, model: str, seed: int) -> str:
    loader, _ = graph.add("ADTTreeModelLoader", model=model)
    prompt = graph.add("CLIPTextEncode", clip=[loader, 1], text=graph.inputs("CLIPTextEncode")["text"])
    values = {**graph.inputs("ADTTreeSampler"), "model": [loader, 0], "positive": prompt, "seed": seed}
    values.pop("negative")
    decoded = graph.add("VAEDecode", samples=graph.add("ADTTreeSampler", **values), vae=[loader, 2])
    return graph.add("SaveImage", images=decoded, filename_prefix="second")[0]


def test_running_out_of_memory_while_sampling(comfy, plain):
    comfy.get("/probe/exhaust", on=1)
    try:
        message = failed(comfy, plain.set("ADTTreeSampler", batch_size=2, seed=77), "ADTTreeSampler").message
    finally:
        comfy.get("/probe/exhaust", on=0)
    assert message.startswith("bundled needs 0.1 GiB with its working memory, and cpu ran out of its ")
    assert message.endswith("close other programs that use it, or choose 'int8 weights' or 'int4 weights' in the Model "
                            "Loader, or a smaller model.")  # fmt: skip
    assert comfy.files(comfy.run(plain.prompt)), "the next run succeeds"


@pytest.mark.small_models
def test_pooled_caches_are_freed_with_the_weights(comfy, plain):
    """They count as available memory, so Unload Models and other models must free them first."""
    keep = {"model": plain.link("ADTTreeModelLoader"), "squeeze": 0}
    comfy.get("/probe/kept")
    comfy.run(plain.set("ADTTreeSampler", seed=1).prompt)
    room = comfy.get("/probe/kept")["asked"]
    node = plain.add("ProbeKeep", **keep)[0]
    comfy.run(plain.prompt)
    comfy.run(plain.set("ADTTreeSampler", seed=2).prompt)
    assert comfy.get("/probe/kept") == {"kept": True, "asked": room - 1_000_000}

    plain.prompt[node]["inputs"]["squeeze"] = 1000
    freed = comfy.run(plain.prompt)[node]["text"]
    assert freed == ["1000000"] and not comfy.get("/probe/kept")["kept"]

    plain.prompt[node]["inputs"]["squeeze"] = 0
    comfy.run(plain.prompt)
    assert comfy.get("/probe/kept")["kept"]
    assert comfy.free_until(lambda: not comfy.get("/probe/kept")["kept"]), "caches are still kept"
