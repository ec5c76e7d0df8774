"""Transformer decoder of all target families and of the EAGLE drafter.

Letters in shapes: R rows of the batch, n tokens of each row, N = R * n tokens in total, h hidden size, d width of an
attention head. `end` is the number of cache positions that a forward reads. g query heads share a key head, so a key
head has m = g * n queries. In matrix products, each of the N tokens is one row of the matrix of activations.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import Check
from ..kernels import attend as attention
from ..kernels import linear
from ..kernels import norm_rope_store as projection
from ..kernels.attend import attend
from ..kernels.gate import gate
from ..kernels.norm import norm, rms_norm
from ..kernels.norm_rope_store import Projection, norm_rope_store
from ..rules.sampling import guide
from . import int4
from .batch_invariance import (
    HALF,
    MAX_HEAD_TILE,
    TILE,
    FallbackConfig,
    NearKeys,
    pad_rows,
    repeat_for_groups,
    tile_for,
    tiled_matmul,
)
from .cache import KVCache
from .config import QUANTISED, DecoderConfig
from .cpu import max_mkl_rows
from .cpu_attention import BatchedAttention
from .packed import packed
from .quantised_matmul import has_exact_sums, quantised_matmul
from .rotary import Rope, Rotation, rope_tables
from .rows import AttentionMetadata
from .torch_private import onednn_matmul, supports_half_matmul


class LayerContext(NamedTuple):
    """Values that all layers of a forward over N = R * n tokens share.

    Attributes:
        tile: Number of tokens of a tile in batch-invariant mode (:mod:`.batch_invariance`), else 0. Activations are
            padded so that their number of tokens is a multiple of the tile.
        tokens: Number of tokens N, without padding.
        rotation: Rotary embeddings of the tokens.
        cache_position: Where keys and values are written, as in :class:`.rows.AttentionMetadata`.
        mask: Mask that is added to the attention scores, as in :func:`..kernels.attend.attend`.
        near_keys: Near keys of batch-invariant mode, as in the same function.
        batched: Attention as batched products; None if :func:`..kernels.attend.attend` is used.
    """

    tile: int
    tokens: int
    rotation: Rotation
    cache_position: Tensor | slice
    mask: Tensor
    near_keys: NearKeys | None
    batched: BatchedAttention | None = None

    @classmethod
    def of(cls, metadata: AttentionMetadata, rope: Rope, config: DecoderConfig, tile: int = 0) -> LayerContext:
        """Return the context of a forward. ``rope`` is the result of :func:`.rotary.rope_tables`."""
        positions = metadata.positions.flatten()
        if metadata.mrope_positions is not None and config.mrope_section is not None:
            rope = rope_tables(config, rope[0], metadata.mrope_positions.flatten(0, 1))
            positions = torch.arange(len(positions), device=positions.device)
        heads = config.num_heads, config.num_kv_heads, config.head_dim
        rotates = projection.uses_kernel(metadata.mask, *heads, config.qkv_bias, config.qk_norm)
        layers = 0 if rotates else config.num_layers
        rotation = Rotation.of(pad_rows(positions, tile), rope, layers, tile)
        tokens = metadata.positions.numel()
        near_keys = metadata.near_keys
        if near_keys is not None and near_keys.columns is not None and attention.uses_kernel(metadata.mask, *heads):
            return cls(tile, tokens, rotation, metadata.cache_position, metadata.mask, near_keys.by_path())
        group = config.num_heads // config.num_kv_heads
        mask = repeat_for_groups(metadata.mask, group)
        batched = None
        if near_keys is not None:
            near_keys = near_keys.for_layers(config.num_kv_heads, group)
        elif BatchedAttention.supports(mask, config.num_kv_heads):
            batched = BatchedAttention(mask, *heads[:2], len(rotation.cos), rotation.cos)
        return cls(tile, tokens, rotation, metadata.cache_position, mask, near_keys, batched)


@contextmanager
def without_cudnn() -> Iterator[None]:
    """Disable cuDNN in scaled_dot_product_attention, because cuDNN compiles a new plan for every number of keys.

    The setting applies to the entire process. Put a complete forward into the block, not a single layer.
    """
    before = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)


MATRICES = ("qkv", "out", "gate_up", "down")
"""Names of a layer's weight matrices. Together they contain nearly all weights of a model."""


