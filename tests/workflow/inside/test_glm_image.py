"""GLM-Image's second stage: the nodes give what diffusers' own pipeline gives for the same tokens."""

import importlib
import json
import shutil
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from tests.layouts.glm_image import CODES, write_glm_image
from tests.layouts.glm_pixels import finer, published_pipeline, write_pixels

pytestmark = pytest.mark.long

PROMPT = 'A shop sign that says "Bread".'
NUMBERS = {"seed": 7, "steps": 3, "guidance": 1.5}


@pytest.fixture(scope="module")
def folder(pack):
    """Both stages as published, in the user's folder."""
    return write_pixels(write_glm_image(pack.base / "models" / "ar_image" / "GLM-Image"), CODES)


@pytest.fixture(scope="module")
def first(pack, folder):
    """The first stage and its CLIP."""
    return pack.run("ADTTreeModelLoader", model="GLM-Image")[:2]


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def stage(pack, folder, request):
    """The loaded decoder, and diffusers' own pipeline of the same precision."""
    (decoder,) = pack.run("ADTTreeGLMDecoderLoader", dtype=request.param)
    return decoder, published_pipeline(folder, getattr(torch, request.param))


@pytest.fixture(scope="module")
def tokens(first):
    """A LATENT of a batch, and the codes that it holds."""
    codes = torch.randint(CODES, (2, 3, 2), generator=torch.Generator().manual_seed(0))
    return {"samples": first[0].target.codec.lookup(codes).float()}, codes


@pytest.fixture
def text(pack, first):
    return lambda words: pack.run("CLIPTextEncode", clip=first[1], text=words)[0]


@pytest.fixture
def decode(pack, first, tokens, text):
    """A function: IMAGE of the Decode node."""
    usual = {"model": first[0], "samples": tokens[0], "positive": text(PROMPT)} | NUMBERS
    return lambda decoder, **inputs: pack.run("ADTTreeGLMDecode", decoder=decoder, **usual | inputs)[0]


def theirs(pipeline, codes, **more):
    """IMAGE of the pipeline itself."""
    rows, columns = codes.shape
    made = pipeline(
        PROMPT,
        height=32 * rows,
        width=32 * columns,
        num_inference_steps=NUMBERS["steps"],
        guidance_scale=NUMBERS["guidance"],
        generator=torch.Generator().manual_seed(NUMBERS["seed"]),
        prior_token_ids=finer(codes)[None],
        output_type="np",
        **more,
    )
    return made.images


def picture(image):
    """[H, W, 3] in 0..1 -> a picture of 8 bits."""
    return Image.fromarray((image * 255).round().byte().numpy())


def test_pixels_are_those_of_the_pipeline_itself(stage, tokens, decode):
    """In bfloat16, in which it ends with a rounding of its own, to the nearest step of that."""
    decoder, pipeline = stage
    state = torch.get_rng_state()
    images = decode(decoder)
    assert torch.equal(state, torch.get_rng_state()), "the global generator is left alone"
    near = 1e-5 if decoder.pipeline.dtype == torch.float32 else 2**-8
    np.testing.assert_allclose(images[:1], theirs(pipeline, tokens[1][0]), atol=near)
    assert images.std() > 0.05 and (images[0] != images[1]).any()
    assert torch.equal(decode(decoder), images), "the same seed gives the same image"


def test_source_images_are_read_as_the_pipeline_reads_them(pack, stage, first, tokens, text, decode):
    """Their tokens come with the prompt; images are cropped to whole tokens."""
    decoder, pipeline = stage
    images = torch.rand(2, 70, 96, 3, generator=torch.Generator().manual_seed(0))
    codes = torch.randint(CODES, (2, 2, 3), generator=torch.Generator().manual_seed(1))
    ((tensor, words),) = text(PROMPT)
    own = [[tensor, words | {"reference_latents": list(first[0].target.codec.lookup(codes).float().split(1))}]]
    given = {
        "image": [[picture(image) for image in images[:, 3:67]]],
        "prior_token_image_ids": [torch.cat([finer(own) for own in codes])],
        "source_image_grid_thw": [torch.tensor([[1, 4, 6]] * 2)],
    }
    alone = {"samples": {"samples": tokens[0]["samples"][:1]}}
    made = decode(decoder, positive=own, source_images=images, **alone)
    assert (made != decode(decoder, **alone)).any()
    near = 1e-5 if decoder.pipeline.dtype == torch.float32 else 2**-8
    np.testing.assert_allclose(made, theirs(pipeline, tokens[1][0], **given), atol=near)
    for wrong in ({"source_images": images[:1], "positive": own}, {"source_images": images}, {"positive": own}):
        said = pack.fails(
            "ADTTreeGLMDecode", decoder=decoder, model=first[0], **{"positive": text(PROMPT)} | alone | wrong
        )
        assert said.startswith("source_images: ") and "VAE Encode" in said


