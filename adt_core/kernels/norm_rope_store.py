"""Preparation of queries, keys and values: bias, norm, rotation, and the write to the KV cache.

Letters in shapes: R rows of the batch, n tokens of each row, N = R * n tokens in total, d elements of an attention
head. The tokens of row 0 come first, then those of row 1 and so on, then padding up to a complete tile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import NamedTuple

import torch
from torch import Tensor

from ..models.rotary import Rotation
from . import choice
from .trials import MIN_SPEEDUP, ROUNDS, is_candidate, random_like, tolerance

EPS = 1e-5  # epsilon of the norm of queries and keys
WARPS = 1
"""Warps of a program of the kernel. A program computes one head of one token."""


class Projection(NamedTuple):
    """Parameters that are applied to the product with the weights of queries, keys and values.

    Attributes:
        bias: [all heads * d], where all heads are the query heads, the key heads and the value heads; or None.
        norm_weight: [query heads + key heads, d] weight of the LayerNorm of each query and key, or None.
        norm_bias: [query heads + key heads, d] bias of this norm, or None.
    """

    bias: Tensor | None
    norm_weight: Tensor | None
    norm_bias: Tensor | None


def norm_rope_store(
    qkv: Tensor, projection: Projection, rotation: Rotation, cache: Tensor, cache_position: Tensor | slice
) -> Tensor:
    """Norm and rotate queries and keys, and write keys and values to the cache.

    Args:
        qkv: [at least N, all heads, d] product: the query heads, then the key heads, then the value heads. Overwritten
            unless gradients are enabled.
        rotation: Rotations of all tokens and of the padding.
        cache: [2, R, key heads, cache_length, d] keys and values of the layer. Overwritten at `cache_position`.
        cache_position: [R, n] int64 cache positions, or a slice if they are the same in all rows.

    Returns:
        [at least N, query heads, d] queries. Those of padding are undefined.
    """
    kv_heads, _, dim = cache.shape[2:]
    parts = projection.bias is not None, projection.norm_weight is not None
    run = kernel if uses_kernel(qkv, qkv.shape[1] - 2 * kv_heads, kv_heads, dim, *parts) else reference
    return run(qkv, projection, rotation, cache, cache_position)


def reference(
    qkv: Tensor, projection: Projection, rotation: Rotation, cache: Tensor, cache_position: Tensor | slice
) -> Tensor:
    """Compute :func:`norm_rope_store` with torch."""
    _, rows, kv_heads, _, dim = cache.shape
    heads = qkv.shape[1] - 2 * kv_heads
    if projection.bias is not None:
        bias = projection.bias.view(1, -1, dim)
        qkv = qkv + bias if torch.is_grad_enabled() else qkv.add_(bias)
    if projection.norm_weight is not None and projection.norm_bias is not None:
        # This also norms the values, although nothing reads the result: torch would copy a slice without them.
        normed, *_ = torch.native_layer_norm(qkv, (dim,), *_no_change(qkv, dim), EPS)
        qk = torch.addcmul(projection.norm_bias, normed[:, : heads + kv_heads], projection.norm_weight)
    else:
        qk = qkv[:, : heads + kv_heads].clone()
    qkv = rotation.rotated(qk, qkv)
    n = _tokens(cache_position)
    token, head, element = qkv.stride()
    # [2, R, key heads, n, d] as in the cache. One view instead of four, because on a CPU each takes microseconds.
    size = (2, rows, kv_heads, n, dim)
    stride = (kv_heads * head, n * token, head, token, element)
    new = qkv.as_strided(size, stride, qkv.storage_offset() + heads * head)
    if isinstance(cache_position, slice):
        cache[:, :, :, cache_position] = new
    else:
        cache.scatter_(3, cache_position[None, :, None, :, None].expand_as(new), new)
    return qkv.as_strided((len(qkv), heads, dim), (token, head, element))  # `qkv[:, :heads]` is two operations


def _no_change(x: Tensor, dim: int) -> tuple[Tensor | None, Tensor | None]:
    """Return a weight and a bias of a LayerNorm of x, [dim] each, that change nothing.

    On a CPU, torch's LayerNorm is faster with them than without.
    """
    return _ones_and_zeros(dim, x.dtype) if x.is_cpu else (None, None)


@cache
def _ones_and_zeros(dim: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    with torch.inference_mode(False):  # usable with and without gradients
        return torch.ones(dim, dtype=dtype, device="cpu"), torch.zeros(dim, dtype=dtype, device="cpu")


def _tokens(cache_position: Tensor | slice) -> int:
    """Return the number n of tokens of each row."""
    if isinstance(cache_position, slice):
        return cache_position.stop - cache_position.start
    return cache_position.shape[1]


def kernel(
    qkv: Tensor, projection: Projection, rotation: Rotation, cache: Tensor, cache_position: Tensor | slice
) -> Tensor:
    """Compute :func:`norm_rope_store` with one Triton kernel. Sums are computed in float32 and rounded once."""
    from triton import next_power_of_2

    from .norm_rope_store_triton import norm_rope_store as kernel_of_heads

    _, rows, kv_heads, _, dim = cache.shape
    heads = qkv.shape[1] - 2 * kv_heads
    n = _tokens(cache_position)
    qkv = qkv.contiguous()
    queries = qkv.new_empty(len(qkv), heads, dim)
    bias, norm_weight, norm_bias = (qkv if given is None else given for given in projection)
    has_positions = isinstance(cache_position, Tensor)
    positions = choice.aligned(cache_position.contiguous()) if isinstance(cache_position, Tensor) else qkv
    start = cache_position.start if isinstance(cache_position, slice) else 0
    value_offset, row_stride, head_stride = cache.stride()[:3]
    choice.launch(
        kernel_of_heads, (rows * n, heads + 2 * kv_heads),
        (qkv, bias, norm_weight, norm_bias, rotation.cos, rotation.sin, queries, cache, positions),
        n, start, row_stride, head_stride, value_offset, EPS,
        DTYPE=choice.triton_dtype(qkv.dtype),
        HAS_BIAS=projection.bias is not None, HAS_NORM=projection.norm_weight is not None,
        HAS_POSITIONS=has_positions, HEADS=heads, KEY_HEADS=kv_heads, WIDTH=dim, PADDED=next_power_of_2(dim),
        num_warps=WARPS,
    )  # fmt: skip
    return queries


def uses_kernel(x: Tensor, heads: int, kv_heads: int, dim: int, has_bias: bool, has_norm: bool) -> bool:
    """Return whether the kernel is used for all forward passes of a model with the dtype and device of `x`."""
    shape = heads, kv_heads, dim, "bias" if has_bias else "no bias", "norm" if has_norm else "no norm"
    trial = partial(_trial, x, heads, kv_heads, dim, has_bias, has_norm)
    return is_candidate(x) and choice.uses_kernel("norm_rope_store", x, shape, trial)


def _trial(x: Tensor, heads: int, kv_heads: int, dim: int, has_bias: bool, has_norm: bool) -> choice.Trial:
    """Return the trial: rounds of two rows. It runs all versions that a model with these parameters needs."""
    qkv = random_like(x, ROUNDS[-1].total, heads + 2 * kv_heads, dim)
    norms = random_like(x, 2, heads + kv_heads, dim, seed=1) if has_norm else (None, None)
    projection = Projection(random_like(x, qkv[0].numel(), seed=2) if has_bias else None, *norms)
    tables = random_like(x, 2, len(qkv), dim, seed=3)

    def call(run: Callable[..., Tensor], tokens: Tensor, used: int, has_slice: bool = False) -> Callable[[], Tensor]:
        """Return a function that computes the queries, keys and values [used, all heads, d] of two rows of tokens."""
        positions = slice(0, used // 2) if has_slice else torch.arange(used // 2, device=x.device).expand(2, -1)
        rotation = Rotation.of(tokens, (tables[0], tables[1]), layers=3)
        cache = x.new_zeros(2, 2, kv_heads, used // 2, dim)
        given = qkv[tokens]

        def result() -> Tensor:
            queries = run(given, projection, rotation, cache, positions)[:used]
            return torch.cat([queries, cache.permute(1, 3, 0, 2, 4).reshape(used, -1, dim)], 1)

        return result

    everything = torch.arange(len(qkv), device=x.device)

    def equal_results() -> Iterator[tuple[str, Tensor, Tensor]]:
        expected = call(kernel, everything, len(qkv))()
        two = everything[7 :: len(qkv) // 2]
        yield f"1 and {len(qkv) // 2} tokens", call(kernel, two, 2)(), expected[two]
        yield "both forms of cache positions", call(kernel, everything, len(qkv), has_slice=True)(), expected

    def case(used: int, total: int, weight: int) -> choice.Case:
        part = everything[:total]
        return choice.Case(call(kernel, part, used), call(reference, part, used), weight)

    return choice.Trial([case(*size) for size in ROUNDS], tolerance(x.dtype), equal_results, MIN_SPEEDUP)
