"""Models of every family, small and random in their published layouts, through the nodes: loader, size, training-free
drafter, sampler, VAE Decode."""

import io
import sys

import numpy as np
import pytest
from comfy_server import PACKS, ROOT, Comfy
from convert import Graph, to_prompt
from PIL import Image
from test_run import images

# What ComfyUI's own folder shows, the size of its images, and the size to ask for.
FAMILIES = {
    "Lumina-mGPT-768-tiny": ((768, 768), (96, 64)),
    "t2i_XL_stage1_256.pt": ((256, 256), None),
    "janus-tiny": ((64, 64), None),
    "emu3-tiny": ((720, 720), (48, 40)),
}


@pytest.fixture(scope="session")
def families(release, tmp_path_factory):
    """A server whose models/ar_image holds one model of each family, with what belongs beside it. It writes no metadata
    into images."""
    base = tmp_path_factory.mktemp(f"families-{release.version}")
    folder = base / "models" / "ar_image"
    folder.mkdir(parents=True)
    sys.path.insert(0, str(ROOT))
    try:
        from tests.layouts.emu3 import write_emu3
        from tests.layouts.janus import write_janus
        from tests.layouts.llamagen import write_upstream
        from tests.layouts.lumina import write_lumina

        write_lumina(folder / "Lumina-mGPT-768-tiny")
        write_upstream(folder)
        write_janus(folder / "janus-tiny")
        write_emu3(folder / "emu3-tiny", max_positions=9000)
    finally:
        sys.path.remove(str(ROOT))
    with Comfy(release, base, PACKS, ("--disable-metadata",)) as server:
        yield server


@pytest.fixture
def family_graph(families, workflow):
    """The shipped workflow with the drafter that needs no files."""
    return Graph(to_prompt(workflow, families.get("/object_info"))).set("ADTTreeDrafterLoader", drafter="jacobi")


def test_all_of_them_are_listed_and_nothing_else(families):
    """Not the text encoder, nor the codecs, that lie in the same folder."""
    _, options = families.get("/object_info")["ADTTreeModelLoader"]["input"]["optional"]["model"]
    there = [name for name in options["options"] if not name.endswith(" (not installed)")]
    assert sorted(there) == sorted(["bundled", *FAMILIES]) and there == options["options"][: len(there)]
    assert "t2i_XL_stage1_256.pt (not installed)" not in options["options"]


@pytest.mark.parametrize("name", FAMILIES)
def test_an_image_with_drafts_is_the_image_without(families, family_graph, name):
    """And it has the size that was asked for, as the engine and every other node between must know it."""
    (width, height), asked = FAMILIES[name]
    graph = (
        family_graph.set("ADTTreeModelLoader", model=name)
        .set("CLIPTextEncode", text="a red house")
        .set("ADTTreeSampler", seed=5, top_k=20)
    )
    if asked is not None:
        (width, height), model = (
            asked,
            graph.add("ADTTreeImageSize", model=graph.link("ADTTreeModelLoader"), width=asked[0], height=asked[1]),
        )
        graph.set("ADTTreeSampler", model=model)
    found = []
    for method in ("eagle2", "autoregressive"):
        graph.set("ADTTreeSettings", method=method).set("SaveImage", filename_prefix=f"{name}-{method}")
        (image,) = images(families, families.run(graph.prompt))
        found.append(image)
    assert found[0].shape == (height, width, 3)
    np.testing.assert_array_equal(*found)


def test_without_metadata_no_map_is_saved(families, family_graph):
    family_graph.set("ADTTreeModelLoader", model="janus-tiny").set("ADTTreeSampler", seed=614)
    family_graph.set("ADTTreeSettings", method="adt-tree")
    outputs = families.run(family_graph.prompt, extra_pnginfo={"workflow": {"id": "a workflow", "nodes": []}})
    (png,) = families.files(outputs)
    assert Image.open(io.BytesIO(png)).text == {}


def test_a_size_that_a_model_cannot_draw_is_refused_in_a_sentence(families, family_graph):
    from comfy_server import Failed

    model = family_graph.add("ADTTreeImageSize", model=family_graph.link("ADTTreeModelLoader"), width=256, height=128)
    family_graph.set("ADTTreeModelLoader", model="bundled").set("CLIPTextEncode", text="x").set(
        "ADTTreeSampler", model=model
    )
    with pytest.raises(Failed) as raised:
        families.run(family_graph.prompt)
    assert "size is 256x128, which bundled can't draw: it draws a grid of 16 x 16 tokens only" in raised.value.message
