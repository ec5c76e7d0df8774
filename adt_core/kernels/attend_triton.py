"""Triton kernels of :func:`.attend.attend`: partial attention to chunks of far keys, and the merge with near keys.

No size that changes between forward passes is a compile-time constant. All forward passes of a model therefore run the
same machine code, and the order of every sum depends only on the cache positions of the keys.

Terms: a key head is shared by GROUP query heads. WIDTH is the number of elements of a head, and PADDED is the next
power of two. n is the number of tokens of each row. A key head has n * GROUP queries: query i belongs to token
i // GROUP. Queries are stored as [tokens, query heads, WIDTH].
"""

import triton
import triton.language as tl


@triton.jit
def _count_visible(mask, n, mask_stride, columns, end, BLOCK: tl.constexpr):
    """Count the pairs (token, key) in which the token sees the key, for n tokens and the keys at `columns`."""
    count = 0
    for first in range(0, n, BLOCK):
        token = first + tl.arange(0, BLOCK)
        exists = (token[:, None] < n) & (columns[None, :] < end)
        part = tl.load(mask + token[:, None] * mask_stride + columns[None, :], exists, -float("inf"))
        count += tl.sum(tl.sum((part > -float("inf")).to(tl.int32), 1), 0)
    return count


@triton.jit
def _attend_to_chunk(queries, keys, values, mask, visible, scale):
    """Attend to the keys of one chunk.

    Args:
        queries: [BLOCK, PADDED].
        keys: [CHUNK, PADDED].
        values: [CHUNK, PADDED].
        mask: [BLOCK, CHUNK] pointers to the mask.
        visible: [BLOCK, CHUNK] whether the query and the cache position exist. If not, the key is masked, and the mask
            is not read.
        scale: Factor of the scores.

    Returns:
        Weighted sum of the values [BLOCK, PADDED], largest score [BLOCK], and sum of the weights [BLOCK], in float32.
        A weight is exp(score - largest score). If all keys are masked, all weights are 0.
    """
    scores = tl.dot(queries, tl.trans(keys), input_precision="ieee") * scale
    scores += tl.load(mask, visible, -float("inf")).to(tl.float32)
    highest = tl.max(scores, 1)
    weights = tl.exp(scores - tl.where(highest == -float("inf"), 0.0, highest)[:, None])
    return tl.dot(weights.to(values.dtype), values, input_precision="ieee"), highest, tl.sum(weights, 1)