def product(
    x: Tensor,
    weight: Tensor,
    scale: Tensor | None = None,
    plus: Tensor | None = None,
    tile: int = 0,
    tokens: int | None = None,
) -> Tensor:
    """Multiply activations by a weight: [N, out] in the dtype of ``x``.

    In batch-invariant mode, a Triton kernel multiplies by quantised weights if it passes its trial. The default tile is
    required: a smaller one is a fallback, because products on this device have depended on the number of rows. The
    kernel also multiplies by int4 weights in other modes, because PyTorch converts them before each product.

    Args:
        x: [N, in] activations.
        weight: [in, out], or packed int4 (:mod:`.int4`).
        scale: [out] factors of an int8 or fp8 weight: the weight's true value is ``weight * scale``. The scale of
            :mod:`.int4` for an int4 weight. None if the weight is not quantised.
        plus: [N, out] values to add to the product, or None. May be overwritten unless gradients are enabled.
        tile: Number of rows of a tile in batch-invariant mode; N must be a multiple of it. 0 in other modes.
        tokens: Number of rows that are not padding; None if there is no padding. In padding, x and the results are
            undefined, and may be NaN.
    """
    if tile == TILE.get(x.device.type) or not tile and weight.dtype == QUANTISED["int4"]:
        by_torch = partial(_product_by_torch, tile, None)
        if scale is not None and linear.uses_kernel(x, weight, scale, plus, by_torch):
            return linear.kernel(x, weight, scale, plus, tokens)
    return _product_by_torch(tile, tokens, x, weight, scale, plus)


def _product_by_torch(
    tile: int, tokens: int | None, x: Tensor, weight: Tensor, scale: Tensor | None, plus: Tensor | None
) -> Tensor:
    """Compute :func:`product` without a Triton kernel."""
    is_widened = not _has_fast_product(weight) and _is_cpu_inference(x) and x.dtype != torch.float64
    if is_widened or weight.dtype == QUANTISED["int4"]:
        return _plus(_piecewise(x.float() if is_widened else x, weight, scale, tile, tokens).to(x.dtype), plus)
    if not tile:
        return _multiply(weight, scale, x, plus)
    if scale is not None and has_exact_sums(x, weight):  # sums of integers need no tile, so no padding
        return _multiply_used_rows(weight, scale, x, plus, tokens)
    kind = x.device, x.dtype, weight.dtype, weight.shape, plus is None
    return tiled_matmul(partial(_multiply, weight, scale), x, plus, tile, kind, tokens)


def _multiply_used_rows(weight: Tensor, scale: Tensor, x: Tensor, plus: Tensor | None, tokens: int | None) -> Tensor:
    """Compute :func:`product` for the rows that are not padding."""
    if tokens is None or tokens == len(x) or torch.is_grad_enabled():
        return _multiply(weight, scale, x, plus)
    if plus is not None:
        _multiply(weight, scale, x[:tokens], plus[:tokens])  # adds to `plus`
        return plus
    return F.pad(_multiply(weight, scale, x[:tokens], None), (0, 0, 0, len(x) - tokens))


