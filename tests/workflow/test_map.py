"""What a tab is told for the acceptance map, and what the history and saved images keep of it."""

import io
import json

import numpy as np
import pytest
from PIL import Image
from saved import EVENT, maps_in_png, unpack

pytestmark = pytest.mark.small_models
SHARE = (
    "image",
    "position",
    "depth_asked",
    "width_asked",
    "depth",
    "width",
    "nodes",
    "accepted",
    "substituted",
    "levels",
)
"""What a map tells of an image's share of a round, by the names that the trace has for it."""


def read(outputs: dict) -> dict:
    """The trace that the probe node showed."""
    return json.loads(next(output["text"][0] for output in outputs.values() if "text" in output))


@pytest.fixture
def traced(graph):
    """The shipped workflow by ADT-Tree, whose trees have several shapes, with a node that shows the trace."""
    graph.add("ProbeReadTrace", trace=graph.link("ADTTreeSampler", 1))
    return graph.set("ADTTreeSettings", method="adt-tree")


@pytest.mark.smoke
def test_increments_and_history_tell_the_whole_trace(comfy, traced):
    """Every round once and in order, at most ten messages a second; all of it again in the history, with a picture."""
    traced.set("ADTTreeSampler", seed=601)
    outputs, messages = comfy.watch(traced.prompt, extra_pnginfo={"workflow": {"id": "a workflow"}})
    told = [message for message in messages if message.type == EVENT]
    sampler = traced.id("ADTTreeSampler")
    (kept,) = outputs[sampler]["adt_tree_map"]
    whole = unpack(kept)
    rounds = []
    for message in told:
        assert message.data["first"] == len(rounds)
        rounds += message.data["rounds"]
        assert {name: message.data[name] for name in ("id", "node", "workflow")} == {
            "id": kept["id"],
            "node": sampler,
            "workflow": "a workflow",
        }
    assert 1 < len(told) <= 10 * (told[-1].at - told[0].at) + 2
    live = [[ms, drafting, *(share[:-1] for share in shares)] for ms, drafting, *shares in whole]
    assert rounds == live[: len(rounds)], "all but the levels of the trees, which only a replay shows"
    trace = read(outputs)
    for (ms, drafting, *shares), theirs in zip(whole, trace["rounds"], strict=True):
        assert ms == pytest.approx(1000 * theirs["seconds"], abs=0.01) and drafting == pytest.approx(
            1000 * theirs["drafting"], abs=0.01
        )
        assert shares == [[share[name] for name in SHARE] for share in theirs["images"]]
    assert any(share["levels"] and max(share["levels"]) > 1 for one in trace["rounds"] for share in one["images"])
    assert kept["inputs"]["seed"] == "601" and kept["relaxed"] is False
    number = traced.inputs("ADTTreeSampler")["positive"][0]
    assert kept["texts"][number] == {"text": traced.prompt[number]["inputs"]["text"]} and "texts" not in told[0].data
    (file,) = kept["pictures"]
    picture = np.asarray(Image.open(io.BytesIO(comfy.get("/view", **file))))
    saved = np.asarray(Image.open(io.BytesIO(comfy.files(outputs)[0])))
    assert picture.shape == saved.shape and np.abs(picture.astype(int) - saved).max() <= 1


def test_without_a_tab_nothing_is_sent_and_no_picture_is_kept(comfy, graph):
    graph.set("ADTTreeSampler", seed=602)
    with comfy.socket() as bystander:
        outputs = comfy.run(graph.prompt, preview_method="auto")
        assert not [m for m in bystander.messages if m.type == EVENT]
    (kept,) = outputs[graph.id("ADTTreeSampler")]["adt_tree_map"]
    assert kept["pictures"] == kept["thumbnails"] == [] and unpack(kept)


def saved_with(comfy, graph, **extra) -> dict:
    """Run the graph as a page queues it; the maps in the image that it saves, by node."""
    workflow = {"id": "a workflow", "nodes": [], **extra}
    outputs, _ = comfy.watch(graph.prompt, extra_pnginfo={"workflow": workflow})
    return maps_in_png(comfy.files({0: outputs[graph.id("SaveImage")]})[0])


