"""GLM-Image's second stage: its tokens become pixels by diffusion, with diffusers' GlmImagePipeline.

A transformer of 7B parameters takes noise from an image's latents in steps. At every step it reads the image's tokens,
one for 32 x 32 pixels, and what stands in quotation marks in the prompt, encoded letter by letter by ByT5. A VAE makes
pixels of the latents. Image to image, it reads the source images, too: their latents and their tokens.

Read as published, ``zai-org/GLM-Image``: folders ``transformer``, ``text_encoder``, ``vae``, ``tokenizer`` and
``scheduler``. Or each of the first three is one file of weights, for which the published configurations hold.
diffusers is an optional library. It gives the modules and the loop; weights are read here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from PIL import Image
from torch import Tensor, nn

from ..errors import AdtError, Check, pip_install, wrap_library_errors
from ..untrusted import whole_number
from .families.glm_image import PIXELS
from .reading.checkpoint import Checkpoint, check_entries, fill, read_json, whole
from .reading.fields import MOST, USUAL_MOST, read
from .t5 import t5_encoder

STEPS, GUIDANCE = 50, 1.5
"""As published."""
KIND = "GlmImageTransformer2DModel"
"""What a folder's config.json calls the transformer."""
_LEAST = "0.37"
"""The first diffusers that has the pipeline."""
# The published configurations; what is left out is as diffusers has it.
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
    """An image that another is made of. tokens: its own, [rows, columns]."""

    image: Image.Image
    tokens: Tensor


OnStep = Callable[[int, Tensor], None]
"""Called after a step with the number of steps done, and the latents [1, C, h, w] that are expected at the end."""


def diffusers() -> Any:
    """The library. AdtError if it is missing or too old."""
    try:
        import diffusers

        _ = diffusers.GlmImagePipeline
    except (ImportError, AttributeError, RuntimeError) as error:
        order = f"run `{pip_install('--upgrade diffusers')}` and restart"
        raise AdtError(
            f"GLM-Image Decode needs diffusers {_LEAST} or newer, which is not installed; {order}."
        ) from error
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
    """A GlmImagePipeline without the first stage.

    transformer, text_encoder, vae: a folder or a file of weights each. What is None lies beside the transformer's
    folder, as published. dtype: no float16, which T5 overflows. fp8: the transformer's matrices are stored in float8
    and compute in ``dtype``. ``check`` is called before each tensor is read; it may raise to cancel. AdtError if a part
    is missing or belongs to another model, or if diffusers is missing.
    """
    library = diffusers()
    others = (_part(transformer, name, path) for name, path in (("text_encoder", text_encoder), ("vae", vae)))
    parts = [Checkpoint(path) for path in (transformer, *others)]
    modules = _empty(library, *parts)
    for module, part in zip(modules, parts):
        check_entries(whole(module, ""), part)
    for module, part in zip(modules, parts):
        nn.Module.to(module, dtype)  # diffusers' own warns of float32 where there is none
        if fp8 and module is modules[0]:
            module.enable_layerwise_casting(torch.float8_e4m3fn, dtype)
        module.to_empty(device=device).requires_grad_(False).eval()
        fill(whole(module, ""), part, check)
    tokenizer, scheduler = _tokenizer(transformer), _scheduler(library, transformer)
    pipeline = library.GlmImagePipeline(tokenizer, None, modules[1], None, modules[2], modules[0], scheduler)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def _empty(library: Any, transformer: Checkpoint, text_encoder: Checkpoint, vae: Checkpoint) -> list[Any]:
    """The three modules on the device "meta". AdtError for configurations that make no sense."""
    with torch.device("meta"):
        modules = [
            _made(library.GlmImageTransformer2DModel, transformer, _TRANSFORMER),
            t5_encoder(text_encoder.config, text_encoder.path, _BYT5),
            _made(library.AutoencoderKL, vae, _VAE),
        ]
    reads, text, codec = (module.config for module in modules)
    if text.d_model != reads.text_embed_dim:
        raise AdtError(
            f"{text_encoder.path} does not fit the transformer {transformer.path}; use GLM-Image's text encoder."
        )
    moments = codec.latents_mean, codec.latents_std
    if codec.latent_channels != reads.in_channels or not all(moments) or len(codec.block_out_channels) != 4:
        raise AdtError(f"{vae.path} does not fit the transformer {transformer.path}; use GLM-Image's VAE.")
    return modules


def _part(transformer: Path, name: str, path: Path | None) -> Path:
    """The path of a part; where none is chosen, that of the folder beside the transformer's."""
    path = path or transformer.parent / name
    if not path.exists():
        raise AdtError(f"`{name}`: there is no folder {name} next to {transformer}; choose a file or folder.")
    return path


def _made(kind: Any, part: Checkpoint, published: dict) -> Any:
    """An empty module of diffusers, as its config.json describes it, or as it was published."""
    for name, value in part.config.items():
        if type(value) is int:
            read(part.config, name, whole_number(0, MOST.get(name, USUAL_MOST)), part.path)
    with wrap_library_errors(
        lambda why: f"{part.path} can't be loaded as {kind.__name__} ({why}); use the file published with GLM-Image."
    ):
        return kind.from_config(part.config or published)


