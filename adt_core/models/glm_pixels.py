"""Second stage of GLM-Image: diffusion from tokens to pixels, with GlmImagePipeline of diffusers.

A transformer with 7B parameters denoises the latents of an image in steps. At every step it reads two conditions: the
tokens of the image, one per 32 x 32 pixels, and the parts of the prompt in quotation marks. The text encoder ByT5
encodes these parts letter by letter. After the last step, a VAE decodes the latents to pixels. In image-to-image mode,
the transformer also reads the latents and tokens of the source images.

Layout: ``zai-org/GLM-Image`` as published, with the folders ``transformer``, ``text_encoder``, ``vae``, ``tokenizer``
and ``scheduler``. A single weights file can replace each of the first three folders. This module then uses the
published configuration of that part. diffusers is an optional dependency. It provides the modules and the denoising
loop, and this module reads the weights.

In shapes, latents are [B, C, h, w]: images, channels, height and width. A latent position represents 8 x 8 pixels.
`pipeline` is the result of :func:`load`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from PIL import Image
from torch import Tensor, nn

from ..errors import AdtError, Check, library_error, naming_missing_libraries, pip_install, wrap_library_errors
from ..untrusted import whole_number
from .families.glm_image import FAMILY, GLM, PIXELS
from .reading.checkpoint import Checkpoint
from .reading.entries import check_entries, fill, module_entries
from .reading.fields import MOST, USUAL_MOST, read, read_json
from .reading.t5 import t5_encoder
from .target import Target
from .vq import PointConv, cancellable

STEPS = 50  # published default of the number of denoising steps
GUIDANCE = 1.5  # published default of the guidance scale
FOLDER = GLM.folder  # with both stages
KIND = "GlmImageTransformer2DModel"  # class name in the transformer's config.json
_LEAST = "0.37"  # first version of diffusers that contains GlmImagePipeline
# Published configurations. Fields that equal the defaults of diffusers are left out.
_TRANSFORMER = {"num_attention_heads": 32, "attention_head_dim": 128}
_BYT5 = {"d_model": 1472, "d_kv": 64, "d_ff": 3584, "num_layers": 12, "num_heads": 6, "vocab_size": 384}
_VAE = {
    "block_out_channels": [128, 512, 1024, 1024],
    "down_block_types": ["DownEncoderBlock2D"] * 4,
    "up_block_types": ["UpDecoderBlock2D"] * 4,
    "latent_channels": 16,
    "layers_per_block": 3,
    "mid_block_add_attention": False,
    "use_quant_conv": False,
    "use_post_quant_conv": False,
    "latents_mean": [
        *(-0.2080078125, 1.875, -0.470703125, -1.265625, -1.421875, 0.77734375, -0.3671875, -0.9453125),
        *(0.318359375, 0.7734375, -0.1884765625, -0.022216796875, -0.220703125, -1.59375, -0.81640625, -0.255859375),
    ],
    "latents_std": [
        *(3.0625, 2.203125, 2.265625, 4.84375, 2.5, 3.9375, 2.203125, 3.03125),
        *(2.1875, 2.046875, 2.71875, 2.390625, 2.390625, 2.453125, 2.25, 2.15625),
    ],
}
_SCHEDULER = {"use_dynamic_shifting": True, "time_shift_type": "linear", "base_shift": 0.25, "max_shift": 0.75}


class SourceImage(NamedTuple):
    """Source image of image-to-image mode, and its codes [rows, columns] int64 from the encoder of the first stage."""

    image: Image.Image
    tokens: Tensor


OnStep = Callable[[int, Tensor], None]
"""Callback after each denoising step. Its arguments are the number of finished steps and a prediction of the final
latents [1, C, h, w]."""


def diffusers() -> Any:
    """Import diffusers and return the module.

    Raises:
        AdtError: If diffusers is missing or too old.
    """
    try:
        import diffusers

        _ = diffusers.GlmImagePipeline
    except (ImportError, AttributeError, RuntimeError) as error:
        if (missing := library_error(error)) and missing.parameters["library"] != "diffusers":
            raise missing from error
        raise AdtError("glm_image.no_diffusers", least=_LEAST, command=pip_install("--upgrade diffusers")) from error
    return diffusers


@torch.inference_mode(False)
def load(
    transformer: Path,
    text_encoder: Path | None = None,
    vae: Path | None = None,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.bfloat16,
    fp8: bool = False,
    check: Check | None = None,
) -> Any:
    """Load a GlmImagePipeline without the first stage.

    Args:
        text_encoder: Folder or weights file of ByT5; by default the folder ``text_encoder`` next to ``transformer``.
        vae: Folder or weights file of the VAE; by default the folder ``vae`` next to ``transformer``.
        dtype: Dtype of all parts. float16 is not possible, because the activations of T5 exceed its range.
        fp8: Whether to store the transformer's matrices in float8. Each product converts its matrix to ``dtype``.
        check: Called before each tensor is read. It may raise an exception to cancel.

    Raises:
        AdtError: If a part or diffusers is missing, or a part belongs to another model.
    """
    library = diffusers()
    others = (_part(transformer, name, path) for name, path in (("text_encoder", text_encoder), ("vae", vae)))
    parts = [Checkpoint(path) for path in (transformer, *others)]
    modules = _empty(library, *parts)
    for module, part in zip(modules, parts):
        check_entries(module_entries(module, ""), part)
    for module, part in zip(modules, parts):
        nn.Module.to(module, dtype)  # diffusers' own method logs an irrelevant warning about float32
        if fp8 and module is modules[0]:
            module.enable_layerwise_casting(torch.float8_e4m3fn, dtype)
        module.to_empty(device=device).requires_grad_(False).eval()
        fill(module_entries(module, ""), part, check)
    return _pipeline(library, transformer, modules)


def _pipeline(library: Any, transformer: Path, modules: list[Any]) -> Any:
    """Return the pipeline for loaded modules: transformer, text encoder and VAE, in this order."""
    denoiser, encoder, decoder = modules
    file = transformer.parent / "scheduler" / "scheduler_config.json"
    config = read_json(file) if file.is_file() else _SCHEDULER
    with wrap_library_errors("glm_image.unusable_file", file=file):
        scheduler = library.FlowMatchEulerDiscreteScheduler.from_config(config)
    pipeline = library.GlmImagePipeline(_tokenizer(transformer), None, encoder, None, decoder, denoiser, scheduler)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def _empty(library: Any, transformer: Checkpoint, text_encoder: Checkpoint, vae: Checkpoint) -> list[Any]:
    """Return the three modules on the meta device.

    Raises:
        AdtError: If their shapes do not fit together.
    """
    with torch.device("meta"):
        modules = [
            _made(library.GlmImageTransformer2DModel, transformer, _TRANSFORMER),
            t5_encoder(text_encoder.config, text_encoder.path, _BYT5),
            _with_point_convolutions(_made(library.AutoencoderKL, vae, _VAE)),
        ]
    denoiser, text, codec = (module.config for module in modules)
    if text.d_model != denoiser.text_embed_dim:
        raise AdtError("glm_image.other_text_encoder", path=text_encoder.path, transformer=transformer.path)
    moments = codec.latents_mean, codec.latents_std
    if codec.latent_channels != denoiser.in_channels or not all(moments) or len(codec.block_out_channels) != 4:
        raise AdtError("glm_image.other_vae", path=vae.path, transformer=transformer.path)
    return modules


def _part(transformer: Path, name: str, path: Path | None) -> Path:
    """Return the given path of a part, or by default the folder ``name`` next to the transformer's folder."""
    path = path or transformer.parent / name
    if not path.exists():
        raise AdtError("glm_image.no_folder", input=name, folder=name, transformer=transformer)
    return path


