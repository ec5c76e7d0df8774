"""Tests of the nodes' errors. No file may be written."""

import shutil
from pathlib import Path

import pytest
import torch

from adt_core.models.load import find_published
from tests.raising import check_error

LONG = "a red house " * 500
NUMBERS = {"seed": 0, "guidance": 3.0, "temperature": 1.0}
PUBLISHED = [
    *("Anole-7b-v0.1-hf", "Lumina-mGPT-7B-768", "Lumina-mGPT-2.0", "LlamaGen-T2I-2", "Janus-Pro-1B", "Emu3-Gen-hf"),
    "Liquid_V1_7B",
]


@pytest.fixture
def sampler_error(pack, model, encoded):
    """Return a function that runs the sampler with a prompt and other inputs. It returns the error."""
    return lambda text="a cat", **inputs: pack.fails(
        "ADTTreeSampler", **{"model": model, "positive": encoded(text), "batch_size": 1, **inputs}
    )


@pytest.fixture(scope="session")
def diffusion_inputs():
    return [[torch.zeros(1, 77, 16), {"pooled_output": torch.zeros(1, 16)}]], {"samples": torch.zeros(1, 4, 16, 16)}


def test_prompts_that_are_empty_or_too_long(pack, sampler_error, encoded):
    check_error(sampler_error("  "), "prompt.empty")
    error = sampler_error(LONG)
    check_error(error, "prompt.truncate", error="prompt.too_long")
    assert str(error) == (
        "Prompt too long: 1500 tokens; the bundled model accepts 125; shorten it, or set invalid_prompts to 'truncate' "
        "(under advanced inputs)."
    )
    check_error(sampler_error(negative=encoded(LONG)), "prompt.truncate", error="negative.too_long")


def test_prompts_of_other_models_and_combined_prompts(pack, sampler_error, encoded, diffusion_inputs):
    check_error(sampler_error(positive=diffusion_inputs[0]), "conditioning.other_model", input="positive")
    check_error(sampler_error(negative=diffusion_inputs[0]), "conditioning.other_model", input="negative")
    prompt = encoded("a cat")
    check_error(sampler_error(positive=prompt + prompt), "conditioning.combined", count=2)
    area = pack.run("ConditioningSetArea", conditioning=prompt, width=64, height=64, x=0, y=0, strength=1.0)[0]
    check_error(sampler_error(positive=area), "conditioning.changed", changes="area")


def test_our_prompt_in_nodes_that_need_embeddings(pack, encoded, diffusion_inputs):
    check_error(pack.fails("ConditioningZeroOut", conditioning=encoded("a cat")), "conditioning.is_text")
    embedding, latent = diffusion_inputs
    (diffusion,) = pack.run("ProbeDiffusionModel")
    k_sampler = {"model": diffusion, "negative": embedding, "latent_image": latent, "seed": 0, "steps": 1, "cfg": 2.0}
    k_sampler |= {"sampler_name": "euler", "scheduler": "normal", "denoise": 1.0}
    check_error(pack.fails("KSampler", positive=encoded("a cat"), **k_sampler), "conditioning.is_text")
    assert pack.run("KSampler", positive=embedding, **k_sampler), "a diffusion prompt works"
    ours = {"samples": torch.ones(1, 6, 16, 16)}
    with pytest.raises(RuntimeError, match="channels"):
        pack.run("KSampler", positive=embedding, **k_sampler | {"latent_image": ours})


def test_stock_nodes_that_need_other_models(pack, loaded):
    _, clip, vae = loaded
    sizes = dict.fromkeys(("width", "height", "crop_w", "crop_h", "target_width", "target_height"), 64)
    error = pack.fails("CLIPTextEncodeSDXL", clip=clip, text_g="a house", text_l="a house", **sizes)
    check_error(error, "clip.stream")
    with pytest.raises(AttributeError, match="works with the VAE Decode"):
        pack.run("VAESave", vae=vae, filename_prefix="vae")


def test_incompatible_inputs(pack, model, sampler_error):
    other = pack.run("ADTTreeModelLoader", model="bundled", dtype="bfloat16")[0]
    (drafter,) = pack.run("ADTTreeDrafterLoader", model=other)
    check_error(sampler_error(drafter=drafter), "drafter.other_model")
    (jacobi,) = pack.run("ADTTreeDrafterLoader", model=model, drafter="jacobi")
    asked = {"model": model, "drafter": jacobi, "prompts": "a cat", "count": 1, "methods": "jacobi,adt-tree"}
    check_error(pack.fails("ADTTreeBenchmark", **asked, **NUMBERS), "methods.needs_drafter", name="adt-tree")


@pytest.mark.parametrize(
    "shape, value, key, values",
    [
        ((1, 4, 16, 16), 0.0, "latent.empty", {}),
        ((1, None, 16, 16), 0.0, "latent.empty", {}),
        ((1, None, 12, 8), 1.0, "latent.size", {"token_rows": 12, "token_columns": 8, "width": 128, "height": 128}),
    ],
)
def test_latents_that_do_not_fit(pack, model, loaded, sampler_error, shape, value, key, values):
    channels = model.target.codec.codebook.shape[1]
    samples = torch.full([channels if side is None else side for side in shape], value)
    check_error(sampler_error(latent_image={"samples": samples}), key, **values)
    if None not in shape:
        error = pack.fails("VAEDecode", vae=loaded[2], samples={"samples": samples})
        check_error(error, "samples.shape", shape="[1, 4, 16, 16]")


