"""Nodes for the second stage of GLM-Image, which decodes tokens to pixels by diffusion."""

import logging
from pathlib import Path
from typing import Any

import comfy.model_management as mm
import torch
from comfy_api.v0_0_2 import io
from PIL import Image
from torch import Tensor, nn

from ..adt_core import AdtError
from ..adt_core.app import find_parts
from ..adt_core.messages import message
from ..adt_core.models import glm_pixels
from ..adt_core.models.glm_pixels import GUIDANCE, PIXELS, STEPS, SourceImage
from . import folders
from .clip_and_vae import cropped, read_prompt, read_sources, to_image, to_picture
from .comfy_runtime import Progress, check_cancelled, drop_unused_results, hardware, tell
from .latent import read_codes
from .missing_models import DOWNLOAD, EXPLAIN, IF_MISSING, fetch
from .schema import Tooltips, schema
from .sockets import GlmDecoder, GlmDecoderSocket, LoadedModel, ModelSocket, checked
from .weights import loaded, manage

PUBLISHED, BESIDE = f"{glm_pixels.FOLDER}/transformer", "same folder as transformer"
"""Name of the published transformer, and the choice for a text encoder or VAE in the same folder as the transformer."""
_DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
_FP8 = "fp8 weights"
_SHOWN = 64
"""Maximum number of latents per side of a preview. A latent becomes 8 x 8 pixels, so a side has at most 512 pixels."""


_GLM_DECODER_LOADER_TOOLTIPS = Tooltips(
    inputs={
        "transformer": "The downloaded folder GLM-Image/transformer, or a single file in models/diffusion_models.",
        "text_encoder": "ByT5, which reads the text that should appear in the image. A file in models/text_encoders, "
        "or the folder next to the transformer's.",
        "vae": "Decodes latents to pixels. A file in models/vae, or the folder next to the transformer's.",
        "dtype": "Precision of the weights. auto: bfloat16, or float32 if the device does not support it. fp8 "
        "weights: the transformer needs little more than half the memory; the image changes slightly.",
        "if_missing": "What happens if GLM-Image is not installed. explain: an error names the download. download: "
        "the node downloads it from Hugging Face (36 GB).",
    },
    outputs={"decoder": "The second stage, for ADT-Tree GLM-Image Decode."},
)


