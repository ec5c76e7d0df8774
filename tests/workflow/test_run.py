"""The workflow in a running ComfyUI: the image is the engine's, whatever drafts it, and people can watch it form."""

import io
import json
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from PIL import Image
from small import SMALL

from adt_core.app.checkpoints import BUNDLED_SAMPLING

PROMPT = "A blue sailboat in the middle of a calm lake at sunset."

OWN = {"guidance": BUNDLED_SAMPLING.guidance, "temperature": BUNDLED_SAMPLING.temperature}
"""What the bundled model draws by, where that is not what ``Sampling`` has unless told."""


def images(comfy, outputs) -> list[np.ndarray]:
    return [np.asarray(Image.open(io.BytesIO(data)).convert("RGB")) for data in comfy.files(outputs)]


@pytest.mark.contract
def test_shipped_workflow_gives_the_image_of_the_engine(comfy, graph, reference):
    text = graph.inputs("CLIPTextEncode")["text"]
    sampler = graph.inputs("ADTTreeSampler")
    (image,) = images(comfy, comfy.run(graph.prompt))
    numbers = {name: sampler[name] for name in ("seed", "guidance", "temperature")}
    expected = reference(prompt=text, sampling=numbers)["images"]
    np.testing.assert_array_equal(image, expected[0])
    assert image.std() > 20, "that is not a picture"


@pytest.mark.contract
def test_saved_png_brings_its_workflow_along(comfy, graph):
    (data,) = comfy.files(comfy.run(graph.prompt, extra_pnginfo={"workflow": {"nodes": []}}))
    saved = Image.open(io.BytesIO(data)).info
    workflow = json.loads(saved["workflow"])
    assert set(workflow.pop("extra")) == {"adt_tree_maps"} and workflow == {"nodes": []}
    prompt = json.loads(saved["prompt"])
    for node in prompt.values():
        node.pop("is_changed", None)  # ComfyUI's note of what fingerprint_inputs said
    assert prompt == graph.prompt


@pytest.mark.parametrize(
    "method, proposal", [("autoregressive", "coupled"), ("eagle2", "coupled"), ("adt-tree", "top-k")]
)
@pytest.mark.small_models
def test_drafting_does_not_change_the_image(comfy, graph, reference, method, proposal):
    graph.set("CLIPTextEncode", text=PROMPT).set("ADTTreeSampler", seed=2**64 - 1)
    graph.set("ADTTreeSettings", method=method, proposal=proposal)
    (image,) = images(comfy, comfy.run(graph.prompt))
    expected = reference(prompt=PROMPT, sampling={"seed": 2**64 - 1})["images"][0]
    # In float32 about one token in 1e5 is so near a tie that rounding decides it; these two are known not to be.
    np.testing.assert_array_equal(image, expected)


@pytest.mark.small_models
def test_without_drafter_and_settings_nodes(comfy, graph, reference):
    graph.set("CLIPTextEncode", text=PROMPT).set("ADTTreeSampler", seed=2**64 - 1).drop(
        "ADTTreeSampler", "drafter", "negative"
    )
    graph.set("ADTTreeSettings", method="autoregressive")
    (image,) = images(comfy, comfy.run(graph.prompt))
    np.testing.assert_array_equal(image, reference(prompt=PROMPT, sampling={"seed": 2**64 - 1})["images"][0])


@pytest.mark.parametrize(
    "speed, method", [("Auto", "auto"), ("Exact ADT-Tree", "adt-tree"), ("Plain", "autoregressive")]
)
def test_the_model_alone_is_enough(comfy, graph, reference, speed, method):
    """Without a drafter the sampler takes the model's own; whatever the speed, the image is the seed's."""
    graph.set("CLIPTextEncode", text=PROMPT).set("ADTTreeSampler", seed=2**64 - 1, speed=speed, preset="model's own")
    graph.drop("ADTTreeSampler", "drafter", "settings", "negative")
    text, _ = graph.add("PreviewAny", source=[graph.add("ADTTreeFigures", trace=[graph.id("ADTTreeSampler"), 1])[0], 1])
    outputs = comfy.run(graph.prompt)
    figures = json.loads(outputs[text]["text"][0])
    assert figures["method"] == method and (figures["tau"] > 1) is (speed != "Plain")
    (image,) = images(comfy, {key: value for key, value in outputs.items() if key != text})
    np.testing.assert_array_equal(image, reference(prompt=PROMPT, sampling={"seed": 2**64 - 1, **OWN})["images"][0])


