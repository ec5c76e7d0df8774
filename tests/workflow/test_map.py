"""Tests of the acceptance map: update messages, and maps in the history and in saved images."""

import io
import json

import numpy as np
import pytest
from PIL import Image
from saved import EVENT, maps_in_png, unpack

pytestmark = pytest.mark.small_models
RECORD = ("image", "position", "depth_asked", "width_asked", "depth", "width", "drafts", "accepted", "substituted")
"""Values that a map stores for each image in each round. The names are those in the trace. Certainties and levels
follow."""


def read(outputs: dict) -> dict:
    return json.loads(next(output["text"][0] for output in outputs.values() if "text" in output))


def without_levels(record: list) -> list:
    return record[:-1]


@pytest.fixture
def traced(graph):
    """Return the text-to-image workflow with a node that shows the trace, whose trees vary (ADT-Tree)."""
    graph.add("ProbeReadTrace", trace=graph.link("ADTTreeSampler", 1))
    return graph.set("ADTTreeSettings", method="adt-tree")


@pytest.mark.smoke
def test_updates_and_history_contain_the_complete_trace(comfy, traced):
    """Updates contain new rounds in order, ten per second at most; the history has all rounds and an image."""
    traced.set("ADTTreeSampler", seed=601)
    outputs, messages = comfy.watch(traced.prompt, extra_pnginfo={"workflow": {"id": "a workflow"}})
    updates = [message for message in messages if message.type == EVENT]
    sampler = traced.id("ADTTreeSampler")
    (kept,) = outputs[sampler]["adt_tree_map"]
    complete = unpack(kept)
    rounds = []
    for message in updates:
        assert message.data["first"] == len(rounds)
        rounds += message.data["rounds"]
        sent = [message.data[name] for name in ("id", "node", "workflow")]
        assert sent == [kept["id"], sampler, "a workflow"]
    assert 1 < len(updates) <= 10 * (updates[-1].at - updates[0].at) + 2
    live = [[ms, drafting, *map(without_levels, records)] for ms, drafting, *records in complete]
    assert rounds == live[: len(rounds)], "updates leave out the tree levels, which only a replay shows"
    trace = read(outputs)
    for (ms, drafting, *records), traced_round in zip(complete, trace["rounds"], strict=True):
        assert ms == pytest.approx(1000 * traced_round["seconds"], abs=0.01)
        assert drafting == pytest.approx(1000 * traced_round["drafting"], abs=0.01)
        percent = [[max(1, round(100 * p)) for p in record["probabilities"]] for record in traced_round["images"]]
        known = [[record[name] for name in RECORD] for record in traced_round["images"]]
        levels = [record["levels"] for record in traced_round["images"]]
        assert records == [[*record, *lists] for record, *lists in zip(known, percent, levels)] and all(percent)
    assert any(record["levels"] and max(record["levels"]) > 1 for one in trace["rounds"] for record in one["images"])
    assert kept["inputs"]["seed"] == "601" and kept["relaxed"] is False
    assert [message.data.get("inputs") for message in updates] == [kept["inputs"], *[None] * (len(updates) - 1)]
    number = traced.inputs("ADTTreeSampler")["positive"][0]
    assert kept["texts"][number] == {"text": traced.prompt[number]["inputs"]["text"]} and "texts" not in updates[0].data
    (file,) = kept["pictures"]
    picture = np.asarray(Image.open(io.BytesIO(comfy.get("/view", **file))))
    saved = np.asarray(Image.open(io.BytesIO(comfy.files(outputs)[0])))
    assert picture.shape == saved.shape and np.abs(picture.astype(int) - saved).max() <= 1


def test_without_a_client_no_updates_are_sent_and_no_image_is_kept(comfy, graph):
    graph.set("ADTTreeSampler", seed=602)
    with comfy.socket() as bystander:
        outputs = comfy.run(graph.prompt, preview_method="auto")
        assert not [m for m in bystander.messages if m.type == EVENT]
    (kept,) = outputs[graph.id("ADTTreeSampler")]["adt_tree_map"]
    assert kept["pictures"] == kept["thumbnails"] == [] and unpack(kept)


def saved_with(comfy, graph, **extra) -> dict:
    workflow = {"id": "a workflow", "nodes": [], **extra}
    outputs, _ = comfy.watch(graph.prompt, extra_pnginfo={"workflow": workflow})
    return maps_in_png(comfy.files({0: outputs[graph.id("SaveImage")]})[0])