def _multiply(weight: Tensor, scale: Tensor | None, x: Tensor, plus: Tensor | None) -> Tensor:
    """Compute :func:`product` in the dtype of the operands.

    For float32 on a CPU, torch's own product calls MKL. :mod:`.cpu` decides whether to call oneDNN instead
    (docs/performance.md).
    """
    if scale is not None:
        return _plus(quantised_matmul(x, weight, scale), plus)
    if _is_cpu_inference(x) and x.dtype == torch.float32 and x.numel() > max_mkl_rows() * x.shape[-1]:
        return onednn_matmul(x, weight, packed(weight), plus)
    if plus is None or torch.is_grad_enabled():
        return _plus(x @ weight if x.ndim > 2 else x.mm(weight), plus)  # `@` is one operation more
    return plus.addmm_(x, weight)  # one kernel launch instead of two


def _plus(y: Tensor, plus: Tensor | None) -> Tensor:
    if plus is None:
        return y
    return plus + y if torch.is_grad_enabled() else plus.add_(y)


CPU_PIECE_BYTES = 2**21
"""Size in bytes of a piece of a weight after its conversion on a CPU. Pieces are converted one at a time, because one
piece fits into the processor's cache. Writing the complete converted weight to memory would take longer than the
product itself."""
GPU_PIECE_BYTES = 2**26
"""Size in bytes of a piece of an int4 weight after its conversion on a GPU. It limits the memory that the conversion
needs. Products of smaller pieces would be too narrow to use the entire GPU."""


