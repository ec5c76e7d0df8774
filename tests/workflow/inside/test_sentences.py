"""Tests of the nodes' error messages. A message must name the input and the remedy, and no file may be written."""

import shutil
from pathlib import Path

import pytest
import torch

from adt_core.models.load import find_published

LONG = "a red house " * 500
NUMBERS = {"seed": 0, "guidance": 3.0, "temperature": 1.0}
PUBLISHED = [
    *("Anole-7b-v0.1-hf", "Lumina-mGPT-7B-768", "Lumina-mGPT-2.0", "LlamaGen-T2I-2", "Janus-Pro-1B", "Emu3-Gen-hf"),
    "Liquid_V1_7B",
]


@pytest.fixture
def sampler_error(pack, model, encoded):
    """Return a function that runs the sampler with a prompt and other inputs. It returns the error message."""
    return lambda text="a cat", **inputs: pack.fails(
        "ADTTreeSampler", **{"model": model, "positive": encoded(text), "batch_size": 1, **inputs}
    )


@pytest.fixture(scope="session")
def diffusion_inputs():
    """Return a prompt and a latent that belong to a diffusion model."""
    return [[torch.zeros(1, 77, 16), {"pooled_output": torch.zeros(1, 16)}]], {"samples": torch.zeros(1, 4, 16, 16)}


def test_prompts_that_are_empty_or_too_long(pack, sampler_error, encoded):
    assert "prompt is empty" in sampler_error("  ")
    message = sampler_error(LONG)
    assert message == (
        "Prompt too long: 1500 tokens; the bundled model accepts 125; shorten it, or set invalid_prompts to 'truncate' "
        "(under advanced inputs)."
    )
    message = sampler_error(negative=encoded(LONG))
    assert message.startswith("Negative prompt too long: 1500 tokens; ")


def test_prompts_of_other_models_and_combined_prompts(pack, sampler_error, encoded, diffusion_inputs):
    message = sampler_error(positive=diffusion_inputs[0])
    assert message.startswith("positive: ") and "CLIP Text Encode" in message
    assert sampler_error(negative=diffusion_inputs[0]).startswith("negative: ")
    prompt = encoded("a cat")
    assert "2 prompts are combined" in sampler_error(positive=prompt + prompt)
    area = pack.run("ConditioningSetArea", conditioning=prompt, width=64, height=64, x=0, y=0, strength=1.0)[0]
    assert "area" in sampler_error(positive=area)


def test_our_prompt_in_nodes_that_need_embeddings(pack, encoded, diffusion_inputs):
    message = pack.fails("ConditioningZeroOut", conditioning=encoded("a cat"))
    assert "text, not an embedding" in message and "negative empty" in message
    embedding, latent = diffusion_inputs
    (diffusion,) = pack.run("ProbeDiffusionModel")
    k_sampler = {"model": diffusion, "negative": embedding, "latent_image": latent, "seed": 0, "steps": 1, "cfg": 2.0}
    k_sampler |= {"sampler_name": "euler", "scheduler": "normal", "denoise": 1.0}
    assert "text, not an embedding" in pack.fails("KSampler", positive=encoded("a cat"), **k_sampler)
    assert pack.run("KSampler", positive=embedding, **k_sampler), "a diffusion prompt works"
    ours = {"samples": torch.ones(1, 6, 16, 16)}
    with pytest.raises(RuntimeError, match="channels"):
        pack.run("KSampler", positive=embedding, **k_sampler | {"latent_image": ours})


def test_stock_nodes_that_need_other_models(pack, loaded):
    _, clip, vae = loaded
    sizes = dict.fromkeys(("width", "height", "crop_w", "crop_h", "target_width", "target_height"), 64)
    message = pack.fails("CLIPTextEncodeSDXL", clip=clip, text_g="a house", text_l="a house", **sizes)
    assert "plain CLIP Text Encode" in message
    with pytest.raises(AttributeError, match="works with the VAE Decode"):
        pack.run("VAESave", vae=vae, filename_prefix="vae")


