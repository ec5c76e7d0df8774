"""Plain decoding by others' code, with random weights in the shape of ours."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import torch
from torch import Tensor

from .device import seconds_of, the_device
from .models import Shape


class Step(NamedTuple):
    """step: decides one token. prefill: seconds of reading the prompt, the first call left out."""

    step: Callable[[], object]
    prefill: float


def transformers_model(shape: Shape):
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
        "max_position_embeddings": ours.max_positions,
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


def _drawn(logits: Tensor, guidance: float) -> Tensor:
    """A code from the logits [2, 1, codes] of both rows of an image, for both rows [2, 1]."""
    c, u = logits.float().chunk(2)
    return torch.multinomial((u + guidance * (c - u)).softmax(-1)[0], 1).expand(2, 1)


def transformers_step(model, shape: Shape, length: int, kind: str) -> Step:
    """Steps of a :func:`transformers_model` from the middle of an image of ``length`` tokens on.

    kind: of the cache, "dynamic" or "static".
    """
    room, where = shape.prompt + length + 1, the_device()
    codes = slice(model.config.vocab_size - shape.codes, None)

    @torch.inference_mode()
    def forward(ids: Tensor, cache) -> Tensor:
        features = model.model(input_ids=ids, past_key_values=cache, use_cache=True).last_hidden_state[:, -1:]
        return _drawn(model.lm_head(features)[..., codes], shape.guidance) + codes.start

    prompt = torch.ones(2, shape.prompt, dtype=torch.long, device=where)
    prefill = min(seconds_of(lambda: forward(prompt, _cache(kind, model, room))) for _ in range(2))
    cache = _cache(kind, model, room)
    last = forward(torch.ones(2, shape.prompt + length // 2, dtype=torch.long, device=where), cache)

    def step() -> None:
        nonlocal last
        last = forward(last, cache)

    return Step(step, prefill)


def _lanterns_code(repository: Path, shape: Shape):
    """The module of LANTERN's Anole, and a configuration of our shape.

    Its package is entered without its ``__init__``, which wants an old version of transformers.
    """
    package = ModuleType("models")
    package.__path__ = [str(repository / "models")]
    sys.modules["models"] = package
    ours = shape.config
    config = import_module("models.configs.configuration_anole").ChameleonConfig(
        vocab_size=ours.vocab_size,
        hidden_size=ours.hidden_size,
        intermediate_size=ours.intermediate_size,
        num_hidden_layers=ours.num_layers,
        num_attention_heads=ours.num_heads,
        num_key_value_heads=ours.num_kv_heads,
        vocabulary_map={"<image>": 1, "IMGIMGAZ": 2},
    )
    config.rope_scaling = None  # newer versions of transformers put there what its code does not expect
    return import_module("models.kv_variants.modeling_anole_kv"), config


def lantern_step(repository: Path, shape: Shape, length: int) -> Step:
    """Plain steps of the Anole in a checkout of LANTERN's public code, with its own cache. Raises what that raises."""
    (theirs, config), where = _lanterns_code(repository, shape), the_device()
    with torch.device(where):
        model = theirs.ChameleonModel(config).to(torch.bfloat16).eval()
        head = torch.nn.Linear(config.hidden_size, config.vocab_size, bias=False, dtype=torch.bfloat16)
        cache, _, known = theirs.initialize_past_key_values(model, batch_size=2)

    @torch.inference_mode()
    def forward(ids: Tensor) -> Tensor:
        features = model(input_ids=ids, past_key_values=cache, use_cache=True)[0][:, -1:]
        return _drawn(head(features)[..., : shape.codes], shape.guidance)

    def read(count: int) -> Tensor:
        known.zero_()
        return forward(torch.ones(2, count, dtype=torch.long, device=where))

    prefill = min(seconds_of(lambda: read(shape.prompt)) for _ in range(2))
    last = read(shape.prompt + length // 2)

    def step() -> None:
        nonlocal last
        last = forward(last)

    return Step(step, prefill)
