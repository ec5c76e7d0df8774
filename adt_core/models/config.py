"""Shape of a decoder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch.nn.functional as F
from torch import Tensor

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    **dict.fromkeys(("silu", "swish"), F.silu),
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
}
"""Activations of the MLP's gate, by their names in ``config.json``."""


@dataclass(frozen=True)
class DecoderConfig:
    """Shape of a decoder.

    Attributes:
        vocab_size: Rows of the embedding.
        hidden_size: Width of the residual stream.
        intermediate_size: Width of the MLP.
        num_layers: Number of layers.
        num_heads: Query heads.
        num_kv_heads: Key and value heads.
        rms_norm_eps: Epsilon of the RMS norms.
        rope_theta: Base of the rotary frequencies.
        max_positions: Positions of prompt and image together.
        qk_norm: LayerNorm on the queries and keys of each head (Chameleon).
        grid_rope: (tokens before the grid, columns of the grid) where rotations use row and column instead of the
            sequence position, and tokens before the grid have zero queries and keys (LlamaGen). Its checkpoints store
            the two elements of a rotated pair next to each other.
        mrope_section: Rotated pairs of a head that use time, row and column (M-RoPE, arXiv 2409.12191; GLM-Image). The
            remaining pairs are not rotated.
        qkv_bias: Biases on queries, keys and values.
        post_norms: RMS norms after attention and MLP, in addition to those before.
        head_hidden_size: Hidden units of a two-layer head (Janus); 0 for a linear head.
        activation: Key of :data:`ACTIVATIONS`.
        explicit_head_dim: Width of a head if it is not ``hidden_size // num_heads``; else 0.
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
        """Width of a head's queries, keys and values."""
        return self.explicit_head_dim or self.hidden_size // self.num_heads

    @property
    def query_width(self) -> int:
        """Width of the queries of all heads together."""
        return self.num_heads * self.head_dim
