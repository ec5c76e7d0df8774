"""Tests of the Triton kernels of attention in Triton's interpreter. Letters in shapes: R rows, n tokens of each row."""

import numpy as np
import pytest
import torch

from adt_core.kernels import attend
from adt_core.kernels.attend_trial import RandomTree, join
from adt_core.models.rows import BatchRows
from tests.reading import roots_at
from tests.unit.kernels.references import float64_kernel

pytest.importorskip("triton", reason="Triton is not installed")

HEADS = [(2, 2, 64), (4, 2, 80), (2, 1, 128)]
"""Numbers of query heads and key heads, and elements of a head. The second group has a width that is no power of 2."""
TOLERANCES = {torch.float32: 2e-6, torch.float16: 1e-3}
"""Largest absolute difference. Outputs are at most about 1, and float16 rounds them to 2**-11 of their size."""


def parents(nodes):
    """Return the parents of a binary tree whose last nodes form a chain."""
    return [max((node - 1) // 2, -1) if node < nodes // 2 else node - 1 for node in range(nodes)]


@pytest.fixture(autouse=True)
def far_attention(monkeypatch):
    monkeypatch.setattr(attend, "far_attention", float64_kernel)


def check(operands):
    out = attend.kernel(*operands.for_kernel())
    expected = attend.reference(*operands.for_reference())  # computes in float64 and rounds the output
    assert out.dtype == expected.dtype
    tokens = operands.mask.shape[0] * operands.mask.shape[2]
    assert (out[:tokens].double() - expected[:tokens].double()).abs().max() < TOLERANCES[out.dtype]


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("heads, kv_heads, dim", HEADS)
@torch.inference_mode()
def test_values_are_those_of_the_reference(dtype, heads, kv_heads, dim):
    """Prompts of different lengths, a tree of 7 nodes, and padding to a tile."""
    tree = RandomTree(torch.zeros((), dtype=dtype), heads, kv_heads, dim, parents(7), committed=150)
    rows = [tree.operands(range(7), range(7), first, spare=40 - first) for first in (0, 40)]
    check(join(rows, padding=2))


@pytest.mark.long
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("heads, kv_heads, dim", HEADS)
@pytest.mark.parametrize("nodes", [1, 2, 16, 33, 128])
@torch.inference_mode()
def test_values_of_trees_of_all_sizes_are_those_of_the_reference(dtype, heads, kv_heads, dim, nodes):
    tree = [max((node - 1) // 2, -1) for node in range(nodes)]
    tree = RandomTree(torch.zeros((), dtype=dtype), heads, kv_heads, dim, tree, committed=300)
    check(tree.operands(range(nodes), range(nodes), first=5))


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@torch.inference_mode()
def test_the_first_tokens_of_an_image_have_few_near_keys(dtype):
    """All keys of the prompt are far, also those that are less than 32 positions before the token."""
    tree = RandomTree(torch.zeros((), dtype=dtype), 2, 2, 64, parents(3), committed=34)
    operands = tree.operands(range(3), range(3))
    near_keys = operands.near_keys._replace(mask=operands.near_keys.mask.clone())
    near_keys.mask[..., :20] = -torch.inf
    check(operands._replace(near_keys=near_keys))


@pytest.mark.parametrize("nodes, rows", [(1, 2), (25, 1), (25, 2)], ids=["2 of 64", "25 of 64", "50 of 64"])
@torch.inference_mode()
def test_padding_is_neither_read_nor_written(nodes, rows, monkeypatch):
    """Matrices of 64 rows in real rounds: a plain round, a tree without guidance, and a tree with guidance."""
    tree = RandomTree(torch.zeros((), dtype=torch.float16), 1, 1, 64, parents(nodes), committed=150)
    operands = join([tree.operands(range(nodes), range(nodes), first=8)] * rows, padding=64 - rows * nodes)
    operands.queries[rows * nodes :] = torch.nan
    new_empty = torch.Tensor.new_empty
    monkeypatch.setattr(torch.Tensor, "new_empty", lambda *given, **how: new_empty(*given, **how).fill_(9))
    assert attend.kernel(*operands.for_kernel())[rows * nodes :].eq(9).all()
    check(operands)


@torch.inference_mode()
def test_chunks_that_no_token_sees_are_neither_computed_nor_read(monkeypatch):
    """A replayed round reads up to twice the cache positions in use. Here, 2 of 7 chunks have keys of the image."""
    made = []
    new_empty = torch.Tensor.new_empty

    def with_nan(*given, **how):
        y = new_empty(*given, **how)
        made.append(y.fill_(torch.nan) if y.is_floating_point() else y)  # Triton's interpreter also makes integers
        return y

    tree = RandomTree(torch.zeros((), dtype=torch.float16), 2, 1, 64, parents(5), committed=200)
    expected = attend.kernel(*tree.operands(range(5), range(5)).for_kernel())
    monkeypatch.setattr(torch.Tensor, "new_empty", with_nan)
    longer = tree.operands(range(5), range(5), first=attend.CHUNK, spare=500)
    assert attend.kernel(*longer.for_kernel()).equal(expected)
    for part in made[:2]:  # partial results [rows, key heads, chunks, queries, ...]
        assert part.isnan().flatten(3).all(-1)[0, 0].tolist() == [True, False, False, *[True] * 4]


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("heads, kv_heads, dim", HEADS)
@torch.inference_mode()
def test_the_output_of_a_token_is_bitwise_equal_in_all_forward_passes(dtype, heads, kv_heads, dim, monkeypatch):
    """The products of numpy depend on the row on some processors, so a sum in ascending order replaces them."""
    monkeypatch.setattr(np, "matmul", lambda a, b, dtype=None: np.einsum("ik,kj->ij", a, b, dtype=dtype))
    tree = RandomTree(torch.zeros((), dtype=dtype), heads, kv_heads, dim, parents(11), committed=150)
    compared = list(attend.equal_results(tree))
    assert len(compared) == 4
    assert not [description for description, one, other in compared if not one.equal(other)]


@torch.inference_mode()
def test_addresses_in_place_of_tensors_give_the_same_result(monkeypatch):
    """The launcher gets plain addresses with CUDA's asynchronous allocator."""
    tree = RandomTree(torch.zeros((), dtype=torch.float16), 4, 2, 64, parents(7), committed=150)
    operands = tree.operands(range(7), range(7)).for_kernel()
    expected = attend.kernel(*operands)
    monkeypatch.setattr(attend.choice, "pointers", lambda *operands: [operand.data_ptr() for operand in operands])
    assert attend.kernel(*operands).equal(expected)


@torch.inference_mode()
def test_paths_list_near_keys_in_the_order_of_positions():
    """The tree's nodes 0, 1 and 3 form a path; node 2 is another child of the root."""
    tree = RandomTree(torch.zeros(()), 1, 1, 8, [-1, 0, 0, 1], committed=40)
    paths = tree.operands(range(4), range(4)).near_keys.by_path().paths
    assert paths.shape == (1, 4, 33)
    assert paths[0, 0].tolist() == [*range(8, 40), 40]
    assert paths[0, 2].tolist() == [*range(9, 40), 40, 42]
    assert paths[0, 3].tolist() == [*range(10, 40), 40, 41, 43]


@torch.inference_mode()
def test_bounds_of_far_keys_describe_the_mask():
    """The kernel reads two bounds of each token instead of the mask. Rows have prompts of different lengths."""
    rows = BatchRows([[1, 2, 3, 4, 5, 6, 7], [8, 9]], 24, torch.zeros(()))
    for at, tokens in ((0, 1), (2, 4), (9, 3)):
        step = rows.causal_metadata(roots_at(at, at), tokens)
        step = rows.split_near_keys(step, rows.cache_offset + at, 3)
        first, until = step.near_keys.far.unbind(-1)
        columns = torch.arange(step.end)
        visible = (columns >= first[..., None]) & (columns < until[..., None])
        assert visible.equal(step.mask[:, 0] == 0)


@torch.inference_mode()
def test_queries_may_be_a_view_of_queries_keys_and_values():
    """The reference of `norm_rope_store` returns such a view, so this happens if only one of both kernels is used."""
    tree = RandomTree(torch.zeros((), dtype=torch.float16), 4, 2, 64, parents(3), committed=150)
    operands = tree.operands(range(3), range(3)).for_kernel()
    qkv = torch.full((3, 8, 64), 9.0, dtype=torch.float16)
    qkv[:, :4] = operands.queries
    assert attend.kernel(qkv[:, :4], *operands[1:]).equal(attend.kernel(*operands))