@pytest.mark.parametrize(
    "mask, key",
    [
        (torch.full((1, 64, 64), float("nan")), "mask.not_finite"),
        (torch.ones(1, 3, 64, 64), "mask.shape"),
        ("a text", "latent.no_mask"),
    ],
    ids=["nan", "channels", "text"],
)
def test_masks_that_are_refused(model, sampler_error, mask, key):
    samples = torch.ones(1, model.target.codec.codebook.shape[1], 16, 16)
    check_error(sampler_error(latent_image={"samples": samples, "noise_mask": mask}), key)


def test_a_latent_of_another_model(sampler_error):
    error = sampler_error(latent_image={"samples": torch.ones(1, 4, 16, 16)})
    check_error(error, "latent.shape", shape="[1, 4, 16, 16]")


def test_sizes_and_batches_that_do_not_fit(pack, model, encoded):
    error = pack.fails("ADTTreeImageSize", model=model, width=256, height=128)
    check_error(error, "size.unsupported", size="256x128", problem="limit.fixed", usual="128x128")
    _, trace = pack.run("ADTTreeSampler", model=model, positive=encoded("a cat"), batch_size=1)
    error = pack.fails("ADTTreeMapToImage", trace=trace, show="depth", opacity=0.5, images=torch.zeros(3, 64, 64, 3))
    check_error(error, "trace.other_images", count=3, traced=1)


@pytest.mark.parametrize(
    "inputs, key",
    [
        ({"text": "a cat", "filter": "no such thing"}, "filter.no_match"),
        ({"text": "a cat", "start_index": 10}, "start_index.too_large"),
    ],
)
def test_list_without_remaining_prompts(pack, inputs, key):
    check_error(pack.fails("ADTTreePrompts", **inputs), key, count=1)


@pytest.mark.parametrize(
    "lists, key, values",
    [
        ({"prompts": ["a cat", "a dog"], "ids": ["1"]}, "prompts.lengths", {"input": "ids", "count": 1, "prompts": 2}),
        ({"prompts": ["a cat", "a dog"], "seeds": [7]}, "prompts.lengths", {"input": "seeds", "count": 1}),
        ({"prompts": [LONG]}, "prompts.one_invalid", {"id": "1", "error": "prompt.too_long"}),
        ({"prompts": []}, "prompts.none_arrived", {}),
        ({"prompts": ["a fox", None]}, "prompts.no_text", {"prompt": "None"}),
        ({"prompts": ["a cat"], "negative": [LONG]}, "negative.invalid", {"error": "prompt.too_long"}),
        ({"prompts": ["a cat"], "seed": [1, 2]}, "input.several", {"input": "seed", "count": 2}),
    ],
)
def test_lists_that_do_not_fit_a_batch(pack, model, lists, key, values):
    check_error(pack.fails("ADTTreeBatchSampler", model=[model], **lists), key, **values)


@pytest.mark.parametrize("name", PUBLISHED)
def test_missing_published_model_error_explains_the_download(pack, name):
    row = find_published(name)
    assert pack.refused("ADTTreeModelLoader", model=name) == [], "the node's error is more detailed"
    home = Path("models", "ar_image")  # relative to ComfyUI's folder, which is nobody else's business
    error = pack.fails("ADTTreeModelLoader", model=name)
    check_error(error, "model.not_there", name=row.name, remedy=f"download {row.name} --to {home.as_posix()}`")
    assert row.size in str(error)


def test_unknown_model_error_lists_ten_models(pack, monkeypatch):
    """API users don't see the list of models, so the error lists some. Installed models come first."""
    (message,) = pack.refused("ADTTreeModelLoader", model="no-such-model")
    assert "'no-such-model' is in no folder" in message
    named = message.partition("or choose another: ")[2].rstrip(".")
    *first, last = named.split(", ")
    assert first[0] == "bundled" and len(first) == 9 and " and " in last
    folders = pack.package(".nodes.folders")
    assert [*first, last.split(" and ")[0]] == folders.offered()[:10]
    assert str(pack.fails("ADTTreeModelLoader", model="no-such-model", dtype="auto")).endswith(named + ".")
    monkeypatch.setattr(folders, "offered", lambda: ["bundled", "other"])
    assert "another: bundled, other." in pack.refused("ADTTreeModelLoader", model="no-such-model")[0]


def test_damaged_model(pack):
    cut = shutil.copytree(pack.bundled / "target", pack.base / "models" / "LLM" / "cut")
    weights = next(cut.glob("*.safetensors"))
    weights.write_bytes(weights.read_bytes()[: weights.stat().st_size // 2])
    check_error(pack.fails("ADTTreeModelLoader", model="cut"), "safetensors.incomplete", file="model.safetensors")


def test_unknown_inputs(pack):
    """The name is an unpaired surrogate, which no log can print. The message must escape it."""
    for kind in set(pack.ours) - {"ADTTreeBatchSampler", "ADTTreeSettings", "ADTTreeTrainDrafter"}:
        check_error(pack.fails(kind, **{"\ud800": 1}), "input.unknown", name=r"'\ud800'")


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
    values = {"title": "bundled", "needed": "0.1", "device": "meta", "total": "0.0", "remedy": "remedy.int8"}
    for size in (1, 64):
        check_error(pack.fails("ADTTreeSampler", model=model, batch_size=size, **asked), "gpu.too_small", **values)
    gpu(2**20)
    for dtype, remedy in (("int8 weights", "remedy.int4"), ("int4 weights", "remedy.smaller_model")):
        model, _, vae = pack.run("ADTTreeModelLoader", dtype=dtype)
        error = pack.fails("ADTTreeSampler", model=model, batch_size=1, **asked)
        check_error(error, "gpu.too_small", remedy=remedy)
    error = pack.fails("VAEEncode", pixels=torch.zeros(1, 1024, 1024, 3), vae=vae)
    check_error(error, "gpu.too_small", title="title.codec", remedy="remedy.smaller_image")