@pytest.mark.small_models
def test_relaxed_is_lantern_with_its_usual_bounds(comfy, graph):
    graph.set("CLIPTextEncode", text=PROMPT).set("ADTTreeSampler", seed=5, speed="Relaxed (LANTERN)")
    graph.drop("ADTTreeSampler", "drafter", "settings", "negative")
    text, _ = graph.add("PreviewAny", source=[graph.add("ADTTreeFigures", trace=[graph.id("ADTTreeSampler"), 1])[0], 1])
    outputs = comfy.run(graph.prompt)
    figures = json.loads(outputs[text]["text"][0])
    assert figures["lantern"]["delta"] == 0.1 and figures["method"] == "auto"
    assert outputs[graph.id("ADTTreeSampler")]["adt_tree_map"][0]["relaxed"] is True, "the map does not say so"


def test_custom_numbers_hold_and_the_model_s_own_do_not(comfy, graph, reference):
    graph.set("CLIPTextEncode", text=PROMPT).set("ADTTreeSampler", seed=5, guidance=1.5, top_k=40, preset="custom")
    (image,) = images(comfy, comfy.run(graph.prompt))
    expected = {"seed": 5, "guidance": 1.5, "top_k": 40}
    np.testing.assert_array_equal(image, reference(prompt=PROMPT, sampling=expected)["images"][0])
    (own,) = images(comfy, comfy.run(graph.set("ADTTreeSampler", preset="model's own").prompt))
    np.testing.assert_array_equal(own, reference(prompt=PROMPT, sampling={"seed": 5, **OWN})["images"][0])


@pytest.mark.small_models
def test_the_drafter_without_files_gives_the_same_image(comfy, graph, reference):
    graph.set("CLIPTextEncode", text=PROMPT).set("ADTTreeSampler", seed=2**64 - 1).drop("ADTTreeSampler", "settings")
    graph.set("ADTTreeDrafterLoader", drafter="jacobi")
    (image,) = images(comfy, comfy.run(graph.prompt))
    np.testing.assert_array_equal(image, reference(prompt=PROMPT, sampling={"seed": 2**64 - 1})["images"][0])


@pytest.mark.parametrize(
    "values", [{"neighbours": 10, "delta": 0.4}, {"neighbours": 10, "factor": 5.0}, {"delta": 0.0}]
)
@pytest.mark.small_models
def test_lantern_gives_the_engines_relaxed_image(comfy, graph, reference, values):
    rule = "lambda (LANTERN++)" if "factor" in values else "delta (LANTERN)"
    lantern = graph.add(
        "ADTTreeLantern",
        **{"rule": rule, "neighbours": 20, "delta": 0.1, "factor": 2.0, "max_substitution": 1.0, **values},
    )
    graph.set("CLIPTextEncode", text=PROMPT).set("ADTTreeSampler", seed=5, lantern=lantern)
    (image,) = images(comfy, comfy.run(graph.set("ADTTreeSettings", method="adt-tree").prompt))
    relaxed = reference(prompt=PROMPT, sampling={"seed": 5}, drafting={"method": "adt-tree"}, lantern=values)
    np.testing.assert_array_equal(image, relaxed["images"][0])
    exact = reference(prompt=PROMPT, sampling={"seed": 5})["images"][0]
    assert np.array_equal(image, exact) == (values.get("delta") == 0)


@pytest.mark.contract
@pytest.mark.small_models
def test_batch_is_the_same_images_and_latents_hold_codebook_vectors(comfy, graph, reference):
    """Three at once are what the engine makes of image indices 0, 1 and 2; the first is the image of a batch of one."""
    sampling = {"seed": 5, "guidance": 2.0, "temperature": 0.9, "top_k": 30, "top_p": 0.98}
    graph.set("CLIPTextEncode", text=PROMPT).set("ADTTreeSampler", batch_size=3, **sampling)
    graph.add("SaveLatent", samples=graph.link("ADTTreeSampler"), filename_prefix="batch")
    outputs = comfy.run(graph.prompt)
    together = images(comfy, outputs)
    expected = reference(prompt=PROMPT, sampling=sampling, count=3)
    np.testing.assert_array_equal(np.stack(together), expected["images"])
    (latent,) = comfy.files(outputs, "latents")
    samples = safetensors.numpy.load(latent)["latent_tensor"]
    assert samples.dtype == np.float32
    np.testing.assert_array_equal(samples, expected["samples"])
    assert not np.array_equal(together[0], together[1])
    graph.set("ADTTreeSampler", batch_size=1)
    (alone,) = images(comfy, comfy.run(graph.prompt))
    np.testing.assert_array_equal(alone, together[0])