def _piecewise(x: Tensor, weight: Tensor, scale: Tensor | None, tile: int, tokens: int | None) -> Tensor:
    """Compute :func:`product` with a weight of any dtype that is converted to the dtype of ``x`` piece by piece."""
    kind = x.device, x.dtype, weight.dtype, weight.shape
    piece_bytes = CPU_PIECE_BYTES if x.device.type == "cpu" else GPU_PIECE_BYTES
    width = max(piece_bytes // (x.element_size() * x.shape[1]) // 16 * 16, 16)
    products = []
    for outputs in (slice(start, start + width) for start in range(0, weight.shape[1], width)):
        piece = weight[:, outputs]
        piece_scale = None if scale is None else scale[..., outputs]
        matrix = piece
        if piece_scale is not None and piece.dtype == QUANTISED["int4"]:
            matrix = int4.unpack(piece, piece_scale, x.dtype)[: x.shape[1]]
            piece_scale = None  # included in the matrix
        multiply = partial(_multiply, matrix.to(x.dtype), None)
        y = tiled_matmul(multiply, x, None, tile, (kind, piece.shape), tokens) if tile else multiply(x, None)
        products.append(y if piece_scale is None else y.mul_(piece_scale))
    return products[0] if len(products) == 1 else torch.cat(products, 1)


def _has_fast_product(weight: Tensor) -> bool:
    """Return whether this CPU multiplies the weight's dtype natively.

    Without native support, a product is emulated and far slower than a float32 product.
    """
    return weight.dtype in (torch.float32, torch.float64) or weight.dtype in HALF and supports_half_matmul(weight.dtype)


def _is_cpu_inference(x: Tensor) -> bool:
    return x.is_cpu and torch.is_inference_mode_enabled()


class Layer(nn.Module):
    """Decoder layer: attention and a gated MLP, each after an RMS norm.

    Projections of the same input are stored as one matrix: ``qkv``, and ``gate_up``. All matrices have the shape
    [in, out]. On a CPU, this layout makes products with few rows, as for a draft tree, up to twice as fast.
    """

    qkv_scale: Tensor | None
    out_scale: Tensor | None
    gate_up_scale: Tensor | None
    down_scale: Tensor | None

    def __init__(self, config: DecoderConfig, input_norm: bool = True):
        super().__init__()
        self.config = config
        h = config.hidden_size
        heads = config.num_heads + config.num_kv_heads
        self.input_norm = nn.Parameter(torch.ones(h)) if input_norm else None
        self.qkv = nn.Parameter(torch.empty(h, (heads + config.num_kv_heads) * config.head_dim))
        self.qk_norm_weight = nn.Parameter(torch.ones(heads, config.head_dim)) if config.qk_norm else None
        self.qk_norm_bias = nn.Parameter(torch.zeros(heads, config.head_dim)) if config.qk_norm else None
        self.qkv_bias = nn.Parameter(torch.zeros(self.qkv.shape[1])) if config.qkv_bias else None
        self.out = nn.Parameter(torch.empty(config.query_width, h))
        self.out_norm = nn.Parameter(torch.ones(h)) if config.post_norms else None
        self.down_norm = nn.Parameter(torch.ones(h)) if config.post_norms else None
        self.mlp_norm = nn.Parameter(torch.ones(h))
        self.gate_up = nn.Parameter(torch.empty(h, 2 * config.intermediate_size))
        self.down = nn.Parameter(torch.empty(config.intermediate_size, h))
        for name in MATRICES:
            self.register_buffer(f"{name}_scale", None)  # None unless quantised

    def forward(self, x: Tensor, context: LayerContext, cache: Tensor) -> Tensor:
        """Run the layer, and return the residual stream [N, h] after it.

        The padding of the result is undefined: each operation may skip padding, and the results of tokens do not depend
        on it.

        Args:
            x: [N, h] residual stream: the n tokens of row 0, of row 1 and so on, then padding up to a complete tile.
                Overwritten unless gradients are enabled.
            cache: [2, R, kv heads, cache_length, d] keys and values of this layer. The method writes the keys and
                values of the tokens at ``context.cache_position``.
        """
        y = x if self.input_norm is None else self._normed(x, self.input_norm, context)
        qkv = product(y, self.qkv, self.qkv_scale, None, context.tile, context.tokens)
        qkv = qkv.view(len(x), -1, self.config.head_dim)
        queries = norm_rope_store(qkv, self._projection, context.rotation, cache, context.cache_position)
        if context.batched is not None:
            attended = context.batched(queries, cache)
        else:
            attended = attend(queries, cache, context.mask, context.near_keys)
        x = self._add_product(x, attended, self.out, self.out_scale, self.out_norm, context)
        y = self._normed(x, self.mlp_norm, context)
        gate_up = product(y, self.gate_up, self.gate_up_scale, None, context.tile, context.tokens)
        gated = gate(gate_up, self.config.activation, context.tokens)
        return self._add_product(x, gated, self.down, self.down_scale, self.down_norm, context)

    @property
    def _projection(self) -> Projection:
        return Projection(self.qkv_bias, self.qk_norm_weight, self.qk_norm_bias)

    def _normed(self, x: Tensor, weight: Tensor, context: LayerContext, plus: Tensor | None = None) -> Tensor:
        return norm(x, weight, self.config.rms_norm_eps, plus, context.tokens)

    def _add_product(
        self,
        x: Tensor,
        y: Tensor,
        weight: Tensor,
        scale: Tensor | None,
        weight_of_norm: Tensor | None,
        context: LayerContext,
    ) -> Tensor:
        """Return x + y @ weight, or x + norm(y @ weight) if a norm is given. x is the residual stream."""
        plus = x if weight_of_norm is None else None
        z = product(y, weight, scale, plus, context.tile, context.tokens)
        return z if weight_of_norm is None else self._normed(z, weight_of_norm, context, x)


WIDE = ("norm", "head_in", "head_in_bias", "head_bias", "head")
"""Names of the decoder's parameters that are stored in ``wide_dtype``, so that a forward need not convert them."""


class Decoder(nn.Module):
    """Transformer decoder: embedding, layers, final norm, and an output head for image tokens only.

    A code is the index of an image token in the codec's codebook. The head [h, num_codes] has one column per code, in
    code order. The rest of the package therefore works with codes, and converts them to token ids with ``image_ids``.
    The final norm and the head are stored and computed in at least float32.

    Attributes:
        image_ids: [num_codes or more] int64 token id of each code. Entries after the codes belong to tokens that are
            never sampled, such as the token that ends a row of the image. These tokens have no column in the head.
        exact: Whether batch-invariant mode is on: in half precision, a token's features do not depend on the forward
            that computes them (:mod:`.batch_invariance`).
        fallback: Slower settings for a device on which the default settings are not batch-invariant, else None. The
            engine sets it when decoding starts.
        pads_single_row: Whether a product of one row is computed with two rows. The engine sets it when decoding
            starts, if float32 products of two or more rows are batch-invariant on this CPU.
        pooled_slots: Unused batch slots by layout, oldest first. Only :mod:`..engine.pool` uses them. They are freed
            together with the weights.
        stream: A :class:`.streamed.LayerStream`, if some layers are not in the memory of the device, else None.
        flats: Main memory of layers that are or were streamed, by index. Only :mod:`.streamed` uses it.
    """

    image_ids: Tensor
    exact: bool = True
    fallback: FallbackConfig | None = None
    pads_single_row: bool = False
    stream: Any = None

    def __init__(self, config: DecoderConfig, image_ids: Tensor, num_codes: int | None = None):
        super().__init__()
        self.config = config
        self.pooled_slots: dict[Hashable, Any] = {}
        self.flats: dict[int, Tensor] = {}
        codes = num_codes or len(image_ids)
        self.embedding = nn.Parameter(torch.empty(config.vocab_size, config.hidden_size))
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_layers))
        self.norm = nn.Parameter(torch.ones(config.hidden_size))
        hidden = config.head_hidden_size
        self.head_in = nn.Parameter(torch.empty(config.hidden_size, hidden)) if hidden else None
        self.head_in_bias = nn.Parameter(torch.empty(hidden)) if hidden else None
        self.head_bias = nn.Parameter(torch.empty(codes)) if hidden else None
        self.head = nn.Parameter(torch.empty(hidden or config.hidden_size, codes))
        self.register_buffer("image_ids", image_ids)

    def set_dtype(self, dtype: torch.dtype) -> None:
        """Convert the weights to ``dtype``, except the parameters in :data:`WIDE`, which become ``wide_dtype``."""
        self.to(dtype)
        for name in WIDE:
            parameter = getattr(self, name)
            if parameter is not None:
                parameter.data = parameter.data.to(self.wide_dtype)

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the activations and of all weights that are neither quantised nor in :data:`WIDE`."""
        return self.embedding.dtype

    @property
    def weights(self) -> str | None:
        """Storage format of quantised matrices, a key of :data:`QUANTISED`; None if they are stored in ``dtype``."""
        dtype = self.layers[0].get_parameter("qkv").dtype
        return next((name for name, stored in QUANTISED.items() if stored == dtype), None)

    @property
    def tile(self) -> int:
        """Number of rows of a tile in batch-invariant mode; 0 if the mode is off or not needed."""
        default = self.default_tile
        return self.fallback.tile if default and self.fallback is not None else default

    @property
    def default_tile(self) -> int:
        """Value of ``tile`` if there is no fallback."""
        return tile_for(self.dtype, self.embedding.device) if self.exact else 0

    @property
    def wide_dtype(self) -> torch.dtype:
        """Dtype of final features, logits and noise: float64 if ``dtype`` is float64, else float32."""
        return torch.float64 if self.dtype is torch.float64 else torch.float32

    def forward(
        self,
        ids: Tensor,
        metadata: AttentionMetadata,
        cache: KVCache,
        rope: Rope,
        check: Check | None = None,
        inputs: Tensor | None = None,
    ) -> Tensor:
        """Return the features [R, n, h] of tokens after the final norm, and write their keys and values to the cache.

        Args:
            ids: [R, n] int64 token ids.
            rope: Result of :func:`.rotary.rope_tables`.
            check: Called before every layer. It may raise an exception to cancel.
            inputs: [R, n, h] inputs of the first layer, instead of the embeddings of ``ids``.
        """
        x = self.embedding[ids] if inputs is None else inputs.clone()  # fewer operations than `F.embedding`
        shape = x.shape
        tile = self._padded_to(self.tile, shape[0] * shape[1])
        x = pad_rows(x.flatten(0, 1), tile)
        context = LayerContext.of(metadata, rope, self.config, tile)
        with without_cudnn():
            for layer_cache, layer in zip(cache.data, self.running_layers()):
                if check is not None:
                    check()
                x = layer(x, context, layer_cache)
        tokens = shape[0] * shape[1]
        x = x if len(x) == tokens else x[:tokens]
        return self._by_rows(self._normed, x.view(shape), self.tile)

    def running_layers(self) -> Iterable[nn.Module]:
        """Return the layers in the order of a pass. Each is in the memory of the device until the next one."""
        return self.layers if self.stream is None else self.stream.over(self.layers)

    @property
    def pool_bytes(self) -> int:
        """Bytes of device memory that `free_pool` would free."""
        return sum(slots.num_bytes for slots in self.pooled_slots.values())

    def free_pool(self) -> None:
        """Free the unused batch slots and their graphs, for example before the weights are moved."""
        self.pooled_slots.clear()

    def first_layer(self) -> nn.Module:
        """Return the first layer. It is in the memory of the device until the next pass."""
        return self.layers[0] if self.stream is None else self.stream.fetched(self.layers[0])

    def _normed(self, x: Tensor) -> Tensor:
        return rms_norm(x.to(self.wide_dtype), self.norm, self.config.rms_norm_eps)

    def logits(self, features: Tensor, guidance: Tensor | float = 1, half_head: Tensor | None = None) -> Tensor:
        """Return the logits of the codes [R, ..., num_codes] in ``wide_dtype``; with guidance [R / 2, ..., num_codes].

        Guidance combines the inputs of the head's last layer, not its outputs. The layer is affine, so the logits are
        the same, and the layer runs on half as many rows.

        Args:
            features: [R, ..., h] in ``wide_dtype``. With guidance, all conditional rows precede the unconditional rows.
            guidance: Scale of classifier-free guidance: a number, or a tensor that broadcasts over the features. The
                number 1 means no guidance.
            half_head: Copy of the head in half precision, for logits that may be imprecise and may depend on the number
                of rows; None to use the head.
        """
        if self.head_in is not None:
            features = self._by_rows(self._head_hidden, features, self._head_tile)
        features = guide(features, guidance)
        if half_head is None:
            return self._by_rows(self._head_out, features, self._head_tile)
        z = product(features.to(half_head.dtype).flatten(0, -2), half_head).to(self.wide_dtype)
        return (z if self.head_bias is None else z + self.head_bias).view(*features.shape[:-1], -1)

    @property
    def _head_tile(self) -> int:
        return min(self.tile, MAX_HEAD_TILE)

    def _head_hidden(self, features: Tensor) -> Tensor:
        assert self.head_in is not None and self.head_in_bias is not None
        return F.gelu(product(features, self.head_in, tile=self._head_tile) + self.head_in_bias)

    def _head_out(self, features: Tensor) -> Tensor:
        z = product(features, self.head, tile=self._head_tile)
        return z if self.head_bias is None else z + self.head_bias

    def _by_rows(self, function: Callable[[Tensor], Tensor], x: Tensor, tile: int) -> Tensor:
        """Apply a function of a matrix [N, k] to x [..., k]. In batch-invariant mode, pad x to complete tiles first."""
        tile = self._padded_to(tile, x.numel() // x.shape[-1])
        rows = x.flatten(0, -2)
        y = function(pad_rows(rows, tile))[: len(rows)] if tile else function(rows)
        return y.view(*x.shape[:-1], -1)

    def _padded_to(self, tile: int, rows: int) -> int:
        """Return the number of rows to whose multiple a matrix is padded before a product; 0 for no padding."""
        return tile or (2 if rows == 1 and self.pads_single_row else 0)