class ADTTreeGLMImageDecoderLoader(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        transformers = list(dict.fromkeys([PUBLISHED, *folders.glm_transformers()]))
        return schema(
            "ADTTreeGLMImageDecoderLoader",
            "ADT-Tree GLM-Image Decoder Loader",
            tooltips=_GLM_DECODER_LOADER_TOOLTIPS,
            description="Loads the second stage of GLM-Image, which turns the tokens of the ADT-Tree Sampler into "
            "pixels. Needs the Python library diffusers.",
            search_aliases=["glm-image", "glm image", "diffusion decoder", "加载解码器"],
            inputs=[
                io.Combo.Input("transformer", options=transformers, default=PUBLISHED),
                io.Combo.Input("text_encoder", options=[BESIDE, *folders.files("text_encoders")], default=BESIDE),
                io.Combo.Input("vae", options=[BESIDE, *folders.files("vae")], default=BESIDE),
                io.Combo.Input("dtype", options=["auto", *_DTYPES, _FP8], default="auto"),
                io.Combo.Input("if_missing", options=IF_MISSING, default=EXPLAIN),
            ],
            outputs=[GlmDecoderSocket.Output(display_name="decoder")],
        )

    @classmethod
    def fingerprint_inputs(
        cls, transformer: str = PUBLISHED, text_encoder: str = BESIDE, vae: str = BESIDE, **_
    ) -> str:
        single = folders.files("text_encoders").get(text_encoder), folders.files("vae").get(vae)
        return repr([folders.fingerprint(path) for path in (_transformer(transformer), *single) if path is not None])

    @classmethod
    @checked
    def execute(
        cls, transformer: str, text_encoder: str, vae: str, dtype: str, if_missing: str = EXPLAIN
    ) -> io.NodeOutput:
        glm_pixels.diffusers()
        if if_missing == DOWNLOAD and transformer == PUBLISHED:
            _download_missing(cls.hidden.unique_id)
        path = _transformer(transformer)
        if path is None:
            tell(message("model.missing", model=transformer), logging.ERROR)
            raise folders.missing(glm_pixels.FOLDER, "transformer")
        drop_unused_results()
        auto = torch.bfloat16 if hardware().bfloat16 else torch.float32
        how = {"dtype": _DTYPES.get(dtype, auto), "fp8": dtype == _FP8, "check": check_cancelled}
        parts = _file("text_encoder", "text_encoders", text_encoder), _file("vae", "vae", vae)
        pipeline = glm_pixels.load(Path(path), *parts, device=mm.unet_offload_device(), **how)
        smaller = message("remedy.smaller_image")
        remedy = smaller if dtype == _FP8 else message("remedy.fp8")
        both = nn.ModuleList([pipeline.transformer, pipeline.text_encoder])
        main = manage(both, message("title.second_stage"), remedy)
        return io.NodeOutput(GlmDecoder(pipeline, main, manage(pipeline.vae, message("title.vae"), smaller)))


def _transformer(name: str) -> str | None:
    """Return the path of an installed transformer, or None.

    The published transformer may also be in a publisher's folder, such as "publisher/GLM-Image/transformer".
    """
    found = folders.glm_transformers()
    return found.get(name) or next((path for own, path in found.items() if own.endswith(f"/{name}")), None)


def _download_missing(node_id: str) -> None:
    """Download the missing files of the published GLM-Image: to its folder, unless that belongs to another pack."""
    path = _transformer(PUBLISHED)
    is_here = path is not None and folders.is_own(path)
    parts = find_parts(glm_pixels.FOLDER, Path(str(path)).parents[1] if is_here else folders.home())
    if path is None or is_here and not parts[0].is_complete:
        fetch(parts, node_id)


def _file(name: str, key: str, value: str) -> Path | None:
    """Return the file that the input `name` selects, or None if its value is `BESIDE`.

    `key` is the name of ComfyUI's model folder that contains the file, such as "vae".
    """
    return None if value == BESIDE else Path(folders.resolve(folders.files(key), value, name, key))


_GLM_DECODE_TOOLTIPS = Tooltips(
    inputs={
        "decoder": "The decoder, from the ADT-Tree GLM-Image Decoder Loader.",
        "model": "The GLM-Image model that the sampler uses. It defines the tokens of a LATENT.",
        "samples": "The LATENT of the ADT-Tree Sampler.",
        "positive": "The prompt that the sampler uses.",
        "source_images": "For image to image: the images that VAE Encode added to the prompt, in the same order.",
        "seed": "Sets the noise of diffusion. It changes details; the tokens define the composition.",
        "steps": "Number of diffusion steps. The published value is 50.",
        "guidance": "How closely the image follows tokens and text. The published value is 1.5; 1 takes half the time.",
    },
    outputs={"IMAGE": "The images, with 32 × 32 pixels per token."},
)


class ADTTreeGLMImageDecode(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            "ADTTreeGLMImageDecode",
            "ADT-Tree GLM-Image Decode",
            tooltips=_GLM_DECODE_TOOLTIPS,
            description="Turns the tokens of GLM-Image into pixels by diffusion, with the prompt and the source "
            "images of the sampler.",
            search_aliases=["glm-image", "glm image", "diffusion decoder", "vae decode", "解码"],
            inputs=[
                GlmDecoderSocket.Input("decoder"),
                ModelSocket.Input("model"),
                io.Latent.Input("samples"),
                io.Conditioning.Input("positive"),
                io.Image.Input("source_images", optional=True),
                io.Int.Input("seed", default=0, min=0, max=2**64 - 1, control_after_generate=True),
                io.Int.Input("steps", default=STEPS, min=1, max=1000),
                io.Float.Input("guidance", default=GUIDANCE, min=1.0, max=20.0, step=0.1),
            ],
            outputs=[io.Image.Output(display_name="IMAGE")],
        )

    @classmethod
    @checked
    def execute(
        cls,
        decoder: GlmDecoder,
        model: LoadedModel,
        samples: dict,
        positive: list,
        seed: int,
        steps: int,
        guidance: float,
        source_images: Tensor | None = None,
    ) -> io.NodeOutput:
        _check(model, decoder)
        prompt = read_prompt(positive, "positive").text
        grids = read_codes(samples, model, "samples")
        sources = _sources(positive, source_images, model)
        expected: list[Tensor] = []
        progress = Progress(len(grids) * steps, cls.hidden.unique_id, lambda: _preview(decoder, expected[-1]))
        images = []
        for number, index in enumerate(samples.get("batch_index") or range(len(grids))):

            def on_step(done: int, latents: Tensor, before: int = number * steps) -> None:
                expected[:] = [latents]
                progress.update(before + done)

            options = {"seed": (seed + index) % 2**64, "steps": steps, "guidance_scale": guidance, "on_step": on_step}
            images.append(_decode(decoder, grids[number], prompt, sources, **options))
        return io.NodeOutput(torch.cat(images))


def _check(model: LoadedModel, decoder: GlmDecoder) -> None:
    """Raise AdtError if the decoder cannot read the model's tokens."""
    if not glm_pixels.decodes(decoder.pipeline, model.target):
        known = glm_pixels.codes_of(decoder.pipeline)
        raise AdtError("glm_image.other_codes", known=known, model=model.target.name)


def _sources(positive: list, images: Tensor | None, model: LoadedModel) -> list[SourceImage]:
    """Pair the source images with their tokens in the prompt."""
    tokens = [codes for latent in read_sources(positive) for codes in read_codes(latent, model, "positive")]
    pictures = [] if images is None else list(map(to_picture, cropped(images, PIXELS, "source_images")))
    if [picture.size for picture in pictures] != [(own.shape[1] * PIXELS, own.shape[0] * PIXELS) for own in tokens]:
        raise AdtError("source_images.other", count=len(pictures), pictures=len(tokens))
    return [SourceImage(picture, own) for picture, own in zip(pictures, tokens)]


def _decode(decoder: GlmDecoder, tokens: Tensor, prompt: str, sources: list[SourceImage], **options: Any) -> Tensor:
    """Decode tokens [rows, columns] to an IMAGE [1, H, W, 3].

    The VAE is loaded after denoising, so ComfyUI can unload the transformer first if memory is short.
    """
    pipeline = decoder.pipeline
    size = tokens.numel() * PIXELS**2
    with loaded([decoder.patcher, decoder.vae], glm_pixels.denoising_bytes(pipeline, size, sources)):
        latents = glm_pixels.denoise(pipeline, tokens, prompt, sources=sources, check=check_cancelled, **options)
    with loaded([decoder.vae], glm_pixels.decoding_bytes(pipeline, size)):
        return to_image(glm_pixels.pixels(pipeline, latents, check_cancelled)).to(mm.intermediate_device())


def _preview(decoder: GlmDecoder, latents: Tensor) -> Image.Image:
    """Decode a preview from a step's prediction of the final latents.

    They are downscaled first, because decoding them in full size would take as long as a diffusion step.
    """
    scale = min(1.0, _SHOWN / max(latents.shape[2:]))
    fewer = torch.nn.functional.interpolate(latents, scale_factor=scale, mode="area")
    return to_picture(to_image(glm_pixels.pixels(decoder.pipeline, fewer, check_cancelled))[0])
