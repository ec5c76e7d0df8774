"""T5's text encoder (arXiv 1910.10683): transformers' modules, with a configuration whose fields are checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...untrusted import number, one_of
from .fields import ConfigSource, read, size

_BUCKETS = {"relative_attention_num_buckets": 32, "relative_attention_max_distance": 128}


def t5_encoder(config: dict, source: ConfigSource, default: Mapping[str, int], attention: str | None = None) -> Any:
    """Return an empty T5EncoderModel.

    Only the fields that define its shape are passed on, because transformers loads code for some others.

    Args:
        config: Fields of the ``config.json``.
        source: The checkpoint, for error messages.
        default: Sizes of a published T5, for fields that ``config`` lacks.
        attention: transformers' name of an attention kernel; None for its default.

    Raises:
        AdtError: If a field has an unsupported value.
    """
    from transformers import T5Config, T5EncoderModel

    encoder = T5EncoderModel(
        T5Config(
            **{name: size(config, name, source, value) for name, value in (_BUCKETS | dict(default)).items()},
            feed_forward_proj=read(config, "feed_forward_proj", one_of("gated-gelu", "relu"), source, "gated-gelu"),
            layer_norm_epsilon=float(read(config, "layer_norm_epsilon", number(0, 0.1), source, 1e-6)),
            attn_implementation=attention,
        )
    )
    encoder.set_input_embeddings(encoder.shared)  # one module under both names, which to_empty would duplicate
    return encoder
