"""Plain decoding by other engines. The models have random weights in the shapes of `models.SHAPES`."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from .device import seconds_of, the_device
from .models import GUIDANCE_SCALE, ModelShape


class Step(NamedTuple):
    """Plain decoding by another engine."""

    step: Callable[[], object]  # function that decodes one token
    prefill: float  # seconds for reading a prompt, from the faster of two calls


def transformers_model(shape: ModelShape):
    """Create a transformers model of a given shape with random weights.

    The model is a Chameleon if the shape has norms of queries and keys, as Chameleon does. Otherwise it is a LLaMA. If
    the shape has a separate head for image tokens, the vocabulary of the LLaMA has the size of this head.
    """
    from transformers import ChameleonConfig, ChameleonForConditionalGeneration, LlamaConfig, LlamaForCausalLM

    config = shape.config
    shared = {
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "max_position_embeddings": config.max_positions,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
        "bos_token_id": None,
        "eos_token_id": None,
    }
    vocabulary = shape.codes if config.head_hidden_size else config.vocab_size
    if config.qk_norm:
        codec = {"base_channels": 32, "channel_multiplier": [1], "num_res_blocks": 1, "attn_resolutions": None}
        model_config = ChameleonConfig(
            vocab_size=vocabulary, vocabulary_map={"<image>": 1, "IMGIMGAZ": 2}, vq_config=codec, **shared
        )
        kind = ChameleonForConditionalGeneration
    else:
        model_config = LlamaConfig(vocab_size=vocabulary, **shared)
        kind = LlamaForCausalLM
    with torch.device(the_device()):
        return kind._from_config(model_config, dtype=torch.bfloat16).eval()


def _cache(kind: str, model, length: int):
    from transformers import DynamicCache, StaticCache

    if kind == "static":
        return StaticCache(config=model.config, max_cache_len=length)
    return DynamicCache(config=model.config)


def transformers_step(model, shape: ModelShape, length: int, kind: str) -> Step:
    """Prepare plain decoding by transformers. The first step decodes the token in the middle of an image."""
    cache_length = shape.prompt + length + 1
    where = the_device()
    codes = slice(model.config.vocab_size - shape.codes, None)

    @torch.inference_mode()
    def forward(ids: Tensor, cache) -> Tensor:
        features = model.model(input_ids=ids, past_key_values=cache, use_cache=True).last_hidden_state[:, -1:]
        conditional, unconditional = model.lm_head(features)[..., codes].float()
        guided = torch.lerp(unconditional, conditional, GUIDANCE_SCALE)
        return torch.multinomial(guided.softmax(-1), 1).expand(2, 1) + codes.start

    prompt = torch.ones(2, shape.prompt, dtype=torch.long, device=where)
    prefill = min(seconds_of(lambda: forward(prompt, _cache(kind, model, cache_length))) for _ in range(2))
    cache = _cache(kind, model, cache_length)
    last = forward(torch.ones(2, shape.prompt + length // 2, dtype=torch.long, device=where), cache)

    def step() -> None:
        nonlocal last
        last = forward(last, cache)

    return Step(step, prefill)
