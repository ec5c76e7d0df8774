"""GLM-Image's second stage with small random weights, written by diffusers and transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

SMALL = {"num_layers": 2, "attention_head_dim": 8, "num_attention_heads": 2, "time_embed_dim": 16, "condition_dim": 8}
WIDTHS = [8, 8, 16, 16]


def write_pixels(folder: Path, codes: int) -> Path:
    """Write the folders of the second stage with ``save_pretrained``. ``codes`` is the size of the codebook."""
    small_pipeline(codes).save_pretrained(folder)
    return folder


def small_pipeline(codes: int) -> Any:
    """Return a GlmImagePipeline without the first stage. Its output depends visibly on tokens and prompts."""
    from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler, GlmImagePipeline, GlmImageTransformer2DModel
    from transformers import ByT5Tokenizer, T5Config, T5EncoderModel

    width = 32
    channels = 4
    shape = {"vocab_size": 384, "d_model": width, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 4}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        transformer = GlmImageTransformer2DModel(
            in_channels=channels,
            out_channels=channels,
            text_embed_dim=width,
            prior_vq_quantizer_codebook_size=codes,
            **SMALL,
        )
        vae = AutoencoderKL(
            block_out_channels=WIDTHS,
            down_block_types=["DownEncoderBlock2D"] * 4,
            up_block_types=["UpDecoderBlock2D"] * 4,
            latent_channels=channels,
            norm_num_groups=4,
            latents_mean=[0.1] * channels,
            latents_std=[1.5] * channels,
        )
        encoder = T5EncoderModel(T5Config(**shape, feed_forward_proj="gated-gelu"))
        for module in (transformer, vae):
            for parameter in module.parameters():
                parameter.data *= 2
    scheduler = FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True, time_shift_type="linear")
    return GlmImagePipeline(ByT5Tokenizer(), None, encoder, None, vae, transformer, scheduler)


def published_pipeline(folder: Path, dtype: torch.dtype = torch.float32) -> Any:
    """Load the folder into diffusers' pipeline."""
    from diffusers import GlmImagePipeline

    pipeline = GlmImagePipeline.from_pretrained(folder, processor=None, vision_language_encoder=None).to(dtype)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def finer(codes: torch.Tensor) -> torch.Tensor:
    """Upsample tokens [rows, columns] by 2 in both directions, as the pipeline does. Return [4 * rows * columns]."""
    return torch.nn.functional.interpolate(codes[None, None].float(), scale_factor=2).long().flatten()
