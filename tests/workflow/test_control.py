"""Images that start from given ones, and the compare node, in a running ComfyUI."""

import re

import numpy as np
import pytest
import safetensors.numpy
from test_errors import failed, refused
from test_run import PROMPT, images


@pytest.fixture
def saved(comfy, graph):
    """A function: runs the graph and returns the codebook vectors that the sampler gave, [B, C, h, w]."""
    graph.set("CLIPTextEncode", text=PROMPT).set("ADTTreeSampler", seed=5)
    graph.add("SaveLatent", samples=graph.link("ADTTreeSampler"), filename_prefix="control")

    def run(changed=None) -> np.ndarray:
        (latent,) = comfy.files(comfy.run((changed or graph).prompt), "latents")
        return safetensors.numpy.load(latent)["latent_tensor"]

    return run


def second_sampler(graph, latent, **changes) -> None:
    """A copy of the graph's sampler that starts from ``latent``, in front of what the first one fed."""
    link = graph.add("ADTTreeSampler", **{**graph.inputs("ADTTreeSampler"), "latent_image": latent, **changes})
    for node in graph.prompt.values():
        if node["class_type"] in ("VAEDecode", "SaveLatent"):
            node["inputs"]["samples"] = link


@pytest.mark.small_models
def test_an_image_continued_from_its_own_beginning_is_that_image(graph, saved):
    whole = saved()
    second_sampler(graph, graph.link("ADTTreeSampler"), keep=0.4)
    np.testing.assert_array_equal(saved(), whole)


