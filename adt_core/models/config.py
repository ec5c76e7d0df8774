"""Shape of a decoder, and the storage formats of its weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    **dict.fromkeys(("silu", "swish"), F.silu),
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
}
"""Activation functions of the gated MLP. Keys are the names that a ``config.json`` uses."""
QUANTISED = {"int8": torch.int8, "fp8": torch.float8_e4m3fn, "int4": torch.uint8}
"""Storage formats of quantised matrices (:mod:`.quantised`), with their dtypes. A byte of int4 contains two weights."""


@dataclass(frozen=True)
class DecoderConfig:
    """Shape of a decoder.

    Attributes:
        vocab_size: Number of token ids: the rows of the embedding.
        hidden_size: Width of the residual stream.
        intermediate_size: Hidden width of the MLP.
        num_heads: Number of query heads.
        num_kv_heads: Number of key heads, which is also the number of value heads.
        rope_theta: Base of the rotary frequencies.
        max_positions: Maximum number of tokens of a prompt and its image together.
        qk_norm: Whether each head's queries and keys pass through a LayerNorm (Chameleon).
        grid_rope: Two numbers for a model whose rotations use an image token's row and column (LlamaGen): the number
            of tokens before the image, and the number of columns of the image. Queries and keys of the tokens before
            the image are set to zero. None for rotations by the position in the sequence. LlamaGen's checkpoints store
            the two elements of a rotated pair next to each other.
        mrope_section: Numbers of rotated pairs of a head that use time, row and column, in this order (M-RoPE, arXiv
            2409.12191; GLM-Image). The remaining pairs are not rotated. None for a model without M-RoPE.
        qkv_bias: Whether the projections of queries, keys and values have biases.
        post_norms: Whether each layer has two more RMS norms: one after attention and one after the MLP.
        head_hidden_size: Number of hidden units of a two-layer output head (Janus); 0 for a linear head.
        activation: Activation function of the MLP, as a key of :data:`ACTIVATIONS`.
        explicit_head_dim: Width of an attention head if it differs from ``hidden_size // num_heads``; else 0.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    rms_norm_eps: float
    rope_theta: float
    max_positions: int
    qk_norm: bool = True
    grid_rope: tuple[int, int] | None = None
    mrope_section: tuple[int, int, int] | None = None
    qkv_bias: bool = False
    post_norms: bool = False
    head_hidden_size: int = 0
    activation: str = "silu"
    explicit_head_dim: int = 0

    @property
    def head_dim(self) -> int:
        """Width of the query, key and value vectors of one attention head."""
        return self.explicit_head_dim or self.hidden_size // self.num_heads

    @property
    def query_width(self) -> int:
        """Width of the queries of all heads together."""
        return self.num_heads * self.head_dim
