"""Tests of GLM-Image's second stage. For the same tokens, the nodes must give the same pixels as diffusers."""

import json
import shutil
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from tests.layouts.glm_image import CODES, write_glm_image
from tests.layouts.glm_pixels import finer, published_pipeline, write_pixels
from tests.raising import check_error

pytestmark = pytest.mark.long

PROMPT = 'A shop sign that says "Bread".'
NUMBERS = {"seed": 7, "steps": 3, "guidance": 1.5}


@pytest.fixture(scope="module")
def folder(pack):
    """Write both stages, as published, into the user's model folder."""
    return write_pixels(write_glm_image(pack.base / "models" / "ar_image" / "GLM-Image"), CODES)


@pytest.fixture(scope="module")
def first(pack, folder):
    return pack.run("ADTTreeModelLoader", model="GLM-Image")[:2]


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def stage(pack, folder, request):
    """Return the loaded decoder (second stage), and diffusers' pipeline in the same precision."""
    (decoder,) = pack.run("ADTTreeGLMImageDecoderLoader", dtype=request.param)
    return decoder, published_pipeline(folder, getattr(torch, request.param))


@pytest.fixture(scope="module")
def tokens(first):
    codes = torch.randint(CODES, (2, 3, 2), generator=torch.Generator().manual_seed(0))
    return {"samples": first[0].target.codec.lookup(codes).float()}, codes


@pytest.fixture
def text(pack, first):
    return lambda words: pack.run("CLIPTextEncode", clip=first[1], text=words)[0]


@pytest.fixture
def decode(pack, first, tokens, text):
    usual = {"model": first[0], "samples": tokens[0], "positive": text(PROMPT)} | NUMBERS
    return lambda decoder, **inputs: pack.run("ADTTreeGLMImageDecode", decoder=decoder, **usual | inputs)[0]


def pipeline_images(pipeline, codes, **more):
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
    return Image.fromarray((image * 255).round().byte().numpy())


def test_pixels_equal_the_pipelines(stage, tokens, decode):
    """In bfloat16, the pipeline rounds its result to bfloat16. The test tolerates a difference of one rounding step."""
    decoder, pipeline = stage
    state = torch.get_rng_state()
    images = decode(decoder)
    assert torch.equal(state, torch.get_rng_state()), "the global generator is unchanged"
    near = 1e-5 if decoder.pipeline.dtype == torch.float32 else 2**-8
    np.testing.assert_allclose(images[:1], pipeline_images(pipeline, tokens[1][0]), atol=near)
    assert images.std() > 0.05 and (images[0] != images[1]).any()
    assert torch.equal(decode(decoder), images), "the same seed gives the same image"


def test_source_images_are_read_as_the_pipeline_reads_them(pack, stage, first, tokens, text, decode):
    """The prompt must contain the tokens of the source images. Images must be cropped to complete tokens."""
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
    single = {"samples": {"samples": tokens[0]["samples"][:1]}}
    made = decode(decoder, positive=own, source_images=images, **single)
    assert (made != decode(decoder, **single)).any()
    near = 1e-5 if decoder.pipeline.dtype == torch.float32 else 2**-8
    np.testing.assert_allclose(made, pipeline_images(pipeline, tokens[1][0], **given), atol=near)
    for wrong in ({"source_images": images[:1], "positive": own}, {"source_images": images}, {"positive": own}):
        given = {"positive": text(PROMPT)} | single | wrong
        error = pack.fails("ADTTreeGLMImageDecode", decoder=decoder, model=first[0], **given)
        check_error(error, "source_images.other")


def test_separate_files_give_the_same_pixels(pack, folder, stage, decode, monkeypatch):
    """Separate files use the published configurations, which those of the small pipeline replace here."""
    module = pack.package(".adt_core.models.glm_pixels")
    files = {"transformer": "diffusion_models", "text_encoder": "text_encoders", "vae": "vae"}
    for (part, place), known in zip(files.items(), ("_TRANSFORMER", "_BYT5", "_VAE")):
        fields = json.loads((folder / part / "config.json").read_text(encoding="utf-8"))
        sizes = {name: value for name, value in fields.items() if part != "text_encoder" or name in module._BYT5}
        monkeypatch.setattr(module, known, sizes)
        (weights,) = (folder / part).glob("*.safetensors")
        (pack.base / "models" / place).mkdir(exist_ok=True)
        shutil.copy(weights, pack.base / "models" / place / f"glm_{part}.safetensors")
    scheduler = json.loads((folder / "scheduler" / "scheduler_config.json").read_text(encoding="utf-8"))
    monkeypatch.setattr(module, "_SCHEDULER", scheduler)
    chosen = {part: f"glm_{part}.safetensors" for part in files}
    folder_decoder, _ = stage
    dtype = str(folder_decoder.pipeline.dtype).split(".")[1]
    (decoder,) = pack.run("ADTTreeGLMImageDecoderLoader", **chosen, dtype=dtype)
    assert torch.equal(decode(decoder), decode(folder_decoder))
    error = pack.fails("ADTTreeGLMImageDecoderLoader", transformer=chosen["transformer"])
    check_error(error, "glm_image.no_folder", input="text_encoder")


def test_image_taken_out_of_a_batch_keeps_its_noise(stage, tokens, decode):
    decoder, _ = stage
    single = {"samples": tokens[0]["samples"][1:], "batch_index": [1]}
    assert torch.equal(decode(decoder, samples=single), decode(decoder)[1:])
    assert torch.equal(decode(decoder, samples={"samples": single["samples"]}, seed=8), decode(decoder)[1:])


@pytest.mark.parametrize("name, value", [("seed", 8), ("steps", 4), ("guidance", 1.0), ("positive", "“Wool”")])
def test_every_input_changes_the_image(stage, text, decode, name, value):
    decoder, _ = stage
    value = text(value) if name == "positive" else value
    assert (decode(decoder, **{name: value}) != decode(decoder)).any()


def test_inputs_that_cannot_be_decoded_are_refused(pack, first, stage, tokens, text, model):
    decoder, _ = stage
    usual = {"decoder": decoder, "model": first[0], "samples": tokens[0], "positive": text(PROMPT)}

    for inputs, key, values in (
        ({"samples": {"samples": torch.zeros(1, 4, 16, 16)}}, "latent.shape", {"shape": "[1, 4, 16, 16]"}),
        ({"model": model}, "glm_image.other_codes", {"known": CODES, "model": "bundled"}),
        ({"positive": [[torch.zeros(1, 2), {}]]}, "conditioning.other_model", {"input": "positive"}),
        ({"source_images": torch.zeros(1, 20, 64, 3)}, "image.shape", {"input": "source_images"}),
    ):
        check_error(pack.fails("ADTTreeGLMImageDecode", **usual | NUMBERS | inputs), key, **values)


def test_missing_library_error_contains_the_install_command(pack, folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "diffusers", None)
    error = pack.fails("ADTTreeGLMImageDecoderLoader")
    command = pack.package(".adt_core.errors").pip_install("--upgrade diffusers")
    check_error(error, "glm_image.no_diffusers", command=command)


def test_missing_stage_error_explains_the_download(pack):
    error = pack.fails("ADTTreeGLMImageDecoderLoader", transformer="gone.safetensors")
    check_error(error, "model.not_there", input="transformer", name="GLM-Image")