@pytest.mark.parametrize(
    "seed, stale", [(611, {"6": {"parts": ["of another image"]}, "99": {"parts": []}}), (621, None)]
)
def test_saved_image_contains_only_its_own_map(comfy, traced, seed, stale):
    """The map is small, has a thumbnail and no files of this server, and replaces maps of the queued workflow."""
    sampler = traced.set("ADTTreeSampler", seed=seed).id("ADTTreeSampler")
    maps = saved_with(comfy, traced, extra={"adt_tree_maps": stale})
    assert list(maps) == [sampler]
    (own,) = maps[sampler]["parts"]
    assert own["seed"] == str(seed) and own["method"] == "adt-tree" and "pictures" not in own
    assert sum(len(record) > 2 for _, _, *records in unpack(own) for record in records) > 10
    assert own["thumbnails"][0].startswith("data:image/jpeg;base64,") and len(json.dumps(own)) < 20_000


def test_image_of_a_cached_result_contains_the_map_of_that_result(comfy, traced):
    """In the second run, the sampler's result is cached. A changed prompt gives the map of a new run."""
    traced.set("ADTTreeSampler", seed=612)
    first = saved_with(comfy, traced)
    sampler = traced.id("ADTTreeSampler")
    traced.set("SaveImage", filename_prefix="again")
    (again,) = saved_with(comfy, traced)[sampler]["parts"]
    assert [again] == first[sampler]["parts"]
    traced.set("CLIPTextEncode", text="another upstream text")
    (other,) = saved_with(comfy, traced)[sampler]["parts"]
    assert other["seed"] == "612" and other["id"] != again["id"]


@pytest.mark.parametrize("seed, odd", [(631, "x"), (632, {"workflow": "x"})])
def test_run_needs_no_workflow(comfy, traced, seed, odd):
    """Run with an invalid workflow in the request. Save Image would fail, but other nodes must work."""
    traced.set("ADTTreeSampler", seed=seed)
    del traced.prompt[traced.id("SaveImage")]
    outputs, _ = comfy.watch(traced.prompt, extra_pnginfo=odd)
    assert read(outputs)["report"]["seed"] == seed
    assert outputs[traced.id("ADTTreeSampler")]["adt_tree_map"][0]["seed"] == str(seed)


def test_image_is_saved_although_previews_and_thumbnails_fail(comfy, traced):
    """Simulate that previews and thumbnails fail, for example because of too little memory."""
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


def test_images_of_a_list_contain_no_map(comfy, traced):
    prompts = traced.add("ADTTreePrompts", text="a red house\na blue house")
    traced.set("ADTTreeSampler", seed=613)
    traced.set("CLIPTextEncode", text=[prompts[0], 0])
    maps = saved_with(comfy, traced)
    assert maps[traced.id("ADTTreeSampler")]["parts"] == []


def test_relaxed_run_is_marked_even_if_no_token_was_replaced(comfy, traced):
    """The map in the history and the map in the PNG file must both be marked as relaxed."""
    traced.set("ADTTreeSampler", seed=605, lantern=traced.add("ADTTreeLANTERN", delta=0.0))
    sampler = traced.id("ADTTreeSampler")
    outputs = comfy.run(traced.prompt, extra_pnginfo={"workflow": {"nodes": []}})
    (kept,) = outputs[sampler]["adt_tree_map"]
    (saved,) = maps_in_png(comfy.files({0: outputs[traced.id("SaveImage")]})[0])[sampler]["parts"]
    assert kept["relaxed"] is saved["relaxed"] is True


LARGEST = 2 * 10**6  # maximum size in bytes of a replay of 8 seconds


def test_frames_of_a_replay_become_files_of_comfyuis_video_nodes(comfy, graph):
    graph.add("ADTTreeMapToVideo", trace=graph.link("ADTTreeSampler", 1), images=graph.link("VAEDecode"), image=0)
    graph.set("ADTTreeMapToVideo", seconds=8.0, fps=12.0)
    frames, fps = (graph.link("ADTTreeMapToVideo", output) for output in (0, 1))
    named = {"filename_prefix": "replay"}
    video = graph.add("CreateVideo", images=frames, fps=fps)
    graph.add("SaveVideo", video=video, format="auto", codec="auto", **named)
    graph.add("SaveWEBM", images=frames, fps=fps, codec="vp9", crf=32.0, **named)
    graph.add("SaveAnimatedWEBP", images=frames, fps=fps, lossless=False, quality=80, method="default", **named)
    outputs = comfy.run(graph.prompt)
    nodes = map(graph.id, ("SaveVideo", "SaveWEBM", "SaveAnimatedWEBP"))
    (mp4,), (webm,), (webp,) = (comfy.files({node: outputs[node]}) for node in nodes)
    assert mp4[4:8] == b"ftyp" and webm[:4] == bytes.fromhex("1a45dfa3")
    with Image.open(io.BytesIO(webp)) as image:
        assert image.n_frames > 8 and image.width == 2 * image.height
    assert all(1000 < len(file) < LARGEST for file in (mp4, webm, webp)), [len(file) for file in (mp4, webm, webp)]