@pytest.mark.small_models
def test_negative_prompt_takes_the_place_of_the_row_without_text(comfy, graph, reference):
    graph.set("CLIPTextEncode", text=PROMPT)
    graph.prompt[graph.id("CLIPTextEncode", 1)]["inputs"]["text"] = "A red car on a street."
    (image,) = images(comfy, comfy.run(graph.prompt))
    np.testing.assert_array_equal(image, reference(prompt=PROMPT, negative="A red car on a street.")["images"][0])
    assert not np.array_equal(image, reference(prompt=PROMPT)["images"][0])


@pytest.mark.contract
@pytest.mark.small_models
def test_same_seed_same_image_after_everything_was_unloaded(comfy, graph):
    graph.set("ADTTreeSampler", seed=11)
    (before,) = images(comfy, comfy.run(graph.prompt))
    comfy.free()
    with comfy.socket() as browser:
        (after,) = images(comfy, comfy.run(graph.prompt, client=browser.id))
        executed = {m.data["node"] for m in browser.messages if m.type == "executing"}
    assert graph.id("ADTTreeModelLoader") in executed, "nothing was freed"
    np.testing.assert_array_equal(before, after)


@pytest.mark.contract
def test_people_can_watch(comfy, graph):
    """The bar counts all tokens, and the image is seen forming. Figures stand once, on the map."""
    graph.set("ADTTreeSampler", seed=77, batch_size=2).set("ADTTreeSettings", method="autoregressive")
    with comfy.socket() as browser:
        outputs = comfy.run(graph.prompt, client=browser.id)
        browser.wait_for(lambda m: m.type == "execution_success")
        sampler, total = graph.id("ADTTreeSampler"), 2 * tokens(comfy, graph, outputs)
        steps = [(m.at, m.data) for m in browser.messages if m.type == "progress" and m.data["node"] == sampler]
        values = [data["value"] for _, data in steps]
        assert values == sorted(values) and values[-1] == total and {data["max"] for _, data in steps} == {total}
        assert 4 < len(values) < 12 * (steps[-1][0] - steps[0][0]) + 4, "about ten a second"
        previews = [m.data for m in browser.messages if m.type in (1, 4)]
        assert previews, "no preview"
        assert Image.open(io.BytesIO(previews[0][4:])).format == "JPEG"  # after the number of the image format
        assert not [m for m in browser.messages if m.type == 3]


@pytest.mark.contract
@pytest.mark.small_models
def test_preview_method_none_is_respected(comfy, graph):
    graph.set("ADTTreeSampler", seed=78, batch_size=2)
    with comfy.socket() as browser:
        comfy.run(graph.prompt, client=browser.id, preview_method="none")
        browser.wait_for(lambda m: m.type == "execution_success")
        assert not [m for m in browser.messages if m.type in (1, 4)]


def test_trace_says_what_was_drafted(comfy, graph):
    graph.add("ProbeReadTrace", trace=graph.link("ADTTreeSampler", 1))
    outputs = comfy.run(graph.set("ADTTreeSettings", method="adt-tree").prompt)
    (text,) = next(output["text"] for output in outputs.values() if "text" in output)
    report = json.loads(text)["report"]
    assert report["method"] == "adt-tree" and report["seed"] == graph.inputs("ADTTreeSampler")["seed"]
    assert report["tau"] > 1 and report["target_forwards"] < report["tokens"]


