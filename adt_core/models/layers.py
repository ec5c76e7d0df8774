"""The transformer decoder that every target family and the drafter share."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import Check
from ..rules.sampling import guide
from .batch_invariance import (
    HALF,
    FallbackConfig,
    NearKeys,
    near_attention,
    pad_rows,
    repeat_for_groups,
    tile_for,
    tiled_matmul,
)
from .cache import KVCache
from .config import ACTIVATIONS, DecoderConfig
from .kernels import far_attention, onednn_matmul, supports_half_matmul
from .quantised_matmul import has_exact_sums, quantised_matmul
from .rotary import Rope, Rotation, rope_tables
from .rows import AttentionMetadata


class LayerContext(NamedTuple):
    """What all layers of a forward over N = R * n tokens share.

    rows: R. tile: rows of a product in the exact mode, else 0; with a tile, rows are filled up to a multiple of it.
    rotation: of the N tokens. cache_position: as in :class:`.rows.AttentionMetadata`. mask: [R, 1, g * n, end], added to
    attention scores, for each query of a group of g heads that share their keys. near_keys: in the exact mode.
    """

    rows: int
    tile: int
    rotation: Rotation
    cache_position: Tensor | slice
    mask: Tensor
    near_keys: NearKeys | None

    @classmethod
    def of(cls, step: AttentionMetadata, rope: Rope, config: DecoderConfig, tile: int = 0) -> LayerContext:
        positions = step.positions.flatten()
        if step.places is not None and config.axes is not None:
            rope = rope_tables(config, rope[0], step.places.flatten(0, 1))
            positions = torch.arange(len(positions), device=positions.device)
        rotation = Rotation.of(pad_rows(positions, tile), rope, config.num_layers, tile)
        group, near_keys = config.num_heads // config.num_kv_heads, step.near_keys
        if near_keys is not None:
            near_keys = near_keys.for_layers(config.num_kv_heads, group)
        mask = repeat_for_groups(step.mask, group)
        return cls(len(step.positions), tile, rotation, step.cache_position, mask, near_keys)


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


def attention(q: Tensor, cache: Tensor, mask: Tensor, near_keys: NearKeys | None) -> Tensor:
    """Queries q [R, heads, m, d] over a layer's cache [2, R, heads, cache_length, d] -> [R, heads, m, d].

    mask: [R, 1, m, end], of all keys; of the far ones where near keys stand apart. Then the result is float64.
    """
    keys, values = cache.narrow(3, 0, mask.shape[-1])
    if near_keys is None:
        return F.scaled_dot_product_attention(q, keys, values, mask)
    far = None if near_keys.columns is None else far_attention(q, keys, values, mask)
    return near_attention(q, near_keys.take(cache, mask.shape[-1]), near_keys.mask, far)


MATRICES = ("qkv", "out", "gate_up", "down")
"""Names of a layer's matrices: nearly all of a model's weights."""


def product(
    x: Tensor, weight: Tensor, scale: Tensor | None = None, plus: Tensor | None = None, tile: int = 0
) -> Tensor:
    """x [N, in] times weight [in, out], added to ``plus`` [N, out], which is written over without gradients.

    scale: [out], of a quantised weight, which stands for ``weight * scale``. tile: rows of a product in the exact mode,
    where x is filled up to a multiple of it; 0 elsewhere.
    """
    kind = x.device, x.dtype, weight.dtype, weight.shape, plus is None
    if _draws_on_cpu(x) and x.dtype != torch.float64 and not _is_multiplied(weight):
        y = _widened(x.float(), weight, tile, kind)
        return _plus((y if scale is None else y.mul_(scale)).to(x.dtype), plus)
    multiply = partial(_multiply, weight, scale)
    alone = not tile or scale is not None and has_exact_sums(x, weight)
    return multiply(x, plus) if alone else tiled_matmul(multiply, x, plus, tile, kind)


def _multiply(weight: Tensor, scale: Tensor | None, x: Tensor, plus: Tensor | None) -> Tensor:
    """As :func:`product`, of numbers that the device multiplies.

    float32 on a CPU goes to oneDNN, as half precision does by itself: with few rows it is up to three times as fast as
    MKL (docs/performance.md).
    """
    if scale is not None:
        return _plus(quantised_matmul(x, weight, scale), plus)
    if _draws_on_cpu(x) and x.dtype == torch.float32:
        return _plus(onednn_matmul(x, weight), plus)
    if plus is None or torch.is_grad_enabled():
        return _plus(x @ weight, plus)
    return plus.addmm_(x, weight)  # one launch, where a sum apart is two


def _plus(y: Tensor, plus: Tensor | None) -> Tensor:
    if plus is None:
        return y
    return plus + y if torch.is_grad_enabled() else plus.add_(y)


PIECE = 2**21
"""Bytes of a widened piece of a weight. It stays in the processor's cache; fresh memory costs more than the product."""