def _made(kind: Any, part: Checkpoint, published: dict) -> Any:
    """Return a diffusers module of class ``kind`` without weights, configured by the part's config.json.

    If there is no config.json, use the published configuration.
    """
    for name, value in part.config.items():
        if type(value) is int:
            read(part.config, name, whole_number(0, MOST.get(name, USUAL_MOST)), part.path)
    with wrap_library_errors("glm_image.unreadable_part", path=part.path, kind=kind.__name__):
        return kind.from_config(part.config or published)


def _with_point_convolutions(module: nn.Module) -> nn.Module:
    """Replace convolutions of single positions, so that the bits do not depend on the number of CPU threads."""
    for parent in list(module.modules()):
        for name, layer in parent.named_children():
            if type(layer) is nn.Conv2d and layer.kernel_size == (1, 1):
                parent.register_module(name, PointConv(layer.in_channels, layer.out_channels))
    return module


def _tokenizer(transformer: Path) -> Any:
    """Return ByT5's tokenizer. It works without files, because its tokens are bytes."""
    with naming_missing_libraries():
        from transformers import ByT5Tokenizer

    folder = transformer.parent / "tokenizer"
    if not folder.is_dir():
        return ByT5Tokenizer()
    with wrap_library_errors("glm_image.no_tokenizer", folder=folder):
        return ByT5Tokenizer.from_pretrained(folder, local_files_only=True)