def test_incompatible_inputs(pack, model, sampler_error):
    other = pack.run("ADTTreeModelLoader", model="bundled", dtype="bfloat16")[0]
    (drafter,) = pack.run("ADTTreeDrafterLoader", model=other)
    message = sampler_error(drafter=drafter)
    assert "drafter" in message and "another model" in message
    (jacobi,) = pack.run("ADTTreeDrafterLoader", model=model, drafter="jacobi")
    asked = {"model": model, "drafter": jacobi, "prompts": "a cat", "count": 1, "methods": "jacobi,adt-tree"}
    assert "'adt-tree' needs a drafter network" in pack.fails("ADTTreeBenchmark", **asked, **NUMBERS)


@pytest.mark.parametrize(
    "shape, value, words",
    [
        ((1, 4, 16, 16), 0.0, ("is empty, as from Empty Latent Image", "remove the link")),
        ((1, None, 16, 16), 0.0, ("is empty, as from Empty Latent Image", "remove the link")),
        ((1, None, 12, 8), 1.0, ("12 rows and 8 columns", "128 by 128 pixels")),
    ],
)
def test_latents_that_do_not_fit(pack, model, loaded, sampler_error, shape, value, words):
    channels = model.target.codec.codebook.shape[1]
    samples = torch.full([channels if side is None else side for side in shape], value)
    message = sampler_error(latent_image={"samples": samples})
    assert message.startswith("latent_image: ") and all(word in message for word in words)
    if None not in shape:
        message = pack.fails("VAEDecode", vae=loaded[2], samples={"samples": samples})
        assert message.startswith("samples: ") and "[1, 4, 16, 16]" in message


@pytest.mark.parametrize(
    "mask, words",
    [
        (torch.full((1, 64, 64), float("nan")), "not a number"),
        (torch.ones(1, 3, 64, 64), "shape [1, 3, 64, 64]"),
        ("a text", "is not a mask"),
    ],
    ids=["nan", "channels", "text"],
)
def test_masks_that_are_refused(model, sampler_error, mask, words):
    samples = torch.ones(1, model.target.codec.codebook.shape[1], 16, 16)
    message = sampler_error(latent_image={"samples": samples, "noise_mask": mask})
    assert message.startswith("latent_image: ") and words in message


def test_a_latent_of_another_model(sampler_error):
    message = sampler_error(latent_image={"samples": torch.ones(1, 4, 16, 16)})
    assert "has the shape [1, 4, 16, 16]" in message and "VAE Encode" in message


def test_sizes_and_batches_that_do_not_fit(pack, model, encoded):
    message = pack.fails("ADTTreeImageSize", model=model, width=256, height=128)
    assert (
        "size is 256x128, which bundled does not support: its images always have 16 x 16 tokens; try 128x128" in message
    )
    _, trace = pack.run("ADTTreeSampler", model=model, positive=encoded("a cat"), batch_size=1)
    message = pack.fails("ADTTreeMapToImage", trace=trace, show="depth", opacity=0.5, images=torch.zeros(3, 64, 64, 3))
    assert message.startswith("images: 3 were given, but the trace is of 1")


@pytest.mark.parametrize(
    "inputs, words",
    [
        ({"text": "a cat", "filter": "no such thing"}, "filter: none of the 1 prompts"),
        ({"text": "a cat", "start_index": 10}, "start_index is 10"),
    ],
)
def test_list_without_remaining_prompts(pack, inputs, words):
    assert words in pack.fails("ADTTreePrompts", **inputs)


@pytest.mark.parametrize(
    "lists, words",
    [
        ({"prompts": ["a cat", "a dog"], "ids": ["1"]}, "ids: 1 ids arrived for 2 prompts"),
        ({"prompts": ["a cat", "a dog"], "seeds": [7]}, "seeds: 1 seeds arrived for 2 prompts"),
        ({"prompts": [LONG]}, "the id '1': Prompt too long: "),
        ({"prompts": []}, "prompts: none arrived"),
        ({"prompts": ["a fox", None]}, "prompts: None is among them"),
        ({"prompts": ["a cat"], "negative": [LONG]}, "negative: Prompt too long: "),
        ({"prompts": ["a cat"], "seed": [1, 2]}, "seed: 2 values arrived"),
    ],
)
def test_lists_that_do_not_fit_a_batch(pack, model, lists, words):
    assert words in pack.fails("ADTTreeBatchSampler", model=[model], **lists)


