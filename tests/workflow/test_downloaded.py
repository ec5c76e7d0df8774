"""The templates of all families where their models lie as the templates' commands put them: small random ones here."""

import shutil

import pytest
from comfy_server import PACKS, Comfy
from convert import Graph, to_prompt
from test_run import images
from test_workflows import TO_INSTALL, read

# Template -> the size of its image, and the size to ask for where that is too many tokens for a test.
TEMPLATES = {
    "ADT-Tree Anole 7B text to image": ((32, 32), None),
    "ADT-Tree Lumina-mGPT text to image": ((64, 96), (96, 64)),
    "ADT-Tree LlamaGen text to image": ((256, 256), None),
    "ADT-Tree Janus-Pro text to image": ((64, 64), None),
    "ADT-Tree Emu3 text to image": ((40, 48), (48, 40)),
}
DRAFTER = "LANTERN-Lumina-mGPT-7B-768"


@pytest.fixture(scope="module")
def downloaded(release, tmp_path_factory):
    base = tmp_path_factory.mktemp(f"downloaded-{release.version}")
    folder = base / "models" / "ar_image"
    from adt_core import load_target
    from tests.drafted import write_drafter
    from tests.layouts.published import LUMINA, write_published

    write_published(folder)
    write_drafter(base / "models" / "ar_image_drafters" / DRAFTER, load_target(folder / LUMINA))
    with Comfy(release, base, PACKS) as server:
        yield server


def graph_of(server, name) -> Graph:
    """The template with a size that is quickly drawn."""
    graph, asked = Graph(to_prompt(read(name), server.get("/object_info"))), TEMPLATES[name][1]
    if asked is not None:
        model = graph.link("ADTTreeModelLoader")
        graph.set("ADTTreeSampler", model=graph.add("ADTTreeImageSize", model=model, width=asked[0], height=asked[1]))
    return graph


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_runs_once_its_model_is_there(downloaded, name):
    """Also where the value that marks it as missing is still chosen."""
    graph, (_, _, value) = graph_of(downloaded, name), TO_INSTALL[name]
    (image,) = images(downloaded, downloaded.run(graph.set("SaveImage", filename_prefix=name).prompt))
    assert image.shape[:2] == TEMPLATES[name][0]
    graph.set("ADTTreeModelLoader", model=f"{value} (not installed)").set("SaveImage", filename_prefix=f"{name}-again")
    (again,) = images(downloaded, downloaded.run(graph.prompt))
    assert (again == image).all()
    _, options = downloaded.get("/object_info")["ADTTreeModelLoader"]["input"]["optional"]["model"]
    assert value in options["options"] and f"{value} (not installed)" not in options["options"]


def test_a_prompt_that_is_cut_is_said(downloaded):
    graph = graph_of(downloaded, "ADT-Tree LlamaGen text to image").set("CLIPTextEncode", text="fox " * 40)
    downloaded.run(graph.prompt)
    assert "The prompt is 160 tokens long, and LlamaGen-T2I-2 reads 120" in downloaded.log.read_text()


def test_prompts_of_a_batch_that_are_cut_are_said(downloaded):
    graph = Graph(to_prompt(read("ADT-Tree batch of prompts with report"), downloaded.get("/object_info")))
    graph.set("ADTTreePrompts", text=f"a fox\n{'fox ' * 50}").set(
        "ADTTreeModelLoader", model=TO_INSTALL["ADT-Tree LlamaGen text to image"][2]
    )
    downloaded.run(graph.prompt)
    said = "1 of 2 prompts are not read to their ends. The first, '2': The prompt is 200 tokens long"
    assert said in downloaded.log.read_text()


def test_the_published_drafter_is_taken_where_it_is_installed(downloaded):
    """'auto' takes it. Where it is damaged, that is said, and 'jacobi' draws, as it does without it."""
    drafter = downloaded.base / "models" / "ar_image_drafters" / DRAFTER
    graph = graph_of(downloaded, "ADT-Tree Lumina-mGPT text to image").set("SaveImage", filename_prefix="damaged")
    alone = Graph({"1": graph.prompt[graph.id("ADTTreeModelLoader")]})
    alone.add("PreviewAny", source=alone.add("ADTTreeDrafterLoader", model=["1", 0], drafter="auto"))
    downloaded.run(alone.prompt)
    (drafter / "model.safetensors").write_bytes(b"nothing")
    downloaded.run(alone.prompt)
    assert f"'{DRAFTER}' is damaged" in downloaded.log.read_text(), "the loader does not keep what it had"
    assert images(downloaded, downloaded.run(graph.prompt))
    assert f"'{DRAFTER}' is damaged or was made for another model, so 'jacobi' drafts" in downloaded.log.read_text()
    shutil.rmtree(drafter)
    graph.set("SaveImage", filename_prefix="jacobi")
    assert images(downloaded, downloaded.run(graph.prompt))
