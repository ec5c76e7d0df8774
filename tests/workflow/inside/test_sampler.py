"""Tests of the Sampler node. It must generate the engine's images with any drafter, and continue images."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from reference import draw
from small import SMALL

from adt_core.models.load import BUNDLED_SAMPLING

CAR = "A red car on a street."
LAST_SEED = 2**64 - 1
BOUNDS = {"neighbours": 10, "delta": 0.4}


@pytest.mark.parametrize(
    "given, asked",
    [
        ({"settings": {"method": "no-drafting"}}, {}),
        ({"settings": {"method": "no-drafting"}, "drafter": None}, {}),
        ({"settings": {"method": "eagle2", "proposal": "coupled"}}, {}),
        ({"settings": {"method": "adt-tree", "proposal": "top-k"}}, {}),
        ({"drafter": "jacobi"}, {}),
        ({"drafter": None, "seed": LAST_SEED}, {"sampling": {"seed": LAST_SEED}}),
        ({"guidance": 1.5, "top_k": 40}, {"sampling": {"seed": 5, "guidance_scale": 1.5, "top_k": 40}}),
        ({"negative": CAR}, {"negative": CAR}),
        ({"batch_size": 3, "top_p": 0.98}, {"count": 3, "sampling": {"seed": 5, "top_p": 0.98}}),
    ],
)
def test_image_equals_the_engines(small, given, asked):
    """No token of these images is nearly tied; in float32, rounding decides about one token of 1e5."""
    given = {name: small.text(value) if name == "negative" else value for name, value in given.items()}
    if "drafter" in given:
        given["drafter"] = small.drafters.get(given["drafter"])
    found = small.vectors(**given)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, small.expected(**asked)["samples"])
    if "negative" in asked:
        assert not np.array_equal(found, small.expected()["samples"])
    if "count" in asked:
        assert not np.array_equal(found[0], found[1])


@pytest.mark.parametrize("preset", ["custom", "model default"])
def test_noise_setting_is_independent_of_the_preset(pack, small, preset):
    """The images of a batch must equal a batch of the original script."""
    chosen = {"preset": preset, "noise": "original-script"}
    own = {} if preset == "custom" else small.model.target.published_sampling._asdict()
    sampling = {"seed": 5, **{name: own[name] for name in ("temperature", "guidance_scale", "top_p") if own}}
    expected = small.expected(count=2, sampling={**sampling, "noise": "original-script"})["samples"]
    np.testing.assert_array_equal(small.vectors(batch_size=2, **chosen), expected)
    assert not np.array_equal(small.vectors(batch_size=2, preset=preset), expected)
    batch = {"model": [small.model], "prompts": [small.PROMPT], "seed": [5]}
    *_, results = pack.run("ADTTreeBatchSampler", **batch, noise=["original-script"])
    assert results.settings["noise"] == "original-script"


@pytest.mark.parametrize("values", [BOUNDS, {"neighbours": 10, "factor": 5.0}, {"delta": 0.0}])
def test_lantern_image_equals_the_engines(pack, small, values):
    rule = "factor (LANTERN++)" if "factor" in values else "delta (LANTERN)"
    (lantern,) = pack.run("ADTTreeLANTERN", **{"rule": rule, "neighbours": 20, "delta": 0.1, **values})
    adt_tree = {"method": "adt-tree"}
    latent, trace = small.sample(settings=adt_tree, lantern=lantern)
    np.testing.assert_array_equal(latent["samples"], small.expected(drafting=adt_tree, lantern=values)["samples"])
    exact = np.array_equal(latent["samples"], small.expected()["samples"])
    assert exact == (values.get("delta") == 0)
    text, figures = pack.run("ADTTreeRunStats", trace=trace)
    replaced = 100 * json.loads(figures)["substitution_rate"]
    assert f"Relaxed ({replaced:.1f} % of the tokens replaced by LANTERN)" in text, "shown even if none was replaced"
    assert (replaced > 0) is not exact


def test_relaxed_uses_lanterns_default_bounds(pack, small):
    _, trace = small.sample(drafting="Auto + LANTERN", drafter=None)
    figures = json.loads(pack.run("ADTTreeRunStats", trace=trace)[1])
    assert figures["method"] == "auto"
    assert figures["lantern"]["delta"] == small.model.target.published_sampling.lantern.delta


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_with_lantern_a_seed_gives_the_same_image_after_other_images(pack, small, monkeypatch, tmp_path, dtype):
    """Auto learns from the images between. The learned costs must not change its trees with LANTERN."""
    monkeypatch.setenv("ADT_TREE_CACHE", str(tmp_path))
    monkeypatch.setattr(small, "model", pack.run("ADTTreeModelLoader", model=SMALL, dtype=dtype)[0])
    (drafter,) = small.run("ADTTreeDrafterLoader", drafter=SMALL)
    (lantern,) = pack.run("ADTTreeLANTERN", rule="delta (LANTERN)", neighbours=20, delta=1.0)
    relaxed = {"drafting": "Auto + LANTERN", "lantern": lantern, "drafter": drafter}
    first = small.vectors(**relaxed)
    for seed in range(6, 11):
        small.sample(seed=seed, drafter=drafter)
    assert list(tmp_path.glob("costs-*")), "costs must have been learned"
    np.testing.assert_array_equal(small.vectors(**relaxed), first)
    assert not np.array_equal(small.vectors(drafter=drafter), first)


@pytest.mark.long
@pytest.mark.parametrize("speed, method", [("Auto", "auto"), ("ADT-Tree", "adt-tree"), ("No drafting", "no-drafting")])
def test_sampler_needs_only_a_model(pack, model, encoded, speed, method):
    """The model's default drafter and the preset's settings must be used. The speed must not change the image."""
    text = "A red house."
    own = {"guidance_scale": BUNDLED_SAMPLING.guidance_scale, "temperature": BUNDLED_SAMPLING.temperature}
    asked = {"model": model, "positive": encoded(text), "batch_size": 1, "seed": LAST_SEED, "drafting": speed}
    latent, trace = pack.run("ADTTreeSampler", **asked, guidance=9.0, preset="model default")
    expected = draw(prompt=text, sampling={"seed": LAST_SEED, **own})["samples"]
    np.testing.assert_array_equal(latent["samples"], expected)
    words, data = pack.run("ADTTreeRunStats", trace=trace)
    figures = json.loads(data)
    assert figures["method"] == method and figures["seed"] == LAST_SEED
    assert figures["tau"] > 1 or speed != "ADT-Tree"
    assert f"{figures['tokens']} tokens in {figures['seconds']:.2f} s" in words
    assert f"{figures['tau']:.2f} tokens per image in each" in words
    assert ("% of the time spent on drafting" in words) is (figures["drafting_seconds"] > 0)
    on_a_gpu = replace(trace, rounds=[replace(entry, drafting=0.0) for entry in trace.rounds])
    assert "spent on drafting" not in pack.run("ADTTreeRunStats", trace=on_a_gpu)[0], "not measured on a GPU"


def test_continuing_an_image_with_its_own_seed_reproduces_it(small):
    complete, _ = small.sample()
    for keep in (0.0, 0.4, 1.0):
        np.testing.assert_array_equal(small.vectors(latent_image=complete, keep_top=keep), complete["samples"])


@pytest.mark.parametrize("changes", [{"seed": 6}, {"positive": CAR}, {"seed": 6, "keep_left": 0.5}])
def test_another_seed_or_prompt_changes_only_the_rest(small, changes):
    complete, _ = small.sample()
    changes = {name: small.text(value) if name == "positive" else value for name, value in changes.items()}
    found = small.vectors(latent_image=complete, keep_top=0.5, **changes)
    before = complete["samples"].numpy()
    half = before.shape[2] // 2
    np.testing.assert_array_equal(found[:, :, :half], before[:, :, :half])
    left = half if "keep_left" in changes else 0
    np.testing.assert_array_equal(found[:, :, half, :left], before[:, :, half, :left])
    assert (found[:, :, half:] != before[:, :, half:]).any()


@pytest.mark.parametrize("shape", [(16, 16), (1, 64, 64), (1, 1, 128, 128)], ids=str)
def test_only_the_masked_part_is_generated(pack, small, shape):
    complete, _ = small.sample()
    height, width = shape[-2:]
    mask = torch.zeros(shape)
    mask[..., height // 4 : height // 2, width // 4 : 3 * width // 4] = 1
    (masked,) = pack.run("SetLatentNoiseMask", samples=complete, mask=mask)
    np.testing.assert_array_equal(small.vectors(latent_image=masked), complete["samples"])  # its own seed
    found = small.vectors(latent_image=masked, seed=6, keep_top=0.9)
    before = complete["samples"].numpy()
    rows, columns = before.shape[2:]
    inside = np.zeros((rows, columns), bool)
    inside[rows // 4 : rows // 2, columns // 4 : 3 * columns // 4] = True
    np.testing.assert_array_equal(found[..., ~inside], before[..., ~inside])
    assert (found[..., inside] != before[..., inside]).any()


def test_an_empty_mask_keeps_the_image_and_says_so(small, caplog):
    complete, _ = small.sample()
    found = small.vectors(latent_image={**complete, "noise_mask": torch.zeros(1, 1, 64, 64)}, seed=6)
    np.testing.assert_array_equal(found, complete["samples"])
    assert "Open it in MaskEditor" in caplog.text


def test_masks_of_a_batch(pack, small):
    """The second image of the batch and its copy get the second mask."""
    pair, _ = small.sample(batch_size=2)
    masks = torch.zeros(2, *pair["samples"].shape[2:])
    masks[0, 5:] = masks[1, 2:4, 2:4] = 1
    found = small.vectors(latent_image={**pair, "noise_mask": masks}, batch_size=2, seed=6)
    before = pair["samples"].numpy()
    for copy in range(4):
        kept = masks[copy % 2].numpy() == 0
        np.testing.assert_array_equal(found[copy][:, kept], before[copy % 2][:, kept])


def test_batch_size_multiplies_the_batch_of_the_latent(pack, small):
    pair, _ = small.sample(batch_size=2)
    samples = pair["samples"].numpy()
    four = small.vectors(latent_image=pair, keep_top=0.25, batch_size=2)
    assert four.shape[0] == 4
    np.testing.assert_array_equal(four[:2], samples)  # the same seed and noise reproduce these images
    rows = samples.shape[2] // 4
    np.testing.assert_array_equal(four[2:, :, :rows], samples[:, :, :rows])
    assert not np.array_equal(four[2:], samples)
    (single,) = pack.run("LatentFromBatch", samples=pair, batch_index=1, length=1)
    found = small.vectors(latent_image=single, keep_top=0.25)
    np.testing.assert_array_equal(found, samples[1:])  # an image from a batch keeps its noise


def test_stock_nodes_round_trip_pixels_and_latents(pack, loaded, encoded):
    """A second round trip, tiled or not, must not change an image further. Alpha must be dropped."""
    model, _, vae = loaded
    latent, _ = pack.run("ADTTreeSampler", model=model, positive=encoded("A red house."), batch_size=1, seed=3)
    (image,) = pack.run("VAEDecode", samples=latent, vae=vae)
    tiles = {"vae": vae, "tile_size": 512, "overlap": 64, "temporal_size": 64, "temporal_overlap": 8}
    (encoded_again,) = pack.run("VAEEncode", pixels=image, vae=vae)
    (plain,) = pack.run("VAEDecode", samples=encoded_again, vae=vae)
    (tiled,) = pack.run("VAEEncodeTiled", pixels=image, **tiles)
    np.testing.assert_array_equal(pack.run("VAEDecodeTiled", samples=tiled, **tiles)[0], plain)
    see_through = np.concatenate([image, np.full_like(image[..., :1], 0.5)], axis=3)
    (seen,) = pack.run("VAEEncode", pixels=image.new_tensor(see_through), vae=vae)
    np.testing.assert_array_equal(seen["samples"], encoded_again["samples"])
    assert (image - plain).abs().mean() < 20 / 255


def test_latents_can_be_upscaled_and_odd_images_encoded(pack, small):
    """Changed vectors must be rounded to codes, and images that don't fit a token grid must be cropped."""
    latent, _ = small.sample()
    (grown,) = pack.run("LatentUpscaleBy", samples=latent, upscale_method="nearest-exact", scale_by=1.5)
    assert pack.run("VAEDecode", samples=grown, vae=small.vae)[0].shape == (1, 96, 96, 3)
    (odd,) = pack.run("EmptyImage", width=75, height=53, batch_size=2, color=0x336699)
    (cropped,) = pack.run("VAEEncode", pixels=odd, vae=small.vae)
    assert pack.run("VAEDecode", samples=cropped, vae=small.vae)[0].shape == (2, 48, 72, 3)


@pytest.mark.long
def test_picture_is_continued_through_vae_encode(pack, loaded, encoded):
    """The kept half must equal the image, except for rounding to tokens. Drafting must not change the other half."""
    model, _, vae = loaded
    asked = {"model": model, "batch_size": 1}
    first, _ = pack.run("ADTTreeSampler", positive=encoded("A red house."), seed=3, **asked)
    (image,) = pack.run("VAEDecode", samples=first, vae=vae)
    (latent,) = pack.run("VAEEncode", pixels=image, vae=vae)
    asked |= {"positive": encoded("A blue sailboat on a lake at sunset."), "latent_image": latent, "keep_top": 0.5}
    found = [pack.run("ADTTreeSampler", drafting=speed, seed=9, **asked)[0] for speed in ("ADT-Tree", "No drafting")]
    np.testing.assert_array_equal(found[0]["samples"], found[1]["samples"])
    (continued,) = pack.run("VAEDecode", samples=found[0], vae=vae)
    top, bottom = (255 * (continued - image)[0, rows].abs().mean() for rows in (slice(0, 56), slice(64, 128)))
    assert top < 5 and bottom > 10, (top, bottom)