@pytest.mark.parametrize(
    "seed, stale", [(611, {"6": {"parts": ["of another image"]}, "99": {"parts": []}}), (621, None)]
)
def test_a_saved_image_brings_its_own_map(comfy, traced, seed, stale):
    """Small, with a picture, and without references to files of this server; whatever the workflow brought is gone."""
    sampler = traced.set("ADTTreeSampler", seed=seed).id("ADTTreeSampler")
    maps = saved_with(comfy, traced, extra={"adt_tree_maps": stale})
    assert list(maps) == [sampler]
    (own,) = maps[sampler]["parts"]
    assert own["seed"] == str(seed) and own["method"] == "adt-tree" and "pictures" not in own
    assert sum(len(share) > 2 for _, _, *shares in unpack(own) for share in shares) > 10
    assert own["thumbnails"][0].startswith("data:image/jpeg;base64,") and len(json.dumps(own)) < 20_000


def test_an_image_of_a_cached_result_brings_the_map_of_that_result(comfy, traced):
    """The sampler does not run again. What feeds it is the same, and that makes the map its own."""
    traced.set("ADTTreeSampler", seed=612)
    first = saved_with(comfy, traced)
    sampler = traced.id("ADTTreeSampler")
    traced.set("SaveImage", filename_prefix="again")
    (again,) = saved_with(comfy, traced)[sampler]["parts"]
    assert [again] == first[sampler]["parts"]
    traced.set("CLIPTextEncode", text="something else, which is upstream")
    (other,) = saved_with(comfy, traced)[sampler]["parts"]
    assert other["seed"] == "612" and other["id"] != again["id"]


@pytest.mark.parametrize("seed, odd", [(631, "x"), (632, {"workflow": "x"})])
def test_a_run_needs_no_workflow(comfy, traced, seed, odd):
    """Save Image needs what it came with to be one; what reads the trace does not."""
    traced.set("ADTTreeSampler", seed=seed)
    del traced.prompt[traced.id("SaveImage")]
    outputs, _ = comfy.watch(traced.prompt, extra_pnginfo=odd)
    assert read(outputs)["report"]["seed"] == seed
    assert outputs[traced.id("ADTTreeSampler")]["adt_tree_map"][0]["seed"] == str(seed)


def test_an_image_is_not_lost_for_its_previews_and_thumbnails(comfy, traced):
    """As where memory suffices for the image but not for showing it."""
    sampler = traced.set("ADTTreeSampler", seed=641).id("ADTTreeSampler")
    comfy.get("/probe/pictures", fail=1)
    try:
        outputs, _ = comfy.watch(traced.prompt)
    finally:
        comfy.get("/probe/pictures", fail=0)
    assert len(comfy.files({0: outputs[traced.id("SaveImage")]})) == 1
    (kept,) = outputs[sampler]["adt_tree_map"]
    assert kept["pictures"] == kept["thumbnails"] == [] and unpack(kept)
    assert comfy.log.read_text(encoding="utf-8").count("is left out, since it could not be made") >= 2


def test_images_of_a_list_bring_no_map_rather_than_that_of_the_last(comfy, traced):
    prompts = traced.add("ADTTreePrompts", text="a red house\na blue house")
    traced.set("ADTTreeSampler", seed=613)
    traced.set("CLIPTextEncode", text=[prompts[0], 0])
    maps = saved_with(comfy, traced)
    assert maps[traced.id("ADTTreeSampler")]["parts"] == []


def test_a_relaxed_run_is_called_relaxed_although_nothing_was_replaced(comfy, traced):
    """On its map, and in the PNG."""
    sampler = traced.set("ADTTreeSampler", seed=605, lantern=traced.add("ADTTreeLantern", delta=0.0)).id(
        "ADTTreeSampler"
    )
    outputs = comfy.run(traced.prompt, extra_pnginfo={"workflow": {"nodes": []}})
    (kept,) = outputs[sampler]["adt_tree_map"]
    (saved,) = maps_in_png(comfy.files({0: outputs[traced.id("SaveImage")]})[0])[sampler]["parts"]
    assert kept["relaxed"] is saved["relaxed"] is True
