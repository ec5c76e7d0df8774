"""The transformer decoder that every target family and the drafter share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import Check
from ..rules.sampling import guide
from .cache import KVCache
from .config import DecoderConfig
from .rows import Step

Rope = tuple[Tensor, Tensor]
"""What :func:`rope_tables` makes."""


def rope_tables(config: DecoderConfig, like: Tensor) -> Rope:
    """cos and sign-folded sin, [max_positions, head_dim] each, NeoX half-rotation (RoFormer, arXiv 2104.09864).

    With the sign folded in, the rotation is ``x * cos + roll(x, head_dim / 2) * sin``. With a ``grid_rope`` one half of
    the pairs turns with the row and the other with the column. Both tables are 0 before the grid, which blanks queries
    and keys out.
    """
    half = config.head_dim // 2
    position = torch.arange(config.max_positions, dtype=torch.float64)[:, None]
    if config.grid_rope is None:
        angle = position * config.rope_theta ** (-torch.arange(half, dtype=torch.float64) / half)
        shown = torch.ones_like(position)
    else:
        blank, columns = config.grid_rope
        frequency = config.rope_theta ** (-torch.arange(half // 2, dtype=torch.float64) / (half // 2))
        cell = (position - blank).clamp_min(0)
        angle, shown = torch.cat([cell // columns * frequency, cell % columns * frequency], -1), position >= blank
    cos, sin = torch.cat([angle.cos()] * 2, -1) * shown, torch.cat([-angle.sin(), angle.sin()], -1) * shown
    return cos.to(like), sin.to(like)


class Frame(NamedTuple):
    """What all layers of a forward share.

    cos, sin: [R, n, 1, d]. slots: where keys and values go, as in :class:`.rows.Step`. mask: [R, 1, g * n, end], added
    to attention scores, for each query of a group of g heads that share their keys.
    """

    cos: Tensor
    sin: Tensor
    slots: Tensor | slice
    mask: Tensor

    @classmethod
    def of(cls, step: Step, rope: Rope, config: DecoderConfig) -> Frame:
        cos, sin = (table[step.positions].unsqueeze(2) for table in rope)
        group = config.num_heads // config.num_kv_heads
        return cls(cos, sin, step.slots, step.mask if group == 1 else step.mask.repeat(1, 1, group, 1))


@contextmanager
def without_cudnn() -> Iterator[None]:
    """Keep scaled_dot_product_attention from cuDNN, which plans anew for every number of keys.

    Around a whole forward: it sets a flag of the process, and sets it back.
    """
    before = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)


MATRICES = ("qkv", "out", "gate_up", "down")
"""Names of a layer's matrices: nearly all of a model's weights."""

_ONEDNN = torch.backends.mkldnn.is_available() and getattr(torch.ops.mkldnn, "_linear_pointwise", None)
"""oneDNN's product. torch.compile lives on it, but torch offers it under no public name."""


def product(x: Tensor, weight: Tensor, scale: Tensor | None = None) -> Tensor:
    """x [..., in] times weight [in, out].

    A quantised weight is first widened to what ``scale`` [out] makes of it; float16 can hold that as well. float32 on a
    CPU goes to oneDNN, as half precision does by itself: with few rows it is up to three times as fast as MKL
    (docs/performance.md).
    """
    weight = weight if scale is None else (weight.to(scale.dtype) * scale).to(x.dtype)
    on_cpu = x.dtype == torch.float32 and x.device.type == "cpu" and torch.is_inference_mode_enabled()
    if _ONEDNN and on_cpu:
        return _ONEDNN.default(x, weight.t(), None, "none", [], "")
    return x @ weight


