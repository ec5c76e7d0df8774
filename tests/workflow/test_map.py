"""What a tab is told for the acceptance map, what the history and saved images keep of it, and the map and its figures
as data for other nodes."""

import io
import json

import numpy as np
import pytest
from PIL import Image
from saved import travelled, unpack

EVENT = "adt_tree.map"
pytestmark = pytest.mark.small_models


def read(outputs: dict) -> dict:
    """The trace that the probe node showed."""
    return json.loads(next(output["text"][0] for output in outputs.values() if "text" in output))


@pytest.fixture
def traced(graph):
    """The shipped workflow by ADT-Tree, whose trees have several shapes, with a node that shows the trace."""
    graph.add("ProbeReadTrace", trace=graph.link("ADTTreeSampler", 1))
    return graph.set("ADTTreeSettings", method="adt-tree")


@pytest.mark.contract
def test_increments_and_history_tell_the_whole_trace(comfy, traced):
    """Every round once and in order, at most ten messages a second; all of it again in the history, with a picture."""
    traced.set("ADTTreeSampler", seed=601)
    with comfy.socket() as browser:
        outputs = comfy.run(traced.prompt, client=browser.id, extra_pnginfo={"workflow": {"id": "a workflow"}})
        browser.wait_for(lambda m: m.type == "execution_success")
        told = [m for m in browser.messages if m.type == EVENT]
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
    names = (
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
    for (ms, drafting, *shares), theirs in zip(whole, trace["rounds"], strict=True):
        assert ms == pytest.approx(1000 * theirs["seconds"], abs=0.01) and drafting == pytest.approx(
            1000 * theirs["drafting"], abs=0.01
        )
        assert shares == [[share[name] for name in names] for share in theirs["images"]]
    assert any(share["levels"] and max(share["levels"]) > 1 for one in trace["rounds"] for share in one["images"])
    assert kept["inputs"]["seed"] == "601" and kept["relaxed"] is False
    number = traced.inputs("ADTTreeSampler")["positive"][0]
    assert kept["texts"][number] == {"text": traced.prompt[number]["inputs"]["text"]} and "texts" not in told[0].data
    (file,) = kept["pictures"]
    picture = np.asarray(Image.open(io.BytesIO(comfy.get("/view", **file))))
    saved = np.asarray(Image.open(io.BytesIO(comfy.files(outputs)[0])))
    assert picture.shape == saved.shape and np.abs(picture.astype(int) - saved).max() <= 1


@pytest.mark.contract
def test_without_a_tab_nothing_is_sent_and_no_picture_is_kept(comfy, graph):
    graph.set("ADTTreeSampler", seed=602)
    with comfy.socket() as bystander:
        outputs = comfy.run(graph.prompt, preview_method="auto")
        assert not [m for m in bystander.messages if m.type == EVENT]
    (kept,) = outputs[graph.id("ADTTreeSampler")]["adt_tree_map"]
    assert kept["pictures"] == kept["thumbnails"] == [] and unpack(kept)


def saved_with(comfy, graph, **extra) -> dict:
    """Run the graph as a page queues it; the maps in the image that it saves, by node."""
    with comfy.socket() as browser:
        workflow = {"id": "a workflow", "nodes": [], **extra}
        outputs = comfy.run(graph.prompt, client=browser.id, extra_pnginfo={"workflow": workflow})
    return travelled(comfy.files({0: outputs[graph.id("SaveImage")]})[0])


def test_a_saved_image_brings_its_own_map(comfy, traced):
    """Small, with a picture, and without references to files of this server; whatever the workflow brought is gone."""
    sampler = traced.set("ADTTreeSampler", seed=611).id("ADTTreeSampler")
    stale = {"adt_tree_maps": {sampler: {"parts": ["of another image"]}, "99": {"parts": []}}}
    maps = saved_with(comfy, traced, extra=stale)
    assert list(maps) == [sampler]
    (own,) = maps[sampler]["parts"]
    assert own["seed"] == "611" and own["method"] == "adt-tree" and "pictures" not in own
    assert sum(len(share) > 2 for _, _, *shares in unpack(own) for share in shares) > 10
    assert own["thumbnails"][0].startswith("data:image/jpeg;base64,") and len(json.dumps(own)) < 20_000


@pytest.mark.contract
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


def test_an_image_is_not_lost_for_what_stands_in_the_place_of_its_map(comfy, traced):
    sampler = traced.set("ADTTreeSampler", seed=621).id("ADTTreeSampler")
    maps = saved_with(comfy, traced, extra={"adt_tree_maps": None})
    assert maps[sampler]["parts"][0]["seed"] == "621"


@pytest.mark.parametrize("seed, odd", [(631, "x"), (632, {"workflow": "x"})])
def test_a_run_needs_no_workflow(comfy, traced, seed, odd):
    """Save Image needs what it came with to be one; what reads the trace does not."""
    traced.set("ADTTreeSampler", seed=seed)
    del traced.prompt[traced.id("SaveImage")]
    with comfy.socket() as browser:
        outputs = comfy.run(traced.prompt, client=browser.id, extra_pnginfo=odd)
    assert read(outputs)["report"]["seed"] == seed
    assert outputs[traced.id("ADTTreeSampler")]["adt_tree_map"][0]["seed"] == str(seed)


def test_an_image_is_not_lost_for_its_previews_and_thumbnails(comfy, traced):
    """As where memory suffices for the image but not for showing it."""
    sampler = traced.set("ADTTreeSampler", seed=641).id("ADTTreeSampler")
    comfy.get("/probe/pictures", fail=1)
    try:
        with comfy.socket() as browser:
            outputs = comfy.run(traced.prompt, client=browser.id)
    finally:
        comfy.get("/probe/pictures", fail=0)
    assert len(comfy.files({0: outputs[traced.id("SaveImage")]})) == 1
    (kept,) = outputs[sampler]["adt_tree_map"]
    assert kept["pictures"] == kept["thumbnails"] == [] and unpack(kept)
    assert comfy.log.read_text().count("is left out, since it could not be made") >= 2


def test_images_of_a_list_bring_no_map_rather_than_that_of_the_last(comfy, traced):
    values = {"caption": "first", "filter": "", "start": 0, "count": 2, "shuffle": 0}
    prompts = traced.add("ADTTreePrompts", file="(the text below)", text="a red house\na blue house", **values)
    traced.set("ADTTreeSampler", seed=613)
    traced.set("CLIPTextEncode", text=[prompts[0], 0])
    maps = saved_with(comfy, traced)
    assert maps[traced.id("ADTTreeSampler")]["parts"] == []


@pytest.mark.parametrize(
    "seed, show",
    [pytest.param(603, "acceptance", marks=pytest.mark.contract), (604, "depth"), (605, "width"), (606, "time")],
)
def test_the_map_as_image_and_mask(comfy, traced, seed, show):
    """The mask is the figure of each token on the scale, and over an image the colours let it shine through."""
    traced.set(
        "ADTTreeSampler", seed=seed, batch_size=2
    )  # of its own: the older version does not name what an output has cached
    trace = traced.link("ADTTreeSampler", 1)
    alone = traced.add("ADTTreeMapImage", trace=trace, show=show, opacity=0.6)
    over = [
        traced.add("ADTTreeMapImage", trace=trace, show=show, opacity=opacity, images=traced.link("VAEDecode"))
        for opacity in (0.0, 1.0)
    ]
    shown = {name: traced.add("PreviewImage", images=link) for name, link in zip(("bare", "covered"), over)}
    shown["map"] = traced.add("PreviewImage", images=alone)
    shown["mask"] = traced.add("PreviewImage", images=traced.add("MaskToImage", mask=[alone[0], 1]))
    outputs = comfy.run(traced.prompt)
    pixels = {
        name: [np.asarray(Image.open(io.BytesIO(data)).convert("RGB")) for data in comfy.files({0: outputs[node[0]]})]
        for name, node in shown.items()
    }
    saved = [
        np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
        for data in comfy.files({0: outputs[traced.id("SaveImage")]})
    ]
    rounds = read(outputs)
    for image in range(2):
        np.testing.assert_array_equal(pixels["bare"][image], saved[image])
        assert pixels["covered"][image].shape == saved[image].shape
        tokens = pixels["mask"][image][8::16, 8::16, 0].astype(int)
        assert tokens.shape == tuple(rounds["grid"])
        if show == "acceptance":
            values = np.array(rounds["acceptance"])
            expected = (values[image] - 1) / (values.max() - 1)
            np.testing.assert_allclose(tokens, 255 * expected, atol=1.5)
        colours = {
            value: {tuple(c) for c in pixels["map"][image][8::16, 8::16][tokens == value]}
            for value in np.unique(tokens)
        }
        assert all(len(found) == 1 for found in colours.values()) or show == "time", "one value, one colour"
        assert len(colours) > 1


def test_images_of_another_batch_are_refused(comfy, graph):
    from comfy_server import Failed

    other = graph.add("EmptyImage", width=64, height=64, batch_size=3, color=0)
    drawn = graph.add("ADTTreeMapImage", trace=graph.link("ADTTreeSampler", 1), show="depth", opacity=0.5, images=other)
    graph.add("PreviewImage", images=drawn)
    with pytest.raises(Failed, match="images: 3 were given, but the trace is of 1"):
        comfy.run(graph.prompt)


def test_the_figures_as_text_and_json(comfy, traced):
    traced.set("ADTTreeSampler", seed=604)
    figures = traced.add("ADTTreeFigures", trace=traced.link("ADTTreeSampler", 1))
    text, data = (traced.add("PreviewAny", source=[figures[0], output]) for output in (0, 1))
    outputs = comfy.run(traced.prompt)
    report = next(
        json.loads(o["text"][0])["report"] for k, o in outputs.items() if "text" in o and k not in (text[0], data[0])
    )
    assert json.loads(outputs[data[0]]["text"][0]) == report
    words = outputs[text[0]]["text"][0]
    assert (
        f"{report['tokens']} tokens in {report['seconds']:.2f} s" in words
        and f"{report['tau']:.2f} tokens per image in each" in words
    )


@pytest.mark.parametrize("delta", [0.0, 0.9])
def test_a_relaxed_run_is_called_relaxed_whatever_was_replaced(comfy, traced, delta):
    """On its map, in the PNG and in its figures."""
    lantern = traced.add("ADTTreeLantern", neighbours=10, delta=delta)
    sampler = traced.set("ADTTreeSampler", seed=605, lantern=lantern).id("ADTTreeSampler")
    text = traced.add("PreviewAny", source=traced.add("ADTTreeFigures", trace=traced.link("ADTTreeSampler", 1)))
    outputs = comfy.run(traced.prompt, extra_pnginfo={"workflow": {"nodes": []}})
    (kept,) = outputs[sampler]["adt_tree_map"]
    (saved,) = travelled(comfy.files({0: outputs[traced.id("SaveImage")]})[0])[sampler]["parts"]
    assert kept["relaxed"] is saved["relaxed"] is True
    replaced = 100 * read(outputs)["report"]["substitution_rate"]
    assert (replaced > 0) == (delta > 0)
    assert f"Relaxed ({replaced:.1f} % of the tokens replaced by LANTERN)" in outputs[text[0]]["text"][0]
