"""T5's encoder of texts (arXiv 1910.10683): transformers' modules, shaped by a configuration that is checked here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..untrusted import number, one_of
from .reading.fields import Source, read, size

_BUCKETS = {"relative_attention_num_buckets": 32, "relative_attention_max_distance": 128}


def t5_encoder(config: dict, source: Source, usual: Mapping[str, int], attention: str | None = None) -> Any:
    """An empty T5EncoderModel. It takes what shapes the encoder and nothing else: transformers would load code for some
    other fields.

    config: of T5, from ``source``. usual: sizes of a published T5, which stand for what ``config`` lacks. attention:
    transformers' name of a kernel; its own choice if None. AdtError for what makes no sense.
    """
    from transformers import T5Config, T5EncoderModel

    encoder = T5EncoderModel(
        T5Config(
            **{name: size(config, name, source, value) for name, value in (_BUCKETS | dict(usual)).items()},
            feed_forward_proj=read(config, "feed_forward_proj", one_of("gated-gelu", "relu"), source, "gated-gelu"),
            layer_norm_epsilon=float(read(config, "layer_norm_epsilon", number(0, 0.1), source, 1e-6)),
            attn_implementation=attention,
        )
    )
    encoder.set_input_embeddings(encoder.shared)  # one module under both names, so that moving can't make two of it
    return encoder