@pytest.mark.small_models
def test_another_seed_or_prompt_changes_what_is_not_kept(graph, saved):
    whole = saved()
    rows = whole.shape[2]
    other = graph.add("CLIPTextEncode", clip=graph.link("ADTTreeModelLoader", 1), text="A red car on a street.")
    first = graph.link("ADTTreeSampler")
    for changes in ({"seed": 6}, {"positive": other}, {"seed": 6, "keep_left": 0.5}):
        second_sampler(graph, first, keep=0.5, **changes)
        found = saved()
        np.testing.assert_array_equal(found[:, :, : rows // 2], whole[:, :, : rows // 2])
        left = rows // 2 if "keep_left" in changes else 0
        np.testing.assert_array_equal(found[:, :, rows // 2, :left], whole[:, :, rows // 2, :left])
        assert (found[:, :, rows // 2 :] != whole[:, :, rows // 2 :]).any()
    second_sampler(graph, first, keep=1.0, seed=6)
    np.testing.assert_array_equal(saved(), whole)


@pytest.mark.small_models
def test_the_latent_decides_the_batch_and_batch_size_multiplies_it(graph, saved):
    graph.set("ADTTreeSampler", batch_size=2)
    pair, first = saved(), graph.link("ADTTreeSampler")
    second_sampler(graph, first, keep=0.25, batch_size=2)
    four = saved()
    assert four.shape[0] == 4
    np.testing.assert_array_equal(four[:2], pair)  # with the noise of their own seed they end as they began
    rows = pair.shape[2] // 4
    np.testing.assert_array_equal(four[2:, :, :rows], pair[:, :, :rows])
    assert not np.array_equal(four[2:], pair)
    alone = graph.add("LatentFromBatch", samples=first, batch_index=1, length=1)
    second_sampler(graph, alone, keep=0.25, batch_size=1)
    np.testing.assert_array_equal(saved(), pair[1:])  # taken out of a batch, it keeps the noise that it had there
    second_sampler(graph, first, keep=0.0, batch_size=1)
    np.testing.assert_array_equal(saved(), pair)


def test_a_picture_is_continued_through_vae_encode(comfy, graph, saved):
    """The kept half is the picture, as close as its tokens come to it; drafting does not change the other half."""
    vae = graph.link("ADTTreeModelLoader", 2)
    scaled = graph.add(
        "ImageScale", image=graph.link("VAEDecode"), upscale_method="lanczos", width=512, height=512, crop="center"
    )
    fitted = graph.add("ImageScale", image=scaled, upscale_method="area", width=128, height=128, crop="disabled")
    encoded = graph.add("VAEEncode", pixels=fitted, vae=vae)
    other = graph.add("CLIPTextEncode", clip=graph.link("ADTTreeModelLoader", 1), text="A grassy field at night.")
    inputs = {**graph.inputs("ADTTreeSampler"), "latent_image": encoded, "keep": 0.5, "positive": other, "seed": 9}
    found, saved_node = [], graph.id("SaveImage")
    original = None
    for settings in (
        graph.link("ADTTreeSettings"),
        graph.add("ADTTreeSettings", **{**graph.inputs("ADTTreeSettings"), "method": "autoregressive"}),
    ):
        again = graph.add("VAEDecode", samples=graph.add("ADTTreeSampler", **{**inputs, "settings": settings}), vae=vae)
        shown, _ = graph.add("PreviewImage", images=again)
        outputs = comfy.run(graph.prompt)
        found.append(images(comfy, {shown: outputs[shown]})[0])
        if original is None:  # the older version does not name the files of an output that it has cached
            original = images(comfy, {saved_node: outputs[saved_node]})[0].astype(float)
    np.testing.assert_array_equal(*found)
    top, bottom = (np.abs(found[0] - original)[rows].mean() for rows in (slice(0, 56), slice(64, 128)))
    assert top < 20 < bottom, (top, bottom)


@pytest.mark.small_models
def test_latents_that_do_not_fit(comfy, graph):
    stranger = graph.add("EmptyLatentImage", width=128, height=128, batch_size=1)
    message = failed(comfy, graph.set("ADTTreeSampler", latent_image=stranger), "ADTTreeSampler")
    assert message.startswith("latent_image: ") and "[1, 4, 16, 16]" in message and "VAE Encode" in message
    small = graph.add("EmptyImage", width=64, height=96, batch_size=1, color=0x336699)
    encoded = graph.add("VAEEncode", pixels=small, vae=graph.link("ADTTreeModelLoader", 2))
    message = failed(comfy, graph.set("ADTTreeSampler", latent_image=encoded), "ADTTreeSampler")
    assert (
        message.startswith("latent_image: ") and "12 rows and 8 columns" in message and "128 by 128 pixels" in message
    )
    mask = graph.add("SolidMask", value=1.0, width=64, height=64)
    masked = graph.add("SetLatentNoiseMask", samples=encoded, mask=mask)
    graph.inputs("EmptyImage").update(width=128, height=128)
    assert "noise mask" in failed(comfy, graph.set("ADTTreeSampler", latent_image=masked), "ADTTreeSampler")


@pytest.mark.parametrize("name", ["keep", "keep_left"])
@pytest.mark.parametrize("value", [float("nan"), -0.5, 2.0])
def test_shares_that_are_none(comfy, graph, name, value):
    assert name in refused(comfy, graph.set("ADTTreeSampler", **{name: value}))


def compare(comfy, graph, **changes) -> tuple[list[np.ndarray], str]:
    """The compare node in place of the sampler: images A, B and their difference, and what is reported."""
    sampler = graph.inputs("ADTTreeSampler")
    inputs = {
        name: sampler[name]
        for name in ("model", "positive", "drafter", "seed", "guidance", "temperature", "top_k", "top_p")
    }
    node, _ = graph.add("ADTTreeCompare", **{**inputs, **changes})
    for used in ("SaveImage", "VAEDecode", "ADTTreeSampler"):
        graph.prompt.pop(graph.id(used))
    shown = [graph.add("PreviewImage", images=[node, output])[0] for output in range(3)]
    text, _ = graph.add("PreviewAny", source=[node, 3])
    outputs = comfy.run(graph.prompt)
    return [images(comfy, {key: outputs[key]})[0] for key in shown], outputs[text]["text"][0]


@pytest.mark.small_models
def test_compare_shows_no_difference_and_both_times(comfy, graph, reference):
    graph.set("CLIPTextEncode", text=PROMPT).set("ADTTreeSampler", seed=2**64 - 1)
    (a, b, difference), report = compare(comfy, graph, speed="Exact ADT-Tree")
    np.testing.assert_array_equal(a, reference(prompt=PROMPT, sampling={"seed": 2**64 - 1})["images"][0])
    np.testing.assert_array_equal(a, b)
    assert not difference.any()
    verdict, first, second = report.splitlines()
    assert (
        first.startswith("A: adt-tree, ")
        and second.startswith("B: autoregressive, ")
        and all(" s, " in line for line in (first, second))
    )
    assert "times as fast as B; every token is the same" in verdict


@pytest.mark.small_models
def test_compare_shows_what_lantern_changes(comfy, graph, reference):
    values = {"rule": "delta (LANTERN)", "neighbours": 10, "delta": 0.4, "factor": 2.0, "max_substitution": 1.0}
    drafting, methods = graph.inputs("ADTTreeSettings"), {"settings_a": "adt-tree", "settings_b": "eagle2"}
    ways = {name: graph.add("ADTTreeSettings", **{**drafting, "method": one}) for name, one in methods.items()}
    graph.set("CLIPTextEncode", text=PROMPT).set("ADTTreeSampler", seed=5)
    (a, b, difference), report = compare(comfy, graph, lantern=graph.add("ADTTreeLantern", **values), **ways)
    relaxed = {"drafting": {"method": "adt-tree"}, "lantern": {"neighbours": 10, "delta": 0.4}}
    np.testing.assert_array_equal(a, reference(prompt=PROMPT, sampling={"seed": 5}, **relaxed)["images"][0])
    np.testing.assert_array_equal(b, reference(prompt=PROMPT, sampling={"seed": 5})["images"][0])
    assert np.abs(difference.astype(int) - np.abs(a.astype(int) - b)).max() <= 1 and difference.any()
    assert "B: eagle2, " in report and "tokens differ" in report
    assert re.search(r"\nA: adt-tree, Relaxed \(\d+\.\d % of the tokens replaced by LANTERN\), ", report)


def test_compare_without_a_drafter(comfy, graph, reference):
    """It takes the model's own."""
    sampler = graph.inputs("ADTTreeSampler")
    inputs = {
        name: sampler[name] for name in ("model", "positive", "seed", "guidance", "temperature", "top_k", "top_p")
    }
    node, _ = graph.add("ADTTreeCompare", **inputs)
    graph.set("SaveImage", images=[node, 0])
    numbers = {name: sampler[name] for name in ("seed", "guidance", "temperature")}
    expected = reference(prompt=graph.inputs("CLIPTextEncode")["text"], sampling=numbers)["images"][0]
    np.testing.assert_array_equal(images(comfy, comfy.run(graph.prompt))[0], expected)