@pytest.mark.contract
def test_stock_nodes_round_trip_pixels_and_latents(comfy, graph):
    """Encode and decode, tiled or not, give the same; decoding a decoded image again stays close to it; alpha is
    dropped."""
    image, vae = graph.link("VAEDecode"), graph.link("ADTTreeModelLoader", 2)
    plain = graph.add("VAEEncode", pixels=image, vae=vae)
    tiled = graph.add(
        "VAEEncodeTiled", pixels=image, vae=vae, tile_size=512, overlap=64, temporal_size=64, temporal_overlap=8
    )
    again = [graph.add("VAEDecode", samples=plain, vae=vae)]
    again.append(
        graph.add(
            "VAEDecodeTiled", samples=tiled, vae=vae, tile_size=512, overlap=64, temporal_size=64, temporal_overlap=8
        )
    )
    mask = graph.add("SolidMask", value=0.5, width=64, height=64)
    see_through = graph.add("JoinImageWithAlpha", image=image, alpha=mask)
    again.append(graph.add("VAEDecode", samples=graph.add("VAEEncode", pixels=see_through, vae=vae), vae=vae))
    for link in again:
        graph.add("PreviewImage", images=link)
    first, *rest = sorted_images(comfy, comfy.run(graph.prompt))
    assert len(rest) == 3
    for other in rest:
        np.testing.assert_array_equal(other, rest[0])
    assert np.abs(first.astype(float) - rest[0]).mean() < 20


@pytest.mark.small_models
def test_latents_can_be_upscaled_and_odd_images_encoded(comfy, graph):
    """What leaves stock latent nodes is rounded to codes again; images that no grid of tokens fits are cropped."""
    vae = graph.link("ADTTreeModelLoader", 2)
    grown = graph.add(
        "LatentUpscaleBy", samples=graph.link("ADTTreeSampler"), upscale_method="nearest-exact", scale_by=1.5
    )
    graph.add("PreviewImage", images=graph.add("VAEDecode", samples=grown, vae=vae))
    odd = graph.add("EmptyImage", width=75, height=53, batch_size=2, color=0x336699)
    cropped = graph.add("VAEEncode", pixels=odd, vae=vae)
    graph.add("PreviewImage", images=graph.add("VAEDecode", samples=cropped, vae=vae))
    first, *rest = sorted_images(comfy, comfy.run(graph.prompt))
    height, width, _ = first.shape
    assert sorted(image.shape for image in rest) == sorted(
        [(height * 3 // 2, width * 3 // 2, 3), (48, 72, 3), (48, 72, 3)]
    )


def sorted_images(comfy, outputs) -> list[np.ndarray]:
    """The saved image first, then the previews."""
    saved = {
        key: value for key, value in outputs.items() if any(i["type"] == "output" for i in value.get("images", ()))
    }
    return images(comfy, saved) + images(comfy, {key: value for key, value in outputs.items() if key not in saved})


def tokens(comfy, graph, outputs) -> int:
    """Tokens of one image: its pixels by the pixels of a token, which the test of odd sizes finds to be 8 by 8."""
    height, width, _ = images(comfy, outputs)[0].shape
    return height * width // 64


@pytest.mark.small_models
def test_the_benchmark_node_compares_and_writes_its_results(comfy, graph):
    inputs = {
        "model": graph.link("ADTTreeModelLoader"),
        "drafter": graph.link("ADTTreeDrafterLoader"),
        "prompts": f"{PROMPT}\nA red car on a street.\n",
    }
    node, _ = graph.add(
        "ADTTreeBenchmark", **inputs, count=4, methods="eagle2, jacobi", seed=3, guidance=3.0, temperature=1.0
    )
    before = set(comfy.base.glob("output/adt_tree_benchmark/*"))
    with comfy.socket() as browser:
        outputs = comfy.run(
            {key: graph.prompt[key] for key in (node, *(link[0] for link in list(inputs.values())[:2]))},
            client=browser.id,
        )
        browser.wait_for(lambda m: m.type == "execution_success")
        steps = [m.data["value"] for m in browser.messages if m.type == "progress" and m.data["node"] == node]
    assert steps == [1, 2]
    (table,) = outputs[node]["text"]
    (folder,) = set(comfy.base.glob("output/adt_tree_benchmark/*")) - before
    assert (folder / "results.md").read_text(encoding="utf-8") == table
    assert folder.name.startswith(f"{SMALL}-"), "a name that people can read"
    results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    assert [row["method"] for row in results["summary"]] == ["autoregressive", "eagle2", "jacobi"]
    assert (
        all(row["identical"] == 2 and row["tau"] >= 1 for row in results["summary"])
        and Path(results["settings"]["drafter"]).name == SMALL
    )
    assert sorted(results["settings"]["prompts"]) == [
        "A blue sailboat in the middle of a calm lake at sunset.",
        "A red car on a street.",
    ]
    assert len(list(folder.glob("images/autoregressive/*.png"))) == 2
