"""T5's text encoder (arXiv 1910.10683): the modules of transformers, with a checked configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...errors import naming_missing_libraries
from ...untrusted import number, one_of
from .fields import ConfigSource, read, size

_BUCKETS = {"relative_attention_num_buckets": 32, "relative_attention_max_distance": 128}


def t5_encoder(config: dict, source: ConfigSource, default: Mapping[str, int], attention: str | None = None) -> Any:
    """Return a T5EncoderModel without weights.

    The function passes only the fields that define the model's shape to transformers, because some other fields make
    transformers load code.

    Args:
        config: Fields of the ``config.json``.
        default: Sizes of a published T5 model, for fields that ``config`` lacks.
        attention: Attention kernel, under its name in transformers, such as "eager"; None for the default.

    Raises:
        AdtError: If a field has an unsupported value.
    """
    with naming_missing_libraries():
        from transformers import T5Config, T5EncoderModel

    encoder = T5EncoderModel(
        T5Config(
            **{name: size(config, name, source, value) for name, value in (_BUCKETS | dict(default)).items()},
            feed_forward_proj=read(config, "feed_forward_proj", one_of("gated-gelu", "relu"), source, "gated-gelu"),
            layer_norm_epsilon=float(read(config, "layer_norm_epsilon", number(0, 0.1), source, 1e-6)),
            attn_implementation=attention,
        )
    )
    encoder.set_input_embeddings(encoder.shared)  # shared.weight has two names; to_empty would make two copies
    return encoder
