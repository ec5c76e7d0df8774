"""Tests of the Triton kernels that compute norms, rotations and activations, in Triton's interpreter.

The kernels round once, after their last operation. They are compared with references in float64. Inputs and outputs are
about 1 in size, so a tolerance of 4e-3 in float16 is one rounding of a value below 8.
"""

import pytest
import torch

from adt_core.kernels import gate, norm, norm_rope_store
from adt_core.kernels.norm_rope_store import Projection
from adt_core.kernels.trials import random_like
from adt_core.models.rotary import Rotation

pytest.importorskip("triton", reason="Triton is not installed")

TOLERANCES = {torch.float32: 5e-6, torch.float16: 4e-3}
"""Largest absolute difference between kernel and reference."""
HEADS = [(2, 2, 64), (4, 2, 80), (2, 1, 128)]  # numbers of query heads and key heads, and elements of a head


def check(out, expected):
    assert out.shape == expected.shape
    assert (out.double() - expected).abs().max() < TOLERANCES[out.dtype]


def check_norm_rope_store(qkv, projection, tables, cache, cache_position, used):
    """Compare the queries of the used rows, and all keys and values in the cache."""
    expected_cache = cache.double()
    doubled = Projection(*(None if value is None else value.double() for value in projection))
    rotation = Rotation(*tables.double(), None)
    expected = norm_rope_store.reference(qkv.double(), doubled, rotation, expected_cache, cache_position)
    queries = norm_rope_store.kernel(qkv, projection, Rotation(*tables, None), cache, cache_position)
    check(queries[:used], expected[:used])
    check(cache, expected_cache)


@pytest.fixture(params=TOLERANCES, ids=str)
def like(request):
    return torch.zeros((), dtype=request.param)


@pytest.mark.parametrize("rows, columns", [(1, 64), (7, 300), (128, 96)])
@torch.inference_mode()
def test_norm(like, rows, columns):
    x = random_like(like, rows, columns)
    weight = random_like(like, columns, seed=1)
    plus = random_like(like, rows, columns, seed=2)
    check(norm.kernel(x, weight, 1e-5), norm.reference(x.double(), weight.double(), 1e-5))
    expected = norm.reference(x.double(), weight.double(), 1e-5, plus.double())
    assert norm.kernel(x, weight, 1e-5, plus) is plus
    check(plus, expected)


@pytest.mark.parametrize("activation", ["silu", "gelu_pytorch_tanh"])
@pytest.mark.parametrize("rows, columns", [(1, 64), (7, 1300), (128, 96)])
@torch.inference_mode()
def test_gate(like, activation, rows, columns):
    gate_up = random_like(like, rows, 2 * columns)
    check(gate.kernel(gate_up, activation), gate.reference(gate_up.double(), activation))


@pytest.mark.parametrize("used", [2, 25, 50])
@torch.inference_mode()
def test_padding_is_neither_read_nor_written(like, used):
    """Matrices of 64 rows in real rounds: a plain round, a tree without guidance, and a tree with guidance."""
    x = random_like(like, 64, 96)
    weight = random_like(like, 96, seed=1)
    plus = random_like(like, 64, 96, seed=2)
    x[used:] = torch.nan
    assert norm.kernel(x, weight, 1e-5, None, used)[:used].equal(norm.kernel(x[:used], weight, 1e-5))
    sums = norm.kernel(x, weight, 1e-5, plus.clone(), used)
    assert sums[:used].equal(norm.kernel(x[:used], weight, 1e-5, plus[:used].clone()))
    assert sums[used:].equal(plus[used:])
    assert gate.kernel(x, "silu", used)[:used].equal(gate.kernel(x[:used], "silu"))


@pytest.mark.parametrize("ragged", [True, False], ids=["positions of each row", "slice"])
@pytest.mark.parametrize("has_parameters", [True, False], ids=["bias and norm", "only rotation"])
@pytest.mark.parametrize("heads, kv_heads, dim", HEADS)
@torch.inference_mode()
def test_norm_rope_store(like, heads, kv_heads, dim, has_parameters, ragged):
    """Two rows of 3 tokens, and 2 rows of padding that are not written to the cache."""
    qkv = random_like(like, 8, heads + 2 * kv_heads, dim)
    norms = random_like(like, 2, heads + kv_heads, dim, seed=1)
    projection = Projection(random_like(like, qkv[0].numel(), seed=2), *norms)
    if not has_parameters:
        projection = Projection(None, None, None)
    cache_position = torch.tensor([[4, 5, 7], [9, 2, 3]]) if ragged else slice(3, 6)
    cache = random_like(like, 2, 2, kv_heads, 16, dim, seed=4)
    check_norm_rope_store(qkv, projection, random_like(like, 2, 8, 1, dim, seed=3), cache, cache_position, 6)


@pytest.mark.parametrize("rows, tokens", [(2, 1), (1, 25), (2, 25)], ids=["2 of 64", "25 of 64", "50 of 64"])
@pytest.mark.parametrize("ragged", [True, False], ids=["positions of each row", "slice"])
@pytest.mark.parametrize("has_bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("has_norm", [True, False], ids=["norm", "no norm"])
@torch.inference_mode()
def test_norm_rope_store_with_the_padding_of_rounds(rows, tokens, ragged, has_bias, has_norm):
    """The values of padding are NaN. A slice of cache positions belongs to a prompt or to rows of equal length."""
    like = torch.zeros((), dtype=torch.float16)
    used = rows * tokens
    qkv = random_like(like, 64, 3, 64)
    qkv[used:] = torch.nan
    norms = random_like(like, 2, 2, 64, seed=1) if has_norm else (None, None)
    projection = Projection(random_like(like, 192, seed=2) if has_bias else None, *norms)
    tables = random_like(like, 2, 64, 1, 64, seed=3) / 4  # so that results stay below 8
    positions = torch.randperm(60, generator=torch.Generator().manual_seed(0))[:used].view(rows, tokens)
    cache_position = positions if ragged else slice(3, 3 + tokens)
    cache = random_like(like, 2, rows, 1, 60, 64, seed=4)
    check_norm_rope_store(qkv, projection, tables, cache, cache_position, used)


@torch.inference_mode()
def test_a_row_is_bitwise_equal_whatever_the_number_of_rows(like):
    x = random_like(like, 128, 96)
    weight = random_like(like, 96)
    assert norm.kernel(x[5:6], weight, 1e-5).equal(norm.kernel(x, weight, 1e-5)[5:6])
    assert gate.kernel(x[5:6], "silu").equal(gate.kernel(x, "silu")[5:6])


@torch.inference_mode()
def test_addresses_in_place_of_tensors_give_the_same_results(like, monkeypatch):
    """The launcher gets plain addresses with CUDA's asynchronous allocator."""
    x = random_like(like, 5, 64)
    plus = random_like(like, 5, 64, seed=1)
    qkv = random_like(like, 5, 4, 32)
    rotation = Rotation(random_like(like, 5, 1, 32), random_like(like, 5, 1, 32, seed=1), None)
    projection = Projection(random_like(like, 128), random_like(like, 3, 32), random_like(like, 3, 32, seed=1))

    def results():
        cache = qkv.new_zeros(2, 1, 1, 8, 32)
        queries = norm_rope_store.kernel(qkv, projection, rotation, cache, torch.arange(5)[None])
        return norm.kernel(x, x[0], 1e-5, plus.clone()), gate.kernel(x, "silu"), queries, cache

    expected = results()
    monkeypatch.setattr(norm.choice, "pointers", lambda *operands: [operand.data_ptr() for operand in operands])
    assert all(map(torch.equal, results(), expected))
