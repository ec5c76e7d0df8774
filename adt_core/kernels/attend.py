"""Attention of a forward pass over a layer's KV cache.

In batch-invariant mode, the output of a token is bitwise equal in every forward pass (:mod:`..models.batch_invariance`
defines the mode, and near and far keys). The reference adds near keys in float64 for this. The kernel needs no float64:

- Far keys are added in chunks of :data:`CHUNK` cache positions. A program computes one chunk, and a second kernel adds
  the chunks in the order of their cache positions. For each token, it reads only the chunks from the first to the last
  far key that the token sees.
- Near keys are read in the order of the token's path, whatever their cache positions are.

Letters in shapes: R rows of the batch, n tokens of each row, N = R * n tokens in total, d elements of an attention
head, g query heads that share a key head, `end` cache positions that the forward reads, w near keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from ..models.batch_invariance import NearKeys, near_attention
from ..models.torch_private import attention, far_attention
from . import choice
from .attend_trial import Operands, RandomTree, join
from .trials import MIN_SPEEDUP, ROUNDS, RoundRows, has_small_shared_memory, is_candidate, tolerance

CHUNK = 128
"""Cache positions of a chunk. In replayed rounds, prompts are padded to a multiple of this number. If another prompt of
the batch is longer, an image's keys move by a number of complete chunks, so each chunk contains the same keys."""
MEDIUM_CHUNK = 64
"""Cache positions of a chunk on GPUs of compute capability 8.6, 8.9, and from 12.0 on. Their multiprocessors have about
100 KB of shared memory. A program of :data:`CHUNK` positions and heads of 128 elements needs 80 KB, and a program of 64
positions 48 KB, so two of them run at a time."""
SMALL_CHUNK = 32
"""Cache positions of a chunk on GPUs before compute capability 8.0. Their programs have 64 KB of shared memory."""
QUERIES = 16
"""Queries that a program multiplies at a time: the least that a matrix instruction of a GPU needs. One number for all
forward passes, because the order of sums depends on it."""
NEAR_BLOCK = 64
"""Maximum number of near keys of a token. A program of the merge reads all of them at once."""
MERGED_CHUNKS = 8
"""Chunks that a program of the merge reads at a time. It adds them one by one."""
WARPS = {CHUNK: 8, MEDIUM_CHUNK: 4, SMALL_CHUNK: 8}
"""Warps of a program that computes a chunk, by its number of cache positions."""
MERGE_WARPS = 4
"""Warps of a program of the merge. With 8, the compiler uses fewer registers, and reads the near keys in four steps."""


def attend(queries: Tensor, cache: Tensor, mask: Tensor, near_keys: NearKeys | None) -> Tensor:
    """Compute attention over the keys and values in a layer's cache.

    Args:
        queries: [at least N, heads, d] queries of row 0, of row 1 and so on, then padding.
        cache: [2, R, key heads, cache_length, d] keys and values of the layer.
        mask: Mask that is added to the scores. With `near_keys`, it covers only the far keys. Its shape is
            [R, 1, g * n, end] for the reference. The kernel reads only its shape, [R, 1, n, end].
        near_keys: Near keys of batch-invariant mode, prepared by :meth:`NearKeys.by_path` for the kernel, and by
            :meth:`NearKeys.for_layers` for the reference; else None.

    Returns:
        [at least N, heads * d] attention output in the dtype of `queries`; undefined for padding.
    """
    if near_keys is not None and near_keys.paths is not None:
        return kernel(queries, cache, mask, near_keys)
    return reference(queries, cache, mask, near_keys)


def reference(queries: Tensor, cache: Tensor, mask: Tensor, near_keys: NearKeys | None) -> Tensor:
    """Compute :func:`attend` with torch."""
    _, rows, kv_heads, _, dim = cache.shape
    heads = queries.shape[1]
    n = mask.shape[-2] * kv_heads // heads
    token, head, element = queries.stride()
    q = queries.as_strided((rows, heads, n, dim), (n * token, head, token, element))  # one view instead of three
    # torch's fast kernels do not support grouped-query attention with a mask. So the queries of all heads that
    # share a key head are placed in one head: [R, 8 heads, n, d] with 2 kv heads -> [R, 2, 4 * n, d].
    if heads > kv_heads:
        q = q.reshape(rows, kv_heads, -1, dim)
    y = _attention(q, cache, mask, near_keys)
    if heads > kv_heads:
        y = y.unflatten(2, (-1, n)).permute(0, 3, 1, 2, 4)  # [R, n, kv heads, group, d]
    else:
        y = y.transpose(1, 2)
    if len(queries) == rows * n and y.dtype == queries.dtype:
        return y.reshape(rows * n, -1)
    out = queries.new_zeros(len(queries), heads * dim)
    out[: rows * n].view(y.shape).copy_(y)  # changes dtype and layout in one kernel launch
    return out


def _attention(q: Tensor, cache: Tensor, mask: Tensor, near_keys: NearKeys | None) -> Tensor:
    """Compute attention with queries [R, key heads, g * n, d] that are already grouped by key heads.

    Returns:
        [R, key heads, g * n, d] in the dtype of `q`; float64 if `near_keys` is given.
    """
    keys, values = cache[:, :, :, : mask.shape[-1]].unbind()
    if near_keys is None:
        return attention(q, keys, values, mask)
    far = None if near_keys.columns is None else far_attention(q, keys, values, mask)
    return near_attention(q, near_keys.take(cache, mask.shape[-1]), near_keys.mask, far)


