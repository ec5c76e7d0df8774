"""The transformer decoder with a static KV cache that every target family and the drafter share.

Batch layout: guidance doubles images into *rows* [cond_0 .. cond_B-1, uncond_0 .. uncond_B-1]. Prompts are
left-padded to a common length, so token i of an image sits in cache slot ``prompt + i`` in all of its rows,
and a row's position id is ``slot - pad``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..sampling import guide

Check = Callable[[], None]


@dataclass(frozen=True)
class DecoderConfig:
    """Shape of a decoder.

    qk_norm: per-head LayerNorm on queries and keys (Chameleon). grid_rope: positions are rotated by row and column of the grid instead of their
    number, as (how many positions before the grid are blanked out, columns of the grid) (LlamaGen). head_width: units of the hidden layer
    between features and codes; 0 for a linear head (Janus has one).
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
    head_width: int = 0

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads


class KVCache:
    """Keys and values of all layers: [layers, 2, rows, kv heads, slots, head dim], allocated once.

    Zeroed, since a masked NaN would still be a NaN. For many rows that takes a while: ``check`` is called before every layer.
    """

    def __init__(self, config: DecoderConfig, rows: int, slots: int, like: Tensor, check: Check | None = None):
        self.data = like.new_empty(config.num_layers, 2, rows, config.num_kv_heads, slots, config.head_dim)
        for layer in self.data:
            if check is not None:
                check()
            layer.zero_()

    @staticmethod
    def num_bytes(config: DecoderConfig, rows: int, slots: int, itemsize: int) -> int:
        return 2 * config.num_layers * rows * config.num_kv_heads * slots * config.head_dim * itemsize

    def keep(self, rows: Tensor) -> None:
        """Go on with these rows alone, in the same memory."""
        layers, two, _, *rest = self.data.shape
        shape = (layers, two, len(rows), *rest)
        kept = self.data.flatten()[: math.prod(shape)].view(shape)
        for old, new in zip(self.data, kept):  # a layer moves to the front, over what has been read already
            new.copy_(old.index_select(1, rows))
        self.data = kept

    def admit(self, rows: Tensor, others: KVCache) -> None:
        """Put the rows of ``others``, which may have fewer slots, in the place of ``rows``."""
        self.data[:, :, rows, :, : others.data.shape[4]] = others.data

    def compact(self, start: Tensor, path: Tensor) -> None:
        """Move the entries of an accepted path together.

        start: [rows] slot of each row's root. path: [rows, m] node numbers; node ``path[r, j]`` moves from
        slot ``start + path[r, j]`` to ``start + j``.
        """
        layers, two, rows, heads, _, dim = self.data.shape
        source = (start[:, None] + path)[None, None, :, None, :, None].expand(layers, two, rows, heads, -1, dim)
        steps = torch.arange(path.shape[1], device=path.device)
        target = (start[:, None] + steps)[None, None, :, None, :, None].expand_as(source)
        self.data.scatter_(4, target, self.data.gather(4, source))


@dataclass
class Step:
    """Where one forward's tokens go and what they may attend to.

    positions: [R, n] position ids. slots: [R, n] cache slots, or a slice when all rows agree.
    mask: [R, 1, n, end] additive, in the compute dtype; ``end`` is the number of cache columns read.
    """

    positions: Tensor
    slots: Tensor | slice
    mask: Tensor

    @property
    def end(self) -> int:
        return self.mask.shape[-1]


@lru_cache(maxsize=64)
def _lower_triangle(n: int, device: torch.device) -> Tensor:
    return torch.ones(1, n, n, dtype=torch.bool, device=device).tril()


def _left_padded(features: list[Tensor | None], length: int, like: Tensor) -> Tensor | None:
    """Features [n, h] of every row as [R, length, h]; None where the rows have token ids alone."""
    if any(one is None for one in features):
        return None
    return torch.stack([F.pad(one.to(like), (0, 0, length - len(one), 0)) for one in features])