@triton.jit(do_not_specialize=["n", "end", "mask_row_stride", "mask_stride"])
def far_chunks(
    queries, cache, mask, sums, peaks,
    n, end, mask_row_stride, mask_stride, cache_row_stride, head_stride, value_offset, scale,
    GROUP: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Attend with all queries of one key head to the far keys of one chunk of cache positions.

    The grid is (chunks, key heads, rows). For each query, the kernel writes the weighted sum of the values to `sums`,
    and the largest score and the sum of the weights to `peaks`. Without a visible key it writes only `peaks`.
    """
    chunk = tl.program_id(0)
    head = tl.program_id(1).to(tl.int64)
    row = tl.program_id(2).to(tl.int64)
    columns = chunk * CHUNK + tl.arange(0, CHUNK)
    dims = tl.arange(0, PADDED)[None, :]
    mask += row * mask_row_stride
    visible = _count_visible(mask, n, mask_stride, columns, end, BLOCK)
    limit = tl.where(visible > 0, end, 0)  # reads nothing of a masked chunk
    stored = tl.where(visible > 0, n * GROUP, 0)
    entry = cache + row * cache_row_stride + head * head_stride + columns[:, None] * WIDTH + dims
    inside = (columns[:, None] < limit) & (dims < WIDTH)
    keys = tl.load(entry, inside, 0.0)
    values = tl.load(entry + value_offset, inside, 0.0)
    partial = ((row * tl.num_programs(1) + head) * tl.num_programs(0) + chunk) * n * GROUP
    for first in range(0, n * GROUP, BLOCK):
        query = first + tl.arange(0, BLOCK)
        token = query // GROUP
        place = ((row * n + token) * tl.num_programs(1) + head) * GROUP + query % GROUP
        exists = query < n * GROUP
        own = exists[:, None] & (dims < WIDTH)
        block = tl.load(queries + place[:, None] * WIDTH + dims, own, 0.0)
        at = mask + token[:, None] * mask_stride + columns[None, :]
        known = exists[:, None] & (columns[None, :] < end)
        part, highest, total = _attend_to_chunk(block, keys, values, at, known, scale)
        tl.store(sums + (partial + query)[:, None] * WIDTH + dims, part, (query < stored)[:, None] & (dims < WIDTH))
        tl.store(peaks + (partial + query) * 2, highest, exists)
        tl.store(peaks + (partial + query) * 2 + 1, total, exists)


@triton.jit
def _merge_chunks(sums, peaks, chunks, stride, dims, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    """Add the chunks of far keys of one query in the order of their cache positions.

    A chunk without visible keys has the factor 0, and its `sums` are undefined.

    Returns:
        Weighted sum of the values [PADDED], largest score, and sum of the weights.
    """
    highest = -float("inf")
    for chunk in range(chunks):
        highest = tl.maximum(highest, tl.load(peaks + chunk * stride * 2))
    result = tl.zeros([PADDED], tl.float32)
    total = 0.0
    finite = tl.where(highest == -float("inf"), 0.0, highest)
    for chunk in range(chunks):
        factor = tl.exp(tl.load(peaks + chunk * stride * 2) - finite)
        part = tl.load(sums + chunk * stride * WIDTH + dims, dims < WIDTH, 0.0)
        result += factor * tl.where(factor > 0, part, 0.0)
        total += factor * tl.load(peaks + chunk * stride * 2 + 1)
    return result, highest, total


@triton.jit(do_not_specialize=["n", "rows", "chunks", "end", "slots"])
def merge(
    queries, cache, paths, sums, peaks, out,
    n, rows, chunks, end, slots, cache_row_stride, head_stride, value_offset, scale,
    GROUP: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Add the chunks of far keys of one query, then its near keys in the order of its path, BLOCK keys at a time.

    The grid is (all tokens and padding, query heads). The outputs of padding are 0.
    """
    number = tl.program_id(0)
    head = tl.program_id(1)
    heads = tl.num_programs(1)
    dims = tl.arange(0, PADDED)
    exists = number < rows * n
    token = tl.where(exists, number, 0).to(tl.int64)
    row = token // n
    query = tl.load(queries + (token * heads + head) * WIDTH + dims, dims < WIDTH, 0.0).to(tl.float32)
    query *= scale
    first = (row * (heads // GROUP) + head // GROUP) * chunks * n * GROUP + (token - row * n) * GROUP + head % GROUP
    result, highest, total = _merge_chunks(
        sums + first * WIDTH, peaks + first * 2, chunks, n * GROUP, dims, WIDTH, PADDED
    )  # fmt: skip
    keys = cache + row * cache_row_stride + head // GROUP * head_stride
    for start in range(0, slots, BLOCK):
        slot = start + tl.arange(0, BLOCK)
        columns = tl.load(paths + token * slots + slot, slot < slots, end)
        inside = (columns < end)[:, None] & (dims < WIDTH)[None, :]
        near = keys + columns[:, None] * WIDTH + dims[None, :]
        scores = tl.sum(tl.load(near, inside, 0.0).to(tl.float32) * query[None, :], 1)
        scores = tl.where(columns < end, scores, -float("inf"))
        peak = tl.maximum(highest, tl.max(scores, 0))  # finite, because every token has a near key in the first block
        weights = tl.exp(scores - peak)
        shrink = tl.exp(highest - peak)
        part = tl.load(near + value_offset, inside, 0.0).to(tl.float32)
        result = result * shrink + tl.sum(weights[:, None] * part, 0)
        total = total * shrink + tl.sum(weights, 0)
        highest = peak
    at = out + (number.to(tl.int64) * heads + head) * WIDTH + dims
    tl.store(at, tl.where(exists, result / total, 0.0).to(out.dtype.element_ty), dims < WIDTH)
