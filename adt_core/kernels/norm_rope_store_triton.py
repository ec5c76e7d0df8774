"""Triton kernel of :func:`.norm_rope_store.norm_rope_store`."""

import triton
import triton.language as tl


@triton.jit
def _head(qkv, bias, head, dims, HAS_BIAS: tl.constexpr, WIDTH: tl.constexpr):
    """Return the elements `dims` of a head in float32, with the projection's bias."""
    x = tl.load(qkv + head * WIDTH + dims, dims < WIDTH, 0.0).to(tl.float32)
    if HAS_BIAS:
        x += tl.load(bias + head * WIDTH + dims, dims < WIDTH, 0.0).to(tl.float32)
    return x


@triton.jit
def _scaled(x, weight, bias, place, exists):
    """Return x * weight + bias for the elements at `place`."""
    return x * tl.load(weight + place, exists, 0.0).to(tl.float32) + tl.load(bias + place, exists, 0.0).to(tl.float32)


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
    bias = bias.to(tl.pointer_type(DTYPE))
    norm_weight = norm_weight.to(tl.pointer_type(DTYPE))
    norm_bias = norm_bias.to(tl.pointer_type(DTYPE))
    cos = cos.to(tl.pointer_type(DTYPE))
    sin = sin.to(tl.pointer_type(DTYPE))
    queries = queries.to(tl.pointer_type(DTYPE))
    cache = cache.to(tl.pointer_type(DTYPE))
    positions = positions.to(tl.pointer_type(tl.int64))
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    qkv = qkv.to(tl.pointer_type(DTYPE)) + token * (HEADS + 2 * KEY_HEADS) * WIDTH
    dims = tl.arange(0, PADDED)
    exists = dims < WIDTH
    x = _head(qkv, bias, head, dims, HAS_BIAS, WIDTH)
    if head < HEADS + KEY_HEADS:
        partner = (dims + WIDTH // 2) % WIDTH  # the element with which the rotation pairs an element
        other = _head(qkv, bias, head, partner, HAS_BIAS, WIDTH)
        if HAS_NORM:
            mean = tl.sum(x, 0) / WIDTH
            centred = tl.where(exists, x - mean, 0.0)
            factor = tl.rsqrt(tl.sum(centred * centred, 0) / WIDTH + eps)
            x = _scaled(centred * factor, norm_weight, norm_bias, head * WIDTH + dims, exists)
            other = _scaled((other - mean) * factor, norm_weight, norm_bias, head * WIDTH + partner, exists)
        x *= tl.load(cos + token * WIDTH + dims, exists, 0.0).to(tl.float32)
        x += other * tl.load(sin + token * WIDTH + dims, exists, 0.0).to(tl.float32)
    x = x.to(DTYPE)
    if head < HEADS:
        tl.store(queries + (token * HEADS + head) * WIDTH + dims, x, exists)
    else:
        row = token // n
        column = tl.load(positions + token) if HAS_POSITIONS else start + token - row * n
        is_value = (head - HEADS) // KEY_HEADS
        entry = row * cache_row_stride + is_value * value_offset + (head - HEADS) % KEY_HEADS * head_stride
        tl.store(cache + entry + column * WIDTH + dims, x, exists)