def test_single_files_give_the_same_pixels(pack, folder, stage, decode, monkeypatch):
    """Their configurations are the published ones, here those of the small pipeline."""
    package, _ = pack.nodes["ADTTreeGLMDecode"].__module__.rsplit(".nodes.", 1)
    module = importlib.import_module(f"{package}.adt_core.models.glm_pixels")
    files = {"transformer": "diffusion_models", "text_encoder": "text_encoders", "vae": "vae"}
    for (part, place), known in zip(files.items(), ("_TRANSFORMER", "_BYT5", "_VAE")):
        fields = json.loads((folder / part / "config.json").read_text(encoding="utf-8"))
        sizes = {name: value for name, value in fields.items() if part != "text_encoder" or name in module._BYT5}
        monkeypatch.setattr(module, known, sizes)
        (weights,) = (folder / part).glob("*.safetensors")
        (pack.base / "models" / place).mkdir(exist_ok=True)
        shutil.copy(weights, pack.base / "models" / place / f"glm_{part}.safetensors")
    monkeypatch.setattr(
        module, "_SCHEDULER", json.loads((folder / "scheduler" / "scheduler_config.json").read_text(encoding="utf-8"))
    )
    chosen = {part: f"glm_{part}.safetensors" for part in files}
    folder_decoder, _ = stage
    (decoder,) = pack.run("ADTTreeGLMDecoderLoader", **chosen, dtype=str(folder_decoder.pipeline.dtype).split(".")[1])
    assert torch.equal(decode(decoder), decode(folder_decoder))
    said = pack.fails("ADTTreeGLMDecoderLoader", transformer=chosen["transformer"])
    assert said.startswith("text_encoder: ") and "choose a file or folder" in said


def test_an_image_that_leaves_a_batch_keeps_its_noise(stage, tokens, decode):
    decoder, _ = stage
    alone = {"samples": tokens[0]["samples"][1:], "batch_index": [1]}
    assert torch.equal(decode(decoder, samples=alone), decode(decoder)[1:])
    assert torch.equal(decode(decoder, samples={"samples": alone["samples"]}, seed=8), decode(decoder)[1:])


@pytest.mark.parametrize("name, value", [("seed", 8), ("steps", 4), ("guidance", 1.0), ("positive", "“Wool”")])
def test_every_input_counts(stage, text, decode, name, value):
    decoder, _ = stage
    value = text(value) if name == "positive" else value
    assert (decode(decoder, **{name: value}) != decode(decoder)).any()


def test_what_cannot_be_decoded_is_said(pack, first, stage, tokens, text, model):
    decoder, _ = stage
    usual = {"decoder": decoder, "model": first[0], "samples": tokens[0], "positive": text(PROMPT)}
    says = lambda **inputs: pack.fails("ADTTreeGLMDecode", **usual | NUMBERS | inputs)  # noqa: E731
    said = says(samples={"samples": torch.zeros(1, 4, 16, 16)})
    assert said.startswith("samples: this LATENT has the shape [1, 4, 16, 16]") and "ADT-Tree Sampler" in said
    assert says(model=model).startswith(f"model: this decoder reads the {CODES} codes of GLM-Image, and bundled draws")
    assert says(positive=[[torch.zeros(1, 2), {}]]).startswith("positive: ")
    assert says(source_images=torch.zeros(1, 20, 64, 3)).startswith("source_images: this IMAGE has the shape")


def test_a_missing_library_is_said_with_what_to_run(pack, folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "diffusers", None)
    said = pack.fails("ADTTreeGLMDecoderLoader")
    assert f"run `{pack.package('.adt_core.errors').pip_install('--upgrade diffusers')}`" in said


def test_a_missing_stage_is_said_with_what_to_download(pack):
    said = pack.fails("ADTTreeGLMDecoderLoader", transformer="gone.safetensors")
    assert said.startswith("transformer: 'GLM-Image' is not installed; set if_missing to 'download' and run again")