def denoise(
    pipeline: Any,
    tokens: Tensor,
    prompt: str,
    seed: int,
    steps: int = STEPS,
    guidance_scale: float = GUIDANCE,
    sources: Sequence[SourceImage] = (),
    check: Check | None = None,
    on_step: OnStep | None = None,
) -> Tensor:
    """Return the latents [1, C, h, w] of one image. :func:`pixels` decodes them.

    Args:
        tokens: [rows, columns] int64 codes of the image.
        prompt: Prompt. The pipeline reads only the text in quotation marks.
        guidance_scale: Values of 1 or below turn guidance off.
        check: Called before each layer. It may raise an exception to cancel.
        on_step: Called after each step.
    """
    height, width = (side * PIXELS for side in tokens.shape)
    factor = pipeline.vae_scale_factor
    shape = (1, pipeline.transformer.config.in_channels, height // factor, width // factor)
    on_cpu = torch.Generator("cpu").manual_seed(seed)  # so that all devices get the same values
    noise = torch.randn(shape, generator=on_cpu, dtype=pipeline.text_encoder.dtype)
    modules = pipeline.transformer, pipeline.text_encoder, pipeline.vae
    with torch.inference_mode(False), cancellable(check, *modules):
        return pipeline(
            prompt,
            height=height,
            width=width,
            num_inference_steps=steps,
            guidance_scale=guidance_scale,
            latents=noise,
            prior_token_ids=_finer(tokens).flatten()[None].to(pipeline.device),
            callback_on_step_end=partial(_step, on_step, [noise]) if on_step is not None else None,
            output_type="latent",
            **_source_arguments(sources, pipeline.device),
        ).images


def _source_arguments(sources: Sequence[SourceImage], device: torch.device) -> dict[str, Any]:
    """Return the keyword arguments of the pipeline for source images; {} without source images."""
    if not sources:
        return {}
    tokens = torch.cat([_finer(source.tokens).flatten() for source in sources])
    grids = torch.tensor([(1, *(2 * side for side in source.tokens.shape)) for source in sources])
    return {
        "image": [[source.image for source in sources]],
        "prior_token_image_ids": [tokens.to(device)],
        "source_image_grid_thw": [grids],
    }


def _finer(tokens: Tensor) -> Tensor:
    """Return every token twice in both dimensions: one for each 16 x 16 pixels, as the transformer requires."""
    return tokens.repeat_interleave(2, 0).repeat_interleave(2, 1)


def _step(on_step: OnStep, last: list[Tensor], pipeline: Any, step: int, _: Tensor, tensors: dict) -> dict:
    """Call ``on_step`` with a prediction of the final latents.

    The prediction extrapolates the change of the latents in this step linearly to noise level 0. For example, if a step
    reduces the noise level from 0.8 to 0.6, the same change is added three more times.

    Args:
        last: List with one element: the latents before the step. The function replaces them with the latents after it.
        step: Number of the finished step, from 0.
        _: Timestep; unused.
        tensors: Tensors of the pipeline by name. "latents" are the latents after the step.
    """
    latents = tensors["latents"]
    before, after = pipeline.scheduler.sigmas[step : step + 2]
    direction = (latents - last[0].to(latents)) / (after - before)
    last[0] = latents
    on_step(step + 1, latents - after * direction)
    return {}


@torch.inference_mode(False)
@torch.no_grad()
def pixels(pipeline: Any, latents: Tensor, check: Check | None = None) -> Tensor:
    """Decode latents [B, C, h, w] to pixels [B, 3, 8 * h, 8 * w] in [-1, 1] with the VAE.

    Args:
        check: Called before each layer. It may raise an exception to cancel.
    """
    vae = pipeline.vae
    moments = (vae.config.latents_mean, vae.config.latents_std)
    mean, std = (torch.tensor(values).reshape(1, -1, 1, 1).to(latents.device, vae.dtype) for values in moments)
    with cancellable(check, vae):
        return vae.decode(latents.to(vae.dtype) * std + mean, return_dict=False)[0]


def codes_of(pipeline: Any) -> int:
    """Return the number of different codes that the pipeline decodes."""
    return pipeline.transformer.config.prior_vq_quantizer_codebook_size


def decodes(pipeline: Any, target: Target) -> bool:
    """Return whether the pipeline decodes the codes of a target."""
    return target.family == FAMILY.name and len(target.codec.codebook) == codes_of(pipeline)


def denoising_bytes(pipeline: Any, size: int, sources: Sequence[SourceImage] = ()) -> int:
    """Estimate the bytes that :func:`denoise` needs for an image of `size` pixels in addition to the weights.

    The estimate is the larger of two numbers: the memory of the transformer (its widest layer, and the keys and values
    of source images), and the memory for encoding the largest source image with the VAE.
    """
    config = pipeline.transformer.config
    width = pipeline.vae.config.block_out_channels[0]
    hidden = config.num_attention_heads * config.attention_head_dim
    source_tokens = sum(4 * source.tokens.numel() for source in sources)
    tokens = 4 * size // PIXELS**2
    layers = 2 * config.num_layers * hidden * source_tokens + 24 * hidden * (tokens + source_tokens)
    encoding = max((4 * width * source.image.width * source.image.height for source in sources), default=0)
    return pipeline.text_encoder.dtype.itemsize * max(layers, encoding)


def decoding_bytes(pipeline: Any, size: int) -> int:
    """Estimate the bytes that :func:`pixels` needs in addition to the weights.

    The estimate is four times the widest feature map that the VAE has at full resolution, which has `size` pixels.
    """
    return 4 * pipeline.vae.config.block_out_channels[1] * size * pipeline.vae.dtype.itemsize
