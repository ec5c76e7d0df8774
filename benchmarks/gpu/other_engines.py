"""Plain decoding by other engines. The models have random weights in the shapes of `models.SHAPES`."""

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
from .models import ModelShape


class Step(NamedTuple):
    """Plain decoding by another engine.

    Attributes:
        step: Function that decodes one token.
        prefill: Seconds for reading a prompt, from the faster of two calls.
    """

    step: Callable[[], object]
    prefill: float


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


def _sample(logits: Tensor, guidance: float) -> Tensor:
    """Sample the next code with guidance.

    Args:
        logits: Logits [2, 1, codes]. The first row is conditional, the second unconditional.
        guidance: Guidance scale.

    Returns:
        Sampled code [2, 1]. Both rows contain the same code.
    """
    conditional, unconditional = logits.float().chunk(2)
    guided = unconditional + guidance * (conditional - unconditional)
    return torch.multinomial(guided.softmax(-1)[0], 1).expand(2, 1)


def transformers_step(model, shape: ModelShape, length: int, kind: str) -> Step:
    """Prepare plain decoding by transformers. The first step decodes the token in the middle of an image.

    Args:
        model: Model from :func:`transformers_model`.
        shape: Shape of the model.
        length: Number of tokens in the image.
        kind: Kind of the KV cache, "dynamic" or "static".
    """
    cache_length = shape.prompt + length + 1
    where = the_device()
    codes = slice(model.config.vocab_size - shape.codes, None)

    @torch.inference_mode()
    def forward(ids: Tensor, cache) -> Tensor:
        features = model.model(input_ids=ids, past_key_values=cache, use_cache=True).last_hidden_state[:, -1:]
        return _sample(model.lm_head(features)[..., codes], shape.guidance) + codes.start

    prompt = torch.ones(2, shape.prompt, dtype=torch.long, device=where)
    prefill = min(seconds_of(lambda: forward(prompt, _cache(kind, model, cache_length))) for _ in range(2))
    cache = _cache(kind, model, cache_length)
    last = forward(torch.ones(2, shape.prompt + length // 2, dtype=torch.long, device=where), cache)

    def step() -> None:
        nonlocal last
        last = forward(last, cache)

    return Step(step, prefill)


def _lantern_module_and_config(repository: Path, shape: ModelShape):
    """Import the Anole module of LANTERN's public code, and create a configuration of a given shape.

    The import skips the ``__init__`` of the package, which requires an old version of transformers.
    """
    package = ModuleType("models")
    package.__path__ = [str(repository / "models")]
    sys.modules["models"] = package
    config = shape.config
    lantern_config = import_module("models.configs.configuration_anole").ChameleonConfig(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_hidden_layers=config.num_layers,
        num_attention_heads=config.num_heads,
        num_key_value_heads=config.num_kv_heads,
        vocabulary_map={"<image>": 1, "IMGIMGAZ": 2},
    )
    lantern_config.rope_scaling = None  # newer versions of transformers set a value that LANTERN's code rejects
    return import_module("models.kv_variants.modeling_anole_kv"), lantern_config


def lantern_step(repository: Path, shape: ModelShape, length: int) -> Step:
    """Prepare plain decoding by the Anole model in LANTERN's public code, with LANTERN's own KV cache.

    The first step decodes the token in the middle of an image.
    """
    module, config = _lantern_module_and_config(repository, shape)
    where = the_device()
    with torch.device(where):
        model = module.ChameleonModel(config).to(torch.bfloat16).eval()
        head = torch.nn.Linear(config.hidden_size, config.vocab_size, bias=False, dtype=torch.bfloat16)
        cache, _, cached_lengths = module.initialize_past_key_values(model, batch_size=2)

    @torch.inference_mode()
    def forward(ids: Tensor) -> Tensor:
        features = model(input_ids=ids, past_key_values=cache, use_cache=True)[0][:, -1:]
        return _sample(head(features)[..., : shape.codes], shape.guidance)

    def prefill_forward(count: int) -> Tensor:
        cached_lengths.zero_()
        return forward(torch.ones(2, count, dtype=torch.long, device=where))

    prefill = min(seconds_of(lambda: prefill_forward(shape.prompt)) for _ in range(2))
    last = prefill_forward(shape.prompt + length // 2)

    def step() -> None:
        nonlocal last
        last = forward(last)

    return Step(step, prefill)