def kernel(queries: Tensor, cache: Tensor, mask: Tensor, near_keys: NearKeys) -> Tensor:
    """Compute :func:`attend` with two Triton kernels."""
    from triton import cdiv, next_power_of_2

    from .attend_triton import far_chunks, merge

    assert near_keys.paths is not None and near_keys.far is not None
    queries = queries.contiguous()  # the reference of `norm_rope_store` returns a view of queries, keys and values
    _, rows, kv_heads, _, dim = cache.shape
    heads = queries.shape[1]
    group = heads // kv_heads
    n, end = mask.shape[2:]
    chunk = chunk_size(queries.device)
    chunks = cdiv(end, chunk)
    peaks = queries.new_empty(rows, kv_heads, chunks, n * group, 2, dtype=torch.float32)
    sums = queries.new_empty(rows, kv_heads, chunks, n * group, dim, dtype=torch.float32)
    out = queries.new_empty(len(queries), heads * dim)
    slots = near_keys.paths.shape[2]
    bounds = choice.aligned(near_keys.far)
    paths = choice.aligned(near_keys.paths)
    assert slots <= NEAR_BLOCK, slots
    value_offset, row_stride, head_stride = cache.stride()[:3]
    places = row_stride, head_stride, value_offset, dim**-0.5
    sizes = {"DTYPE": choice.triton_dtype(queries.dtype), "GROUP": group, "WIDTH": dim, "PADDED": next_power_of_2(dim)}
    choice.launch(
        far_chunks, (chunks, kv_heads, rows), (queries, cache, bounds, sums, peaks), n, *places,
        **sizes, CHUNK=chunk, BLOCK=QUERIES, num_warps=WARPS[chunk], num_stages=2,
    )  # fmt: skip
    choice.launch(
        merge, (rows * n, heads), (queries, cache, bounds, paths, sums, peaks, out), n, chunks, end, slots, *places,
        **sizes, CHUNK=chunk, BLOCK=NEAR_BLOCK, CHUNKS=MERGED_CHUNKS, num_warps=MERGE_WARPS,
    )  # fmt: skip
    return out


def chunk_size(device: torch.device) -> int:
    """Return the number of cache positions of a chunk on a device. It determines the order of sums."""
    return chunk_for(torch.cuda.get_device_capability(device)) if device.type == "cuda" else CHUNK


def chunk_for(capability: tuple[int, int]) -> int:
    """Return the number of cache positions of a chunk for a compute capability."""
    if capability < (8, 0):
        return SMALL_CHUNK
    return MEDIUM_CHUNK if has_small_shared_memory(capability) else CHUNK


def uses_kernel(x: Tensor, heads: int, kv_heads: int, dim: int) -> bool:
    """Return whether a model with the dtype and device of x uses the kernel in forward passes with near and far keys.

    Other forward passes always use the reference.
    """
    shape = heads, kv_heads, dim
    return is_candidate(x) and choice.uses_kernel("attend", x, shape, partial(_trial, x, *shape))


def _trial(x: Tensor, heads: int, kv_heads: int, dim: int) -> choice.Trial:
    """Return the trial: rounds of two rows with a binary tree."""
    parents = [max((node - 1) // 2, -1) for node in range(ROUNDS[-1].used // 2)]
    tree = RandomTree(x, heads, kv_heads, dim, parents, committed=800)

    def case(size: RoundRows) -> choice.Case:
        nodes = range(size.used // 2)
        operands = join([tree.operands(nodes, nodes)] * 2, size.total - size.used)
        for_kernel = operands.for_kernel()
        for_reference = operands.for_reference()
        return choice.Case(
            lambda: kernel(*for_kernel)[: size.used], lambda: reference(*for_reference)[: size.used], size.weight
        )

    return choice.Trial([case(size) for size in ROUNDS], tolerance(x.dtype), partial(equal_results, tree), MIN_SPEEDUP)


def equal_results(tree: RandomTree) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield pairs of results of the kernel that must be bitwise equal.

    Args:
        tree: Tree whose last node is computed in several forward passes.

    Yields:
        Description of the difference between two forward passes, and the results of the node in both. In the first
        one, the node is the only token.
    """
    node = len(tree.parents) - 1
    path = tree.path(node)
    everything = range(node + 1)

    def result(row: int, *rows: Operands, padding: int = 0) -> Tensor:
        return kernel(*join(rows, padding).for_kernel())[row]

    alone = tree.operands(path, [node])
    expected = result(0, alone)
    yield f"1 and {node + 1} tokens", expected, result(node, tree.operands(everything, everything))
    yield "1 and 2 rows", expected, result(1, tree.operands(path, [node]), alone, padding=5)
    yield "two lengths of prompts", expected, result(0, tree.operands(path, [node], first=CHUNK))
    yield "two numbers of cache positions", expected, result(0, tree.operands(path, [node], spare=3 * CHUNK + 1))