class Rows:
    """Geometry of a batch: left-padded prompts, ``slots`` cache columns, one or two rows per image.

    ``ids`` and ``features`` are those that a prefill reads, of the rows that a batch began with.
    """

    _BY_ROW = ("pads", "_blind", "_prompt_mask")

    def __init__(self, prompts: list[list[int]], slots: int, like: Tensor, length: int = 0):
        """prompts: the prompt of every row (``models.target.Prompt``, or plain token ids), conditional rows first; ``like`` gives dtype and device.
        length: to pad prompts to, if none of them is longer."""
        self.length = max(length, *map(len, prompts))
        self.count = len(prompts)
        self.device = like.device
        pads = [self.length - len(prompt) for prompt in prompts]
        ids = [[prompt[0]] * pad + prompt for prompt, pad in zip(prompts, pads)]
        self.ids, self.pads = torch.tensor(ids, device=self.device), torch.tensor(pads, device=self.device)
        self.features = _left_padded([getattr(prompt, "features", None) for prompt in prompts], self.length, like)
        self._blind = torch.tensor([pad + getattr(prompt, "hidden", 0) for prompt, pad in zip(prompts, pads)], device=self.device)
        self.columns = torch.arange(slots, device=self.device)
        self._open = like.new_zeros(())
        self._shut = like.new_full((), -math.inf)
        self._prompt_mask = self._additive(self.columns >= self._blind[:, None])[:, None, None]  # pads are never seen

    def _additive(self, visible: Tensor) -> Tensor:
        return torch.where(visible, self._open, self._shut)

    def prefill(self) -> Step:
        """All prompt tokens at once. What nobody attends to sees what is hidden before it, as in LANTERN's code, and so is never a row of -inf."""
        at = self.columns[: self.length]
        real = at >= self._blind[:, None]
        visible = (at[:, None] >= at) & (real[:, None] | ~real[..., None])
        return Step((at - self.pads[:, None]).clamp_min(0), slice(0, self.length), self._additive(visible)[:, None])

    def of(self, images: Tensor, count: int) -> Tensor:
        """Numbers of the rows of some of the ``count`` images."""
        return (torch.arange(0, self.count, count, device=self.device)[:, None] + images).flatten()

    def select(self, rows: Tensor) -> Rows:
        """These rows alone."""
        chosen = copy(self)
        chosen.count = len(rows)
        for name in self._BY_ROW:
            setattr(chosen, name, getattr(self, name)[rows])
        return chosen

    def with_rows(self, rows: Tensor, others: Rows) -> Rows:
        """The same with ``others``, of the same length and slots, in the place of ``rows``."""
        changed = copy(self)
        for name in self._BY_ROW:
            setattr(changed, name, getattr(self, name).index_copy(0, rows, getattr(others, name)))
        return changed

    def unhidden(self) -> Rows:
        """The same rows with every token of the prompts in sight, ``Prompt.hidden`` or not."""
        rows = copy(self)
        rows._blind = self.pads
        rows._prompt_mask = rows._additive(self.columns >= self.pads[:, None])[:, None, None]
        return rows

    def spread(self, values: Tensor) -> Tensor:
        """Per-image values [B, ...] -> per-row values [R, ...]."""
        repeat = self.count // len(values)
        return values.expand(repeat, *values.shape[1:]) if len(values) == 1 else values.repeat(repeat, *[1] * (values.ndim - 1))

    def step(self, starts: list[int], first: int, offsets: Tensor | int, own: Tensor | None) -> Step:
        """A forward of n tokens behind each image's committed slots.

        starts: committed slots per image. first: distance of the first token's slot from there. offsets:
        position of each token relative to the start, [B, n] or one number for all. own: [B, n, w] bool, which of
        the w uncommitted slots each token sees (itself included); None for a single token that sees them all.
        """
        if len(set(starts)) > 1:
            return self._ragged_step(self.spread(torch.tensor(starts, device=self.device)[:, None]), max(starts), first, offsets, own)
        start, n = starts[0], 1 if own is None else own.shape[1]
        offsets = self.spread(offsets + start) if isinstance(offsets, Tensor) else offsets + start
        slots = slice(start + first, start + first + n)
        if own is None:
            return Step(offsets - self.pads[:, None], slots, self._prompt_mask[..., : slots.stop])
        committed = self._prompt_mask[..., :start].expand(-1, -1, n, -1)
        mask = torch.cat([committed, self.spread(self._additive(own)[:, None])], -1)
        return Step((offsets - self.pads[:, None]).expand(-1, n), slots, mask)

    def causal_step(self, starts: list[int], n: int) -> Step:
        """A forward of n successive tokens right behind each image's committed slots."""
        if n == 1:
            return self.step(starts, 0, 0, None)
        return self.step(starts, 0, self.columns[:n].expand(len(starts), -1), _lower_triangle(n, self.device).expand(len(starts), -1, -1))

    def _ragged_step(self, start: Tensor, last: int, first: int, offsets: Tensor | int, own: Tensor | None) -> Step:
        """The same when images have advanced unequally. start: [R, 1]; last: the greatest of them."""
        offsets = self.spread(offsets) if isinstance(offsets, Tensor) else offsets
        if own is None:
            columns, slots = self.columns[: last + first + 1], start + first
            mask = torch.where((columns <= slots)[:, None, None], self._prompt_mask[..., : len(columns)], self._shut)
            return Step(start + offsets - self.pads[:, None], slots, mask)
        n, width = own.shape[1:]
        positions = (start + offsets - self.pads[:, None]).expand(-1, n)
        slots = start + first + torch.arange(n, device=self.device)
        columns = self.columns[: last + width]
        distance = columns - start
        inside = (distance >= 0) & (distance < width)
        index = distance.clamp(0, width - 1)[:, None].expand(-1, n, -1)
        uncommitted = self.spread(own).gather(2, index) & inside[:, None]
        committed = (distance < 0) & (columns >= self._blind[:, None])
        return Step(positions, slots, self._additive(uncommitted | committed[:, None])[:, None])


