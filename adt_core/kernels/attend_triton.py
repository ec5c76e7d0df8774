"""Triton kernels of :func:`.attend.attend`: partial attention to chunks of far keys, and the merge with near keys.

No size that changes between forward passes is a compile-time constant. All forward passes of a model therefore run the
same machine code, and the order of every sum depends only on the cache positions of the keys.

Terms: a key head is shared by GROUP query heads. WIDTH is the number of elements of a head, and PADDED is the next
power of two. n is the number of tokens of each row. A key head has n * GROUP queries: query i belongs to token
i // GROUP. Queries are stored as [tokens, query heads, WIDTH].
"""

import triton
import triton.language as tl

from .pointer_triton import pointer


@triton.jit
def _far_keys(bounds, n):
    """Return the first far cache position that any of n tokens sees, and the position after the last one."""
    first = 2147483647
    until = 0
    for start in range(0, n, 128):
        token = start + tl.arange(0, 128)
        first = tl.minimum(first, tl.min(tl.load(bounds + token * 2, token < n, 2147483647), 0).to(tl.int32))
        until = tl.maximum(until, tl.max(tl.load(bounds + token * 2 + 1, token < n, 0), 0).to(tl.int32))
    return first, until


@triton.jit
def _sees(bounds, exists, columns):
    """Return whether the token of a query that exists sees the far key at a cache position."""
    return (columns >= tl.load(bounds, exists, 0)) & (columns < tl.load(bounds + 1, exists, 0))


@triton.jit
def _attend_to_chunk(queries, keys, values, visible, scale):
    """Attend to the keys of one chunk.

    Args:
        queries: [BLOCK, PADDED].
        keys: [CHUNK, PADDED].
        values: [CHUNK, PADDED].
        visible: [BLOCK, CHUNK] whether the query sees the key.

    Returns:
        Weighted sum of the values [BLOCK, PADDED], largest score [BLOCK], and sum of the weights [BLOCK], in float32.
        A weight is exp(score - largest score). If no key is visible, all weights are 0.
    """
    scores = tl.dot(queries, tl.trans(keys), input_precision="ieee") * scale
    scores = tl.where(visible, scores, -float("inf"))
    highest = tl.max(scores, 1)
    weights = tl.exp(scores - tl.where(highest == -float("inf"), 0.0, highest)[:, None])
    return tl.dot(weights.to(values.dtype), values, input_precision="ieee"), highest, tl.sum(weights, 1)


