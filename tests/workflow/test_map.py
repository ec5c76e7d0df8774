"""What a tab is told for the acceptance map, what the history keeps of it, and the map and its figures as data for
other nodes."""

import io
import json

import numpy as np
import pytest
from PIL import Image

EVENT = "adt_tree.map"


def read(outputs: dict) -> dict:
    """The trace that the probe node showed."""
    return json.loads(next(output["text"][0] for output in outputs.values() if "text" in output))


@pytest.fixture
def traced(graph):
    """The shipped workflow by ADT-Tree, whose trees have several shapes, with a node that shows the trace."""
    graph.add("ProbeReadTrace", trace=graph.link("ADTTreeSampler", 1))
    return graph.set("ADTTreeSettings", method="adt-tree")


def test_increments_and_history_tell_the_whole_trace(comfy, traced):
    """Every round once and in order, at most ten messages a second; all of it again in the history, with a picture."""
    traced.set("ADTTreeSampler", seed=601)
    with comfy.socket() as browser:
        outputs = comfy.run(traced.prompt, client=browser.id, extra_pnginfo={"workflow": {"id": "a workflow"}})
        browser.wait_for(lambda m: m.type == "execution_success")
        told = [m for m in browser.messages if m.type == EVENT]
    sampler = traced.id("ADTTreeSampler")
    (kept,) = outputs[sampler]["adt_tree_map"]
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
    assert rounds == kept["rounds"][: len(rounds)] and kept["first"] == 0
    trace = read(outputs)
    assert len(kept["rounds"]) == len(trace["rounds"])
    names = ("image", "position", "depth_asked", "width_asked", "depth", "width", "nodes", "accepted", "substituted")
    for (ms, drafting, *shares), theirs in zip(kept["rounds"], trace["rounds"], strict=True):
        assert ms == pytest.approx(1000 * theirs["seconds"], abs=0.01) and drafting == pytest.approx(
            1000 * theirs["drafting"], abs=0.01
        )
        assert shares == [[share[name] for name in names] for share in theirs["images"]]
    assert len(json.dumps(kept)) < 20_000
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
    assert kept["pictures"] == [] and kept["rounds"]


@pytest.mark.parametrize("seed, show", enumerate(["acceptance", "depth", "width", "time"], start=603))
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