def rope_tables(config: DecoderConfig, like: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sign-folded sin, [max_positions, head_dim] each, NeoX half-rotation (RoFormer, arXiv 2104.09864).

    With the sign folded in, the rotation is ``x * cos + roll(x, head_dim / 2) * sin``. With a ``grid_rope`` one half of the pairs turns with the row
    and the other with the column, and both tables are 0 before the grid, which blanks queries and keys out.
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


MATRICES = ("qkv", "out", "gate_up", "down")
"""Names of a layer's matrices: nearly all of a model's weights."""


_ONEDNN = torch.ops.mkldnn._linear_pointwise.default if torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise") else None


def product(x: Tensor, weight: Tensor, scale: Tensor | None = None) -> Tensor:
    """x [..., in] times weight [in, out]. A quantised weight is first widened to what ``scale`` [out] makes of it, which float16 can hold as well.

    float32 on a CPU goes to oneDNN, as half precision does by itself: with few rows it is up to three times as fast as MKL (docs/performance.md). torch
    offers that under no public name, though torch.compile lives on it.
    """
    weight = weight if scale is None else (weight.to(scale.dtype) * scale).to(x.dtype)
    if _ONEDNN is not None and x.dtype == torch.float32 and x.device.type == "cpu" and torch.is_inference_mode_enabled():
        return _ONEDNN(x, weight.t(), None, "none", [], "")
    return x @ weight


class Layer(nn.Module):
    """Pre-norm attention and SwiGLU.

    Projections that share an input are stored fused, and all of them as [in, out]: on CPUs a product with few
    rows is up to twice as fast that way round, which is what makes checking a tree cheap.
    """

    def __init__(self, config: DecoderConfig, input_norm: bool = True):
        super().__init__()
        h, kv = config.hidden_size, config.num_kv_heads * config.head_dim
        self.config = config
        heads = config.num_heads + config.num_kv_heads
        self.input_norm = nn.Parameter(torch.ones(h)) if input_norm else None
        self.qkv = nn.Parameter(torch.empty(h, h + 2 * kv))
        self.qk_norm_weight = nn.Parameter(torch.ones(heads, config.head_dim)) if config.qk_norm else None
        self.qk_norm_bias = nn.Parameter(torch.zeros(heads, config.head_dim)) if config.qk_norm else None
        self.out = nn.Parameter(torch.empty(h, h))
        self.mlp_norm = nn.Parameter(torch.ones(h))
        self.gate_up = nn.Parameter(torch.empty(h, 2 * config.intermediate_size))
        self.down = nn.Parameter(torch.empty(config.intermediate_size, h))
        for name in MATRICES:
            self.register_buffer(f"{name}_scale", None)

    def attention(self, x: Tensor, cos: Tensor, sin: Tensor, step: Step, cache: Tensor) -> Tensor:
        """x: [R, n, h]; cos, sin: [R, n, 1, d]; cache: [2, R, kv heads, slots, d], written at ``step.slots``."""
        config = self.config
        rows, n, _ = x.shape
        both = config.num_heads + config.num_kv_heads
        qk, v = product(x, self.qkv, self.qkv_scale).view(rows, n, both + config.num_kv_heads, config.head_dim).split_with_sizes([both, config.num_kv_heads], 2)
        if self.qk_norm_weight is not None:
            qk = torch.addcmul(self.qk_norm_bias, F.layer_norm(qk, (config.head_dim,), eps=1e-5), self.qk_norm_weight)
        qk = torch.addcmul(qk * cos, qk.roll(config.head_dim // 2, -1), sin).transpose(1, 2)
        q, k = qk.split_with_sizes([config.num_heads, config.num_kv_heads], 1)
        keys, values = cache[0], cache[1]
        if isinstance(step.slots, slice):
            keys.narrow(2, step.slots.start, n).copy_(k)
            values.narrow(2, step.slots.start, n).copy_(v.transpose(1, 2))
        else:
            slots = step.slots[:, None, :, None].expand_as(k)
            keys.scatter_(2, slots, k)
            values.scatter_(2, slots, v.transpose(1, 2))
        keys, values = keys.narrow(2, 0, step.end), values.narrow(2, 0, step.end)
        y = F.scaled_dot_product_attention(q, keys, values, step.mask, enable_gqa=config.num_kv_heads != config.num_heads)
        return y.transpose(1, 2).reshape(rows, n, -1)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, step: Step, cache: Tensor) -> Tensor:
        eps, width = self.config.rms_norm_eps, (self.config.hidden_size,)
        h = x if self.input_norm is None else F.rms_norm(x, width, self.input_norm, eps)
        x = x + product(self.attention(h, cos, sin, step, cache), self.out, self.out_scale)
        gate, up = product(F.rms_norm(x, width, self.mlp_norm, eps), self.gate_up, self.gate_up_scale).chunk(2, -1)
        return x + product(F.silu(gate) * up, self.down, self.down_scale)


class Decoder(nn.Module):
    """Embedding, layers, final norm and the image rows of the head.

    The head is [h, num_codes] in code order and the ids of image tokens are looked up by code, so everything above this class speaks of codes
    only. ``image_ids`` may be longer than the head: what follows the codes is never drawn, but forced. Final norm and head work in at least float32.
    """

    def __init__(self, config: DecoderConfig, image_ids: Tensor, num_codes: int | None = None):
        super().__init__()
        self.config = config
        codes = num_codes or len(image_ids)
        self.embedding = nn.Parameter(torch.empty(config.vocab_size, config.hidden_size))
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_layers))
        self.norm = nn.Parameter(torch.ones(config.hidden_size))
        self.head_in = self.head_in_bias = self.head_bias = None
        if config.head_width:
            self.head_in = nn.Parameter(torch.empty(config.hidden_size, config.head_width))
            self.head_in_bias, self.head_bias = nn.Parameter(torch.empty(config.head_width)), nn.Parameter(torch.empty(codes))
        self.head = nn.Parameter(torch.empty(config.head_width or config.hidden_size, codes))
        self.register_buffer("image_ids", image_ids)

    @property
    def dtype(self) -> torch.dtype:
        return self.embedding.dtype

    @property
    def weights(self) -> str | None:
        """How the matrices are stored, if not in ``dtype``: "int8" or "fp8"."""
        return {torch.int8: "int8", torch.float8_e4m3fn: "fp8"}.get(self.layers[0].qkv.dtype)

    @property
    def wide_dtype(self) -> torch.dtype:
        """The dtype of features, logits and noise: float64 for float64 weights, else float32."""
        return torch.promote_types(self.dtype, torch.float32)

    def forward(self, ids: Tensor, step: Step, cache: KVCache, rope: tuple[Tensor, Tensor], check: Check | None = None,
                inputs: Tensor | None = None) -> Tensor:
        """Token ids [R, n] -> final features [R, n, h] in ``wide_dtype``; keys and values are written to ``cache``.

        inputs: [R, n, h], what stands in the place of the tokens' embeddings.
        """
        x = F.embedding(ids, self.embedding) if inputs is None else inputs
        cos, sin = (table[step.positions].unsqueeze(2) for table in rope)
        for layer, slot in zip(self.layers, cache.data):
            if check is not None:
                check()
            x = layer(x, cos, sin, step, slot)
        return F.rms_norm(x.to(self.wide_dtype), (self.config.hidden_size,), self.norm.to(self.wide_dtype), self.config.rms_norm_eps)

    def logits(self, features: Tensor, guidance: float = 1) -> Tensor:
        """Features in ``wide_dtype`` -> logits of the codes [..., num_codes].

        Under classifier-free guidance the rows [cond..., uncond...] [2B, ..., h] become [B, ..., num_codes]: the head's last step is affine, so guiding
        its input guides its logits at half the cost.
        """
        if self.head_in is not None:
            features = F.gelu(product(features, self.head_in.to(features.dtype)) + self.head_in_bias)
        z = product(guide(features, guidance), self.head.to(features.dtype))
        return z if self.head_bias is None else z + self.head_bias