@pytest.mark.parametrize("name", PUBLISHED)
def test_missing_published_model_error_explains_the_download(pack, name):
    row = find_published(name)
    assert pack.refused("ADTTreeModelLoader", model=name) == [], "the node's error is more detailed"
    message = pack.fails("ADTTreeModelLoader", model=name)
    home = Path("models", "ar_image")  # relative to ComfyUI's folder, which is nobody else's business
    assert message == (
        f"model: '{row.name}' is not installed; set if_missing to 'download' and run again, or "
        f"{row.how_to_get(home)} and press R."
    )
    assert f"download {row.name} --to {home.as_posix()}`" in message and row.size in message


def test_unknown_model_error_lists_ten_models(pack, monkeypatch):
    """API users don't see the list of models, so the error lists some. Installed models come first."""
    (message,) = pack.refused("ADTTreeModelLoader", model="no-such-model")
    assert "'no-such-model' is in no folder" in message
    named = message.partition("or choose another: ")[2].rstrip(".")
    *first, last = named.split(", ")
    assert first[0] == "bundled" and len(first) == 9 and " and " in last
    folders = pack.package(".nodes.folders")
    assert [*first, last.split(" and ")[0]] == folders.offered()[:10]
    assert pack.fails("ADTTreeModelLoader", model="no-such-model", dtype="auto").endswith(message.partition(": ")[2])
    monkeypatch.setattr(folders, "offered", lambda: ["bundled", "other"])
    assert "another: bundled, other." in pack.refused("ADTTreeModelLoader", model="no-such-model")[0]


def test_damaged_model(pack):
    cut = shutil.copytree(pack.bundled / "target", pack.base / "models" / "LLM" / "cut")
    weights = next(cut.glob("*.safetensors"))
    weights.write_bytes(weights.read_bytes()[: weights.stat().st_size // 2])
    message = pack.fails("ADTTreeModelLoader", model="cut")
    assert "model.safetensors" in message and "download it again" in message


def test_unknown_inputs(pack):
    """The name is an unpaired surrogate, which no log can print. The message must escape it."""
    for kind in set(pack.ours) - {"ADTTreeBatchSampler", "ADTTreeSettings", "ADTTreeTrainDrafter"}:
        assert r"'\ud800' is no input of this node" in pack.fails(kind, **{"\ud800": 1}), kind


@pytest.fixture
def gpu(pack, monkeypatch):
    """Return a function that simulates a GPU with this memory in bytes. Nothing can be moved to this GPU."""
    # chooses its device when it is imported, so import it after the pack has loaded ComfyUI
    import comfy.model_management as mm

    def shrink(size: int) -> None:
        monkeypatch.setattr(mm, "get_torch_device", lambda: torch.device("meta"))
        monkeypatch.setattr(mm, "get_total_memory", lambda *_: size)

    return shrink


def test_models_and_images_larger_than_the_gpu(pack, gpu):
    """The error must be raised before anything is moved. It must not depend on the batch size: one image must fit."""
    gpu(2**30 // 20)
    model, clip, _ = pack.run("ADTTreeModelLoader", dtype="float32")
    positive = pack.run("CLIPTextEncode", clip=clip, text="a cat")[0]
    asked = {"positive": positive, "drafting": "No drafting"}
    sentence = "bundled needs 0.1 GiB with its working memory, and meta has 0.0 GiB; choose {}a smaller model."
    for size in (1, 64):
        message = pack.fails("ADTTreeSampler", model=model, batch_size=size, **asked)
        assert message == sentence.format("'int8 weights' or 'int4 weights' in the Model Loader, or ")
    gpu(2**20)
    for dtype, smaller in (("int8 weights", "'int4 weights' in the Model Loader, or "), ("int4 weights", "")):
        model, _, vae = pack.run("ADTTreeModelLoader", dtype=dtype)
        message = pack.fails("ADTTreeSampler", model=model, batch_size=1, **asked)
        assert message.endswith(f"; choose {smaller}a smaller model.")
    message = pack.fails("VAEEncode", pixels=torch.zeros(1, 1024, 1024, 3), vae=vae)
    assert message.startswith("bundled's image tokeniser needs ") and message.endswith("; use a smaller image.")
