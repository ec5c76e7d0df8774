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
from .digits import byte_product
from .rows import Step

Rope = tuple[Tensor, Tensor]
"""What :func:`rope_tables` makes."""


SPARE_POSITIONS = 512
"""Positions behind the last one that drafts may have where their number is fixed."""


def rope_tables(config: DecoderConfig, like: Tensor) -> Rope:
    """cos and sign-folded sin, [max_positions + SPARE_POSITIONS, head_dim] each: NeoX half-rotation (arXiv 2104.09864).

    With the sign folded in, the rotation is ``x * cos + roll(x, head_dim / 2) * sin``. With a ``grid_rope`` one half of
    the pairs turns with the row and the other with the column. Both tables are 0 before the grid, which blanks queries
    and keys out.
    """
    half = config.head_dim // 2
    position = torch.arange(config.max_positions + SPARE_POSITIONS, dtype=torch.float64)[:, None]
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


MATRICES_PAY_UP_TO = {"cuda": 512}
"""Tokens of a forward whose rotations are made matrices, by type of device: one launch a layer instead of three."""


class Frame(NamedTuple):
    """What all layers of a forward over N = R * n tokens share.

    cos, sin: [N, 1, d]. rotation: the same as matrices [N, d, d], where that pays. slots: where keys and values go, as
    in :class:`.rows.Step`. mask: [R, 1, g * n, end], added to attention scores, for each query of a group of g heads
    that share their keys.
    """

    cos: Tensor
    sin: Tensor
    rotation: Tensor | None
    slots: Tensor | slice
    mask: Tensor

    @classmethod
    def of(cls, step: Step, rope: Rope, config: DecoderConfig) -> Frame:
        cos, sin = (table[step.positions].view(-1, config.head_dim) for table in rope)
        pays = len(cos) <= MATRICES_PAY_UP_TO.get(cos.device.type, 0) and config.num_layers > 2
        rotation = _matrices(cos, sin) if pays and not torch.is_grad_enabled() else None
        group = config.num_heads // config.num_kv_heads
        mask = step.mask if group == 1 else step.mask.repeat(1, 1, group, 1)
        return cls(cos[:, None], sin[:, None], rotation, step.slots, mask)

    def rotated(self, qk: Tensor, qkv: Tensor) -> Tensor:
        """Queries and keys [N, heads, d], rotated, and behind them the values, which are the last of ``qkv``'s heads.

        It has the memory of ``qkv``, unless gradients are asked for.
        """
        place, values = qkv.tensor_split([qk.shape[1]], 1)
        if self.rotation is not None:
            torch.bmm(qk, self.rotation, out=place)
            return qkv
        terms = qk * self.cos, qk.roll(qk.shape[-1] // 2, -1), self.sin
        if torch.is_grad_enabled():
            return torch.cat([torch.addcmul(*terms), values], 1)
        torch.addcmul(*terms, out=place)
        return qkv


def _matrices(cos: Tensor, sin: Tensor) -> Tensor:
    """Rotations [N, d, d], such that ``x @ rotation`` is x [d] rotated. cos, sin: [N, d]."""
    half = cos.shape[1] // 2
    made = cos.new_zeros(*cos.shape, cos.shape[1])
    made.diagonal(0, 1, 2).copy_(cos)
    made.diagonal(-half, 1, 2).copy_(sin[:, :half])
    made.diagonal(half, 1, 2).copy_(sin[:, half:])
    return made


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


def product(x: Tensor, weight: Tensor, scale: Tensor | None = None, plus: Tensor | None = None) -> Tensor:
    """x [..., in] times weight [in, out], added to ``plus`` [..., out], which is written over without gradients.

    scale: [out], of a quantised weight, which stands for ``weight * scale``. float32 on a CPU goes to oneDNN, as half
    precision does by itself: with few rows it is up to three times as fast as MKL (docs/performance.md).
    """
    if scale is not None:
        y = byte_product(x.flatten(0, -2), weight, scale).view(*x.shape[:-1], -1)
        return y if plus is None else y.add_(plus)
    on_cpu = x.dtype == torch.float32 and x.device.type == "cpu" and torch.is_inference_mode_enabled()
    if _ONEDNN and on_cpu:
        y = _ONEDNN.default(x, weight.t(), None, "none", [], "")
        return y if plus is None else y.add_(plus)
    if plus is None:
        return x @ weight
    if torch.is_grad_enabled():
        return plus + x @ weight
    plus.flatten(0, -2).addmm_(x.flatten(0, -2), weight)  # one launch, where a sum apart is two
    return plus


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
        rows, n, _ = x.shape
        heads, shared, dim = self.config.num_heads, self.config.num_kv_heads, self.config.head_dim
        qkv = product(x, self.qkv, self.qkv_scale).view(rows * n, -1, dim)
        if self.qk_norm_weight is not None and self.qk_norm_bias is not None:
            normed = F.layer_norm(qkv, (dim,), eps=1e-5)  # the values too: to leave them out, torch would copy the rest
            qk = torch.addcmul(self.qk_norm_bias, normed[:, : heads + shared], self.qk_norm_weight)
        else:
            qk = qkv[:, : heads + shared].clone()
        qkv = frame.rotated(qk, qkv)
        q = qkv[:, :heads].view(rows, n, heads, dim).transpose(1, 2)
        new = qkv[:, heads:].view(rows, n, 2, shared, dim).permute(2, 0, 3, 1, 4)
        if isinstance(frame.slots, slice):
            cache.narrow(3, frame.slots.start, n).copy_(new)
        else:
            cache.scatter_(3, frame.slots[None, :, None, :, None].expand_as(new), new)
        keys, values = cache.narrow(3, 0, frame.mask.shape[-1])
        # heads that share keys are further queries of one head: torch's fast kernels know no grouped heads with a mask
        y = F.scaled_dot_product_attention(q.reshape(rows, shared, -1, dim), keys, values, frame.mask)
        return y.view(rows, heads, n, dim).transpose(1, 2).reshape(rows, n, -1)

    def forward(self, x: Tensor, frame: Frame, cache: Tensor) -> Tensor:
        """x: [R, n, h], the residual stream. It is written over, unless gradients are asked for."""
        eps, width = self.config.rms_norm_eps, (self.config.hidden_size,)
        h = x if self.input_norm is None else F.rms_norm(x, width, self.input_norm, eps)
        x = product(self.attention(h, frame, cache), self.out, self.out_scale, x)
        gate, up = product(F.rms_norm(x, width, self.mlp_norm, eps), self.gate_up, self.gate_up_scale).chunk(2, -1)
        return product(F.silu(gate) * up, self.down, self.down_scale, x)


WIDE = ("norm", "head_in", "head_in_bias", "head_bias", "head")
"""Names of a decoder's parameters that are stored in ``wide_dtype``, so that no call has to widen them."""


class Decoder(nn.Module):
    """Embedding, layers, final norm and the image rows of the head.

    The head is [h, num_codes] in code order, and the ids of image tokens are looked up by code, so everything above
    this class speaks of codes only. ``image_ids`` may be longer than the head: a token behind the codes is never drawn,
    but forced. Final norm and head are stored, and work, in at least float32.
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

    def set_dtype(self, dtype: torch.dtype) -> None:
        """Store the weights in ``dtype``, and those of :data:`WIDE` in ``wide_dtype``."""
        self.to(dtype)
        for name in WIDE:
            parameter = getattr(self, name)
            if parameter is not None:
                parameter.data = parameter.data.to(self.wide_dtype)

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
        x = F.embedding(ids, self.embedding) if inputs is None else inputs.clone()
        frame = Frame.of(step, rope, self.config)
        with without_cudnn():
            for layer, slot in zip(self.layers, cache.data):
                if check is not None:
                    check()
                x = layer(x, frame, slot)
        return F.rms_norm(x.to(self.wide_dtype), (self.config.hidden_size,), self.norm, self.config.rms_norm_eps)

    def logits(self, features: Tensor, guidance: float = 1) -> Tensor:
        """Features in ``wide_dtype`` -> logits of the codes [..., num_codes].

        Under classifier-free guidance the rows [cond..., uncond...] [2B, ..., h] become [B, ..., num_codes]. The head's
        last step is affine, so guiding its input guides its logits, at half the cost.
        """
        if self.head_in is not None and self.head_in_bias is not None:
            features = F.gelu(product(features, self.head_in) + self.head_in_bias)
        z = product(guide(features, guidance), self.head)
        return z if self.head_bias is None else z + self.head_bias