class Layer(nn.Module):
    """Pre-norm attention and SwiGLU.

    Projections that share an input are stored as one matrix. All matrices are [in, out]: on CPUs a product with few
    rows is up to twice as fast that way round, which makes checking a tree cheap.
    """

    qkv_scale: Tensor | None
    out_scale: Tensor | None
    gate_up_scale: Tensor | None
    down_scale: Tensor | None

    def __init__(self, config: DecoderConfig, input_norm: bool = True):
        super().__init__()
        self.config, h, heads = config, config.hidden_size, config.num_heads + config.num_kv_heads
        self.input_norm = nn.Parameter(torch.ones(h)) if input_norm else None
        self.qkv = nn.Parameter(torch.empty(h, (heads + config.num_kv_heads) * config.head_dim))
        self.qk_norm_weight = nn.Parameter(torch.ones(heads, config.head_dim)) if config.qk_norm else None
        self.qk_norm_bias = nn.Parameter(torch.zeros(heads, config.head_dim)) if config.qk_norm else None
        self.out = nn.Parameter(torch.empty(h, h))
        self.mlp_norm = nn.Parameter(torch.ones(h))
        self.gate_up = nn.Parameter(torch.empty(h, 2 * config.intermediate_size))
        self.down = nn.Parameter(torch.empty(config.intermediate_size, h))
        for name in MATRICES:
            self.register_buffer(f"{name}_scale", None)  # of quantised weights

    def attention(self, x: Tensor, frame: Frame, cache: Tensor) -> Tensor:
        """x: [R, n, h]; cache: [2, R, kv heads, slots, d], written at ``frame.slots``."""
        config = self.config
        rows, n, _ = x.shape
        heads = [config.num_heads, config.num_kv_heads]
        qkv = product(x, self.qkv, self.qkv_scale).view(rows, n, -1, config.head_dim)
        qk, v = qkv.split_with_sizes([sum(heads), config.num_kv_heads], 2)
        if self.qk_norm_weight is not None and self.qk_norm_bias is not None:
            qk = torch.addcmul(self.qk_norm_bias, F.layer_norm(qk, (config.head_dim,), eps=1e-5), self.qk_norm_weight)
        qk = torch.addcmul(qk * frame.cos, qk.roll(config.head_dim // 2, -1), frame.sin).transpose(1, 2)
        q, k = qk.split_with_sizes(heads, 1)
        for table, new in ((cache[0], k), (cache[1], v.transpose(1, 2))):
            if isinstance(frame.slots, slice):
                table.narrow(2, frame.slots.start, n).copy_(new)
            else:
                table.scatter_(2, frame.slots[:, None, :, None].expand_as(new), new)
        keys, values = cache.narrow(3, 0, frame.mask.shape[-1])
        # heads that share keys are further queries of one head: torch's fast kernels know no grouped heads with a mask
        y = F.scaled_dot_product_attention(q.reshape(rows, heads[1], -1, config.head_dim), keys, values, frame.mask)
        return y.view(rows, heads[0], n, -1).transpose(1, 2).reshape(rows, n, -1)

    def forward(self, x: Tensor, frame: Frame, cache: Tensor) -> Tensor:
        eps, width = self.config.rms_norm_eps, (self.config.hidden_size,)
        h = x if self.input_norm is None else F.rms_norm(x, width, self.input_norm, eps)
        x = x + product(self.attention(h, frame, cache), self.out, self.out_scale)
        gate, up = product(F.rms_norm(x, width, self.mlp_norm, eps), self.gate_up, self.gate_up_scale).chunk(2, -1)
        return x + product(F.silu(gate) * up, self.down, self.down_scale)


class Decoder(nn.Module):
    """Embedding, layers, final norm and the image rows of the head.

    The head is [h, num_codes] in code order, and the ids of image tokens are looked up by code, so everything above
    this class speaks of codes only. ``image_ids`` may be longer than the head: a token behind the codes is never drawn,
    but forced. Final norm and head work in at least float32.
    """

    image_ids: Tensor

    def __init__(self, config: DecoderConfig, image_ids: Tensor, num_codes: int | None = None):
        super().__init__()
        self.config = config
        codes = num_codes or len(image_ids)
        self.embedding = nn.Parameter(torch.empty(config.vocab_size, config.hidden_size))
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_layers))
        self.norm = nn.Parameter(torch.ones(config.hidden_size))
        inner = config.head_width
        self.head_in = nn.Parameter(torch.empty(config.hidden_size, inner)) if inner else None
        self.head_in_bias = nn.Parameter(torch.empty(inner)) if inner else None
        self.head_bias = nn.Parameter(torch.empty(codes)) if inner else None
        self.head = nn.Parameter(torch.empty(inner or config.hidden_size, codes))
        self.register_buffer("image_ids", image_ids)

    @property
    def dtype(self) -> torch.dtype:
        return self.embedding.dtype

    @property
    def weights(self) -> str | None:
        """How the matrices are stored, if not in ``dtype``: "int8" or "fp8"."""
        return {torch.int8: "int8", torch.float8_e4m3fn: "fp8"}.get(self.layers[0].get_parameter("qkv").dtype)

    @property
    def wide_dtype(self) -> torch.dtype:
        """The dtype of features, logits and noise: float64 for float64 weights, else float32."""
        return torch.promote_types(self.dtype, torch.float32)

    def forward(
        self,
        ids: Tensor,
        step: Step,
        cache: KVCache,
        rope: Rope,
        check: Check | None = None,
        inputs: Tensor | None = None,
    ) -> Tensor:
        """Token ids [R, n] -> final features [R, n, h] in ``wide_dtype``; keys and values are written to ``cache``.

        inputs: [R, n, h], what stands in the place of the tokens' embeddings.
        """
        x = F.embedding(ids, self.embedding) if inputs is None else inputs
        frame = Frame.of(step, rope, self.config)
        with without_cudnn():
            for layer, slot in zip(self.layers, cache.data):
                if check is not None:
                    check()
                x = layer(x, frame, slot)
        width, wide = (self.config.hidden_size,), self.wide_dtype
        return F.rms_norm(x.to(wide), width, self.norm.to(wide), self.config.rms_norm_eps)

    def logits(self, features: Tensor, guidance: float = 1) -> Tensor:
        """Features in ``wide_dtype`` -> logits of the codes [..., num_codes].

        Under classifier-free guidance the rows [cond..., uncond...] [2B, ..., h] become [B, ..., num_codes]. The head's
        last step is affine, so guiding its input guides its logits, at half the cost.
        """
        if self.head_in is not None and self.head_in_bias is not None:
            features = F.gelu(product(features, self.head_in.to(features.dtype)) + self.head_in_bias)
        z = product(guide(features, guidance), self.head.to(features.dtype))
        return z if self.head_bias is None else z + self.head_bias
