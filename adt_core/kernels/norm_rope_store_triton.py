"""Triton kernel of :func:`.norm_rope_store.norm_rope_store`."""

import triton
import triton.language as tl

from .pointer_triton import pointer


@triton.jit
def _load(numbers, place, exists, DTYPE: tl.constexpr):
    """Return the numbers at `place` in float32."""
    return tl.load(pointer(numbers, DTYPE) + place, exists, 0.0).to(tl.float32)


@triton.jit
def _head(qkv, token, bias, place, exists, HAS_BIAS: tl.constexpr, DTYPE: tl.constexpr):
    """Return the elements at `place` of a token in float32, with the projection's bias."""
    x = _load(qkv, token + place, exists, DTYPE)
    if HAS_BIAS:
        x += _load(bias, place, exists, DTYPE)
    return x


@triton.jit
def _scaled(x, weight, bias, place, exists, DTYPE: tl.constexpr):
    """Return x * weight + bias for the elements at `place`."""
    return x * _load(weight, place, exists, DTYPE) + _load(bias, place, exists, DTYPE)


@triton.jit(do_not_specialize=["n", "start"])
def norm_rope_store(
    qkv: "*i8", bias: "*i8", norm_weight: "*i8", norm_bias: "*i8", cos: "*i8", sin: "*i8", queries: "*i8",
    cache: "*i8", positions: "*i8",
    n, start, cache_row_stride, head_stride, value_offset, eps, DTYPE: tl.constexpr,
    HAS_BIAS: tl.constexpr, HAS_NORM: tl.constexpr, HAS_POSITIONS: tl.constexpr,
    HEADS: tl.constexpr, KEY_HEADS: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    """Norm and rotate one head of one token; write a query to `queries`, and a key or value to the cache.

    The grid is (tokens of all rows, all heads): the query heads, then the key heads, then the value heads.
    """
    cache = pointer(cache, DTYPE)
    positions = pointer(positions, tl.int64)
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    first = token * (HEADS + 2 * KEY_HEADS) * WIDTH
    dims = tl.arange(0, PADDED)
    exists = dims < WIDTH
    place = head * WIDTH + dims
    x = _head(qkv, first, bias, place, exists, HAS_BIAS, DTYPE)
    if head < HEADS + KEY_HEADS:
        partner = head * WIDTH + (dims + WIDTH // 2) % WIDTH  # the element with which the rotation pairs an element
        other = _head(qkv, first, bias, partner, exists, HAS_BIAS, DTYPE)
        if HAS_NORM:
            mean = tl.sum(x, 0) / WIDTH
            centred = tl.where(exists, x - mean, 0.0)
            factor = tl.rsqrt(tl.sum(centred * centred, 0) / WIDTH + eps)
            x = _scaled((x - mean) * factor, norm_weight, norm_bias, place, exists, DTYPE)
            other = _scaled((other - mean) * factor, norm_weight, norm_bias, partner, exists, DTYPE)
        x *= _load(cos, token * WIDTH + dims, exists, DTYPE)
        x += other * _load(sin, token * WIDTH + dims, exists, DTYPE)
    x = x.to(DTYPE)
    if head < HEADS:
        tl.store(pointer(queries, DTYPE) + (token * HEADS + head) * WIDTH + dims, x, exists)
    else:
        row = token // n
        column = tl.load(positions + token) if HAS_POSITIONS else start + token - row * n
        key_head = head - HEADS  # or, from KEY_HEADS on, the head of a value
        cache += row * cache_row_stride + key_head // KEY_HEADS * value_offset + key_head % KEY_HEADS * head_stride
        tl.store(cache + column * WIDTH + dims, x, exists)