@triton.jit(do_not_specialize=["n"])
def far_chunks(
    queries: "*i8", cache: "*i8", bounds: "*i8", sums: "*i8", peaks: "*i8",
    n, cache_row_stride, head_stride, value_offset, scale, DTYPE: tl.constexpr,
    GROUP: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Attend with all queries of one key head to the far keys of one chunk of cache positions.

    The grid is (chunks, key heads, rows). For each query, the kernel writes the weighted sum of the values to `sums`,
    and the largest score and the sum of the weights to `peaks`. If no token of the row sees a key of the chunk, it
    computes and writes nothing.
    """
    queries = pointer(queries, DTYPE)
    cache = pointer(cache, DTYPE)
    chunk = tl.program_id(0)
    head = tl.program_id(1).to(tl.int64)
    row = tl.program_id(2).to(tl.int64)
    columns = chunk * CHUNK + tl.arange(0, CHUNK)
    dims = tl.arange(0, PADDED)[None, :]
    bounds = pointer(bounds, tl.int64) + row * n * 2
    first_seen, until_seen = _far_keys(bounds, n)
    entry = cache + row * cache_row_stride + head * head_stride + columns[:, None] * WIDTH + dims
    inside = ((columns >= first_seen) & (columns < until_seen))[:, None] & (dims < WIDTH)
    keys = tl.load(entry, inside, 0.0)
    values = tl.load(entry + value_offset, inside, 0.0)
    is_seen = (chunk * CHUNK < until_seen) & (chunk * CHUNK + CHUNK > first_seen)
    queries_of_head = tl.where(is_seen, n * GROUP, 0)
    partial = ((row * tl.num_programs(1) + head) * tl.num_programs(0) + chunk) * n * GROUP
    for start in range(0, queries_of_head, BLOCK):
        query = start + tl.arange(0, BLOCK)
        token = query // GROUP
        place = ((row * n + token) * tl.num_programs(1) + head) * GROUP + query % GROUP
        exists = query < n * GROUP
        own = exists[:, None] & (dims < WIDTH)
        block = tl.load(queries + place[:, None] * WIDTH + dims, own, 0.0)
        visible = _sees(bounds + token[:, None] * 2, exists[:, None], columns[None, :])
        part, highest, total = _attend_to_chunk(block, keys, values, visible, scale)
        at = pointer(sums, tl.float32) + (partial + query)[:, None] * WIDTH + dims
        tl.store(at, part, own)
        peak = pointer(peaks, tl.float32) + (partial + query) * 2
        tl.store(peak, highest, exists)
        tl.store(peak + 1, total, exists)


@triton.jit
def _merge_chunks(
    sums, peaks, first, until, stride, dims, WIDTH: tl.constexpr, PADDED: tl.constexpr, BLOCK: tl.constexpr
):
    """Add the chunks of far keys of one query, from `first` to the one before `until`, in the order of their positions.

    A chunk without visible keys has the factor 0. So it changes nothing. The loads of BLOCK chunks do not depend on
    each other, so the device waits for all of them at once.

    Returns:
        Weighted sum of the values [PADDED], largest score, and sum of the weights.
    """
    result = tl.zeros([PADDED], tl.float32)
    highest = -float("inf")
    total = 0.0
    for start in range(first, until, BLOCK):
        for index in tl.static_range(BLOCK):
            chunk = tl.minimum(start + index, until - 1)
            peak = tl.where(start + index < until, tl.load(peaks + chunk * stride * 2), -float("inf"))
            weight = tl.load(peaks + chunk * stride * 2 + 1)
            part = tl.load(sums + chunk * stride * WIDTH + dims, dims < WIDTH, 0.0)
            before = highest
            highest = tl.maximum(highest, peak)
            finite = tl.where(highest == -float("inf"), 0.0, highest)
            shrink = tl.exp(before - finite)
            factor = tl.exp(peak - finite)
            part = tl.where(factor > 0, part, 0.0)
            # The additions are explicit, so that all copies of the unrolled loop round in the same way.
            result = tl.fma(tl.broadcast_to(factor, (PADDED,)), part, result * shrink)
            total = tl.fma(factor, weight, total * shrink)
    return result, highest, total


@triton.jit(do_not_specialize=["n", "chunks", "end", "slots"])
def merge(
    queries: "*i8", cache: "*i8", bounds: "*i8", paths: "*i8", sums: "*i8", peaks: "*i8", out: "*i8",
    n, chunks, end, slots, cache_row_stride, head_stride, value_offset, scale, DTYPE: tl.constexpr,
    GROUP: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr, CHUNK: tl.constexpr,
    BLOCK: tl.constexpr, CHUNKS: tl.constexpr,
):  # fmt: skip
    """Add the chunks of far keys that one query sees, then its near keys in the order of its path.

    The grid is (tokens of all rows, query heads). BLOCK is at least the number of near keys. CHUNKS are read at a time.
    """
    queries = pointer(queries, DTYPE)
    cache = pointer(cache, DTYPE)
    paths = pointer(paths, tl.int64)
    sums = pointer(sums, tl.float32)
    peaks = pointer(peaks, tl.float32)
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    heads = tl.num_programs(1)
    dims = tl.arange(0, PADDED)
    row = token // n
    slot = tl.arange(0, BLOCK)
    columns = tl.load(paths + token * slots + slot, slot < slots, end)
    query = tl.load(queries + (token * heads + head) * WIDTH + dims, dims < WIDTH, 0.0).to(tl.float32)
    query *= scale
    first = (row * (heads // GROUP) + head // GROUP) * chunks * n * GROUP + (token - row * n) * GROUP + head % GROUP
    far = pointer(bounds, tl.int64) + token * 2
    first_chunk = (tl.load(far) // CHUNK).to(tl.int32)
    until_chunk = tl.minimum(tl.cdiv(tl.load(far + 1), CHUNK).to(tl.int32), chunks)
    result, highest, total = _merge_chunks(
        sums + first * WIDTH, peaks + first * 2, first_chunk, until_chunk, n * GROUP, dims, WIDTH, PADDED, CHUNKS
    )  # fmt: skip
    inside = (columns < end)[:, None] & (dims < WIDTH)[None, :]
    near = cache + row * cache_row_stride + head // GROUP * head_stride + columns[:, None] * WIDTH + dims[None, :]
    keys = tl.load(near, inside, 0.0)
    values = tl.load(near + value_offset, inside, 0.0)
    scores = tl.where(columns < end, tl.sum(keys.to(tl.float32) * query[None, :], 1), -float("inf"))
    peak = tl.maximum(highest, tl.max(scores, 0))  # finite, because every token has a near key
    weights = tl.exp(scores - peak)
    shrink = tl.exp(highest - peak)
    result = result * shrink + tl.sum(weights[:, None] * values.to(tl.float32), 0)
    total = total * shrink + tl.sum(weights, 0)
    at = pointer(out, DTYPE) + (token * heads + head) * WIDTH + dims
    tl.store(at, (result / total).to(DTYPE), dims < WIDTH)
