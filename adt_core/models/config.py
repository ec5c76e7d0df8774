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
"""Of the gate of an MLP, by the names that a ``config.json`` has for them."""


@dataclass(frozen=True)
class DecoderConfig:
    """Shape of a decoder.

    qk_norm: LayerNorm on the queries and keys of every head (Chameleon). grid_rope: positions are rotated by their row
    and column of the grid, not by their number; (positions before the grid, which are blanked out; columns of the grid)
    (LlamaGen; its checkpoints store the two elements of a rotated pair side by side). axes: pairs of a head that turn
    with a token's time, its row and its column; further pairs do not turn (GLM-Image; M-RoPE, arXiv 2409.12191).
    qkv_bias: queries, keys and values have biases. norm_behind: norms behind attention and MLP too. head_width: units
    of the hidden layer between features and codes; 0 for a linear head (Janus has one). activation: of
    :data:`ACTIVATIONS`. key_width: of a head's queries, keys and values; 0 where all heads together are as wide as the
    hidden state.
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
    axes: tuple[int, int, int] | None = None
    qkv_bias: bool = False
    norm_behind: bool = False
    head_width: int = 0
    activation: str = "silu"
    key_width: int = 0

    @property
    def head_dim(self) -> int:
        return self.key_width or self.hidden_size // self.num_heads

    @property
    def query_width(self) -> int:
        """Of all heads together."""
        return self.num_heads * self.head_dim