def _tokenizer(transformer: Path) -> Any:
    """ByT5's, whose tokens are bytes, so that it can do without files."""
    from transformers import ByT5Tokenizer

    folder = transformer.parent / "tokenizer"
    if not folder.is_dir():
        return ByT5Tokenizer()
    with wrap_library_errors(
        lambda why: f"{folder} contains no ByT5 tokenizer ({why}); use the one published with GLM-Image."
    ):
        return ByT5Tokenizer.from_pretrained(folder, local_files_only=True)


def _scheduler(library: Any, transformer: Path) -> Any:
    file = transformer.parent / "scheduler" / "scheduler_config.json"
    config = read_json(file) if file.is_file() else _SCHEDULER
    with wrap_library_errors(lambda why: f"{file} can't be used ({why}); use the file published with GLM-Image."):
        return library.FlowMatchEulerDiscreteScheduler.from_config(config)


def denoise(
    pipeline: Any,
    tokens: Tensor,
    prompt: str,
    seed: int,
    steps: int = STEPS,
    guidance: float = GUIDANCE,
    sources: Sequence[SourceImage] = (),
    check: Check | None = None,
    on_step: OnStep | None = None,
) -> Tensor:
    """Tokens [rows, columns] of one image -> its latents [1, C, h, w], for :func:`pixels`.

    prompt: of which it reads what stands in quotation marks. guidance: without any at 1 or below. The noise is drawn by
    a generator of its own on the CPU, so that it is that of the seed on every device. ``check`` is called before each
    layer; it may raise to cancel.
    """
    height, width = (side * PIXELS for side in tokens.shape)
    factor, dtype = pipeline.vae_scale_factor, pipeline.text_encoder.dtype
    shape = (1, pipeline.transformer.config.in_channels, height // factor, width // factor)
    noise = torch.randn(shape, generator=torch.Generator("cpu").manual_seed(seed), dtype=dtype)
    with torch.inference_mode(False), checking(pipeline, check):
        return pipeline(
            prompt,
            height=height,
            width=width,
            num_inference_steps=steps,
            guidance_scale=guidance,
            latents=noise,
            prior_token_ids=_finer(tokens).flatten()[None].to(pipeline.device),
            callback_on_step_end=partial(_step, on_step, [noise]) if on_step is not None else None,
            output_type="latent",
            **_given(sources, pipeline.device),
        ).images


def _given(sources: Sequence[SourceImage], device: torch.device) -> dict[str, Any]:
    """Source images as the pipeline takes them."""
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
    """A grid with every token four times: the transformer reads patches of 16 x 16 pixels."""
    return tokens.repeat_interleave(2, 0).repeat_interleave(2, 1)


def _step(on_step: OnStep, last: list[Tensor], pipeline: Any, step: int, _: Tensor, tensors: dict) -> dict:
    """After a step: the latents move evenly from noise to image, so two of them tell where they would end.

    last: those before the step; it is given those behind it.
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
    """Latents [B, C, h, w] -> pixels [B, 3, 8 h, 8 w] in -1..1. ``check`` as for :func:`denoise`."""
    vae = pipeline.vae
    moments = (vae.config.latents_mean, vae.config.latents_std)
    mean, std = (torch.tensor(values).reshape(1, -1, 1, 1).to(latents.device, vae.dtype) for values in moments)
    with checking(pipeline, check):
        return vae.decode(latents.to(vae.dtype) * std + mean, return_dict=False)[0]


@contextmanager
def checking(pipeline: Any, check: Check | None) -> Iterator[None]:
    """In the block ``check`` is called before each layer of the pipeline's modules."""
    modules = pipeline.transformer, pipeline.text_encoder, pipeline.vae
    layers = [part for module in modules for part in module.modules() if not any(part.children())]
    hooks = [layer.register_forward_pre_hook(lambda *_: check()) for layer in layers] if check is not None else []
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def denoising_bytes(pipeline: Any, size: int, sources: Sequence[SourceImage] = ()) -> int:
    """Memory beside the weights for an image of so many pixels: the widest layer, and keys and values of sources."""
    config, width = pipeline.transformer.config, pipeline.vae.config.block_out_channels[0]
    hidden = config.num_attention_heads * config.attention_head_dim
    theirs = sum(4 * source.tokens.numel() for source in sources)
    tokens = 4 * size // PIXELS**2
    layers = 2 * config.num_layers * hidden * theirs + 24 * hidden * (tokens + theirs)
    encoding = max((4 * width * source.image.width * source.image.height for source in sources), default=0)
    return pipeline.text_encoder.dtype.itemsize * max(layers, encoding)


def decoding_bytes(pipeline: Any, size: int) -> int:
    """Memory beside the VAE's weights for an image of so many pixels: four times its widest layer of full size."""
    return 4 * pipeline.vae.config.block_out_channels[1] * size * pipeline.vae.dtype.itemsize