def _widened(x: Tensor, weight: Tensor, tile: int, kind: Hashable) -> Tensor:
    """x [N, in] in float32 times weight [in, out], which is widened once, piece by piece: float32 [N, out]."""
    pieces = weight.split(max(PIECE // (4 * len(weight)) // 16 * 16, 16), 1)
    every = ((partial(_multiply, piece.float(), None), (kind, piece.shape)) for piece in pieces)
    done = [tiled_matmul(multiply, x, None, tile, one) if tile else multiply(x, None) for multiply, one in every]
    return done[0] if len(done) == 1 else torch.cat(done, 1)


def _is_multiplied(weight: Tensor) -> bool:
    """Has this CPU fast products with such numbers? What stands in for missing ones is far slower than float32's."""
    return weight.dtype in (torch.float32, torch.float64) or weight.dtype in HALF and supports_half_matmul(weight.dtype)


def _draws_on_cpu(x: Tensor) -> bool:
    return x.device.type == "cpu" and torch.is_inference_mode_enabled()


class Layer(nn.Module):
    """Pre-norm attention and a gated MLP.

    Projections that share an input are stored as one matrix. All matrices are [in, out]: on CPUs a product with few
    rows is up to twice as fast that way round, which makes checking a tree cheap.
    """

    qkv_scale: Tensor | None
    out_scale: Tensor | None
    gate_up_scale: Tensor | None
    down_scale: Tensor | None

    def __init__(self, config: DecoderConfig, input_norm: bool = True):
        super().__init__()
        self.config = config
        h, heads = config.hidden_size, config.num_heads + config.num_kv_heads
        self.input_norm = nn.Parameter(torch.ones(h)) if input_norm else None
        self.qkv = nn.Parameter(torch.empty(h, (heads + config.num_kv_heads) * config.head_dim))
        self.qk_norm_weight = nn.Parameter(torch.ones(heads, config.head_dim)) if config.qk_norm else None
        self.qk_norm_bias = nn.Parameter(torch.zeros(heads, config.head_dim)) if config.qk_norm else None
        self.qkv_bias = nn.Parameter(torch.zeros(self.qkv.shape[1])) if config.qkv_bias else None
        self.out = nn.Parameter(torch.empty(config.query_width, h))
        self.out_norm = nn.Parameter(torch.ones(h)) if config.norm_behind else None
        self.down_norm = nn.Parameter(torch.ones(h)) if config.norm_behind else None
        self.mlp_norm = nn.Parameter(torch.ones(h))
        self.gate_up = nn.Parameter(torch.empty(h, 2 * config.intermediate_size))
        self.down = nn.Parameter(torch.empty(config.intermediate_size, h))
        for name in MATRICES:
            self.register_buffer(f"{name}_scale", None)  # of quantised weights

    def forward(self, x: Tensor, frame: LayerContext, cache: Tensor) -> Tensor:
        """x: [N, h], the residual stream of R * n tokens, row after row, and what fills up the last tile.

        It is written over, unless gradients are asked for. cache: [2, R, kv heads, cache_length, d], written at
        ``frame.cache_position``.
        """
        tile, heads = frame.tile, self._rotated(x, frame)
        x = self._added(x, self._attention(heads, frame, cache), self.out, self.out_scale, self.out_norm, tile)
        gate, up = product(self._normed(x, self.mlp_norm), self.gate_up, self.gate_up_scale, tile=tile).chunk(2, -1)
        gate = ACTIVATIONS[self.config.activation](gate)
        return self._added(x, gate * up, self.down, self.down_scale, self.down_norm, tile)

    def _normed(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, (self.config.hidden_size,), weight, self.config.rms_norm_eps)

    def _added(
        self, x: Tensor, y: Tensor, weight: Tensor, scale: Tensor | None, norm: Tensor | None, tile: int
    ) -> Tensor:
        """The residual stream x and y times a weight, which is normed if there is a norm behind it."""
        if norm is None:
            return product(y, weight, scale, x, tile)
        return _plus(self._normed(product(y, weight, scale, tile=tile), norm), x)

    def _rotated(self, x: Tensor, frame: LayerContext) -> Tensor:
        """x [N, h] -> queries, keys and values [N, heads, d]."""
        heads, shared, dim = self.config.num_heads, self.config.num_kv_heads, self.config.head_dim
        if self.input_norm is not None:
            x = self._normed(x, self.input_norm)
        qkv = product(x, self.qkv, self.qkv_scale, tile=frame.tile)
        if self.qkv_bias is not None:
            qkv = _plus(self.qkv_bias, qkv)
        qkv = qkv.view(len(x), -1, dim)
        if self.qk_norm_weight is not None and self.qk_norm_bias is not None:
            normed = F.layer_norm(qkv, (dim,), eps=1e-5)  # the values too: to leave them out, torch would copy the rest
            qk = torch.addcmul(self.qk_norm_bias, normed[:, : heads + shared], self.qk_norm_weight)
        else:
            qk = qkv[:, : heads + shared].clone()
        return frame.rotation.rotated(qk, qkv)

    def _attention(self, qkv: Tensor, frame: LayerContext, cache: Tensor) -> Tensor:
        """Queries, keys and values [N, heads, d] -> what the queries have seen, [N, h]. What fills up a tile is 0."""
        heads, shared, dim = self.config.num_heads, self.config.num_kv_heads, self.config.head_dim
        tokens, rows = frame.rows * (frame.mask.shape[2] * shared // heads), frame.rows
        filled_up = len(qkv)
        qkv = qkv[:tokens].view(rows, -1, *qkv.shape[1:])
        q, n = qkv[:, :, :heads].transpose(1, 2), qkv.shape[1]
        new = qkv[:, :, heads:].view(rows, n, 2, shared, dim).permute(2, 0, 3, 1, 4)
        if isinstance(frame.cache_position, slice):
            cache.narrow(3, frame.cache_position.start, n).copy_(new)
        else:
            cache.scatter_(3, frame.cache_position[None, :, None, :, None].expand_as(new), new)
        # heads that share keys are further queries of one head: torch's fast kernels know no grouped heads with a mask
        y = attention(q.reshape(rows, shared, -1, dim), cache, frame.mask, frame.near_keys)
        y = y.unflatten(2, (-1, n)).permute(0, 3, 1, 2, 4)  # [R, n, shared, group, d]
        if not frame.tile:
            return y.reshape(tokens, -1)
        seen = qkv.new_zeros(filled_up, heads * dim)
        seen[:tokens].view(y.shape).copy_(y)  # in its dtype and in its place by one launch
        return seen


WIDE = ("norm", "head_in", "head_in_bias", "head_bias", "head")
"""Names of a decoder's parameters that are stored in ``wide_dtype``, so that no call has to widen them."""


class Decoder(nn.Module):
    """Embedding, layers, final norm and the image rows of the head.

    The head is [h, num_codes] in code order, and the ids of image tokens are looked up by code, so everything above
    this class speaks of codes only. ``image_ids`` may be longer than the head: a token behind the codes is never drawn,
    but forced. Final norm and head are stored, and work, in at least float32.
    """

    image_ids: Tensor
    exact: bool = True
    """In half precision: do a token's features not depend on the forward that it is in (:mod:`.batch_invariance`)?"""
    fallback: FallbackConfig | None = None
    """Slower operations for devices whose usual ones are not batch-invariant; set when a decoding starts."""

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
    def tile(self) -> int:
        """Rows of a matrix product in the batch-invariant mode; 0 if the mode is off or not needed."""
        usual = self.default_tile
        return self.fallback.tile if usual and self.fallback is not None else usual

    @property
    def default_tile(self) -> int:
        """`tile` without a fallback."""
        return tile_for(self.dtype, self.embedding.device) if self.exact else 0

    @property
    def wide_dtype(self) -> torch.dtype:
        """The dtype of features, logits and noise: float64 for float64 weights, else float32."""
        return torch.promote_types(self.dtype, torch.float32)

    def forward(
        self,
        ids: Tensor,
        step: AttentionMetadata,
        cache: KVCache,
        rope: Rope,
        check: Check | None = None,
        inputs: Tensor | None = None,
    ) -> Tensor:
        """Token ids [R, n] -> final features [R, n, h] in ``wide_dtype``; keys and values are written to ``cache``.

        inputs: [R, n, h], what stands in the place of the tokens' embeddings.
        """
        x = F.embedding(ids, self.embedding) if inputs is None else inputs.clone()
        shape = x.shape
        x = pad_rows(x.flatten(0, 1), self.tile)
        frame = LayerContext.of(step, rope, self.config, self.tile)
        with without_cudnn():
            for layer, layer_cache in zip(self.layers, cache.data):
                if check is not None:
                    check()
                x = layer(x, frame, layer_cache)
        return self._by_rows(self._normed, x[: shape[0] * shape[1]].view(shape))

    def _normed(self, x: Tensor) -> Tensor:
        return F.rms_norm(x.to(self.wide_dtype), (self.config.hidden_size,), self.norm, self.config.rms_norm_eps)

    def logits(self, features: Tensor, guidance: Tensor | float = 1) -> Tensor:
        """Features in ``wide_dtype`` -> logits of the codes [..., num_codes].

        Under classifier-free guidance the rows [cond..., uncond...] [2B, ..., h] become [B, ..., num_codes]. The head's
        last step is affine, so guiding its input guides its logits, at half the cost.
        """
        if self.head_in is not None:
            features = self._by_rows(self._inner, features)
        return self._by_rows(self._outer, guide(features, guidance))

    def _inner(self, features: Tensor) -> Tensor:
        assert self.head_in is not None and self.head_in_bias is not None
        return F.gelu(product(features, self.head_in, tile=self.tile) + self.head_in_bias)

    def _outer(self, features: Tensor) -> Tensor:
        z = product(features, self.head, tile=self.tile)
        return z if self.head_bias is None else z + self.head_bias

    def _by_rows(self, function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """``function`` of x [..., k], which works on rows [N, k], filled up to whole tiles."""
        if not self.tile:
            return function(x)
        rows = x.flatten(0, -2)
        return function(pad_rows(rows, self.tile))[: len(rows)].view(*x.shape[:-1], -1)
