"""Plain decoding by others' code, with random weights in the shape of ours."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from .device import seconds_of, the_device
from .models import Shape


class Step(NamedTuple):
    """step: decides one token. prefill: seconds of reading the prompt, the first call left out."""

    step: Callable[[], object]
    prefill: float


def _model(shape: Shape, room: int):
    """A transformers model with random weights: Chameleon's where ours has its norms, else a LLaMA.

    A LLaMA whose image tokens have a head of their own gets that head's size.
    """
    from transformers import ChameleonConfig, ChameleonForConditionalGeneration, LlamaConfig, LlamaForCausalLM

    ours = shape.config
    shared = {
        "hidden_size": ours.hidden_size,
        "intermediate_size": ours.intermediate_size,
        "num_hidden_layers": ours.num_layers,
        "num_attention_heads": ours.num_heads,
        "num_key_value_heads": ours.num_kv_heads,
        "max_position_embeddings": max(room, ours.max_positions),
        "rms_norm_eps": ours.rms_norm_eps,
        "rope_parameters": {"rope_type": "default", "rope_theta": ours.rope_theta},
        "bos_token_id": None,
        "eos_token_id": None,
    }
    vocabulary = shape.codes if ours.head_width else ours.vocab_size
    if ours.qk_norm:
        codec = {"base_channels": 32, "channel_multiplier": [1], "num_res_blocks": 1, "attn_resolutions": None}
        config = ChameleonConfig(
            vocab_size=vocabulary, vocabulary_map={"<image>": 1, "IMGIMGAZ": 2}, vq_config=codec, **shared
        )
        kind = ChameleonForConditionalGeneration
    else:
        config, kind = LlamaConfig(vocab_size=vocabulary, **shared), LlamaForCausalLM
    with torch.device(the_device()):
        return kind._from_config(config, dtype=torch.bfloat16).eval()


def _cache(kind: str, model, room: int):
    from transformers import DynamicCache, StaticCache

    if kind == "static":
        return StaticCache(config=model.config, max_cache_len=room)
    return DynamicCache(config=model.config)


def transformers_step(shape: Shape, length: int, kind: str) -> Step:
    """Steps of transformers from the middle of an image of ``length`` tokens on. kind: "dynamic" or "static" cache."""
    room = shape.prompt + length + 1
    model, where = _model(shape, room), the_device()
    codes = slice(model.config.vocab_size - shape.codes, None)

    @torch.inference_mode()
    def forward(ids: Tensor, cache) -> Tensor:
        features = model.model(input_ids=ids, past_key_values=cache, use_cache=True).last_hidden_state[:, -1:]
        c, u = model.lm_head(features)[..., codes].float().chunk(2)
        probabilities = (u + shape.guidance * (c - u)).softmax(-1)[0]
        return (torch.multinomial(probabilities, 1) + codes.start).expand(2, 1)

    prompt = torch.ones(2, shape.prompt, dtype=torch.long, device=where)
    prefill = min(seconds_of(lambda: forward(prompt, _cache(kind, model, room))) for _ in range(2))
    cache = _cache(kind, model, room)
    last = forward(torch.ones(2, shape.prompt + length // 2, dtype=torch.long, device=where), cache)

    def step() -> None:
        nonlocal last
        last = forward(last, cache)

    return Step(step, prefill)


def lantern_step(shape: Shape, length: int) -> Callable[[], object]:
    """Plain steps of the Anole in LANTERN's public code, whose folder is on the path. Raises what its code raises.

    It wants the version of transformers that its requirements name.
    """
    from models.configs.configuration_anole import ChameleonConfig
    from models.drafters.kv_cache import initialize_past_key_values
    from models.kv_variants.modeling_anole_kv import ChameleonForConditionalGeneration

    ours = shape.config
    config = ChameleonConfig(
        vocab_size=ours.vocab_size,
        hidden_size=ours.hidden_size,
        intermediate_size=ours.intermediate_size,
        num_hidden_layers=ours.num_layers,
        num_attention_heads=ours.num_heads,
        num_key_value_heads=ours.num_kv_heads,
        vocabulary_map={"<image>": 1, "IMGIMGAZ": 2},
    )
    with torch.device(the_device()):
        model = ChameleonForConditionalGeneration(config).to(torch.bfloat16).eval()
        cache = initialize_past_key_values(model, batch_size=2)[0]
        ids = torch.ones(2, shape.prompt + length // 2, dtype=torch.long)

    @torch.inference_mode()
    def forward(ids: Tensor) -> Tensor:
        features = model.model(input_ids=ids, past_key_values=cache, use_cache=True)[0][:, -1:]
        c, u = model.lm_head(features)[..., : shape.codes].float().chunk(2)
        probabilities = (u + shape.guidance * (c - u)).softmax(-1)[0]
        return torch.multinomial(probabilities, 1).expand(2, 1)

    last = forward(ids)

    def step() -> None:
        nonlocal last
        last = forward(last)

    return step
