"""Tests of the Triton kernels of products, in Triton's interpreter.

They are compared with products in float64, rounded to the dtype of the activations. The tolerances are relative to the
largest result: 1e-6 in float32, whose sums are rounded at each step, and 1e-3 in float16, one rounding of the result.
"""

import pytest
import torch

from adt_core.kernels import linear
from adt_core.kernels.trials import random_like
from adt_core.models import quantised

pytest.importorskip("triton", reason="Triton is not installed")

TOLERANCES = {torch.float32: 1e-6, torch.float16: 1e-3}
SIZES = [(1, 64, 32), (2, 100, 70), (33, 200, 130), (128, 192, 40)]
"""Rows, inputs and outputs."""
KINDS = ["", "int8", "fp8", "int4"]


def stored(like, inputs, outputs, kind):
    """Return a weight in the format `kind`, and its scale."""
    weight = random_like(like, inputs, outputs, seed=1)
    if not kind:
        return weight, None
    matrix, scale = quantised.empty(weight, kind, torch.float32)
    quantised.store(matrix, scale, weight)
    return matrix, scale


@pytest.fixture(params=TOLERANCES, ids=str)
def like(request):
    return torch.zeros((), dtype=request.param)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows, inputs, outputs", SIZES)
@torch.inference_mode()
def test_values(like, kind, rows, inputs, outputs):
    weight, scale = stored(like, inputs, outputs, kind)
    x = random_like(like, rows, inputs)
    plus = random_like(like, rows, outputs, seed=2)
    for added in (None, plus):
        expected = linear.reference(x, weight, scale, added)
        y = linear.kernel(x, weight, scale, added)
        assert y.dtype == x.dtype and (added is None or y is added)
        limit = TOLERANCES[x.dtype] * float(expected.abs().max())
        assert (y.double() - expected.double()).abs().max() < limit


@torch.inference_mode()
def test_activations_may_be_part_of_a_wider_matrix(like):
    weight, _ = stored(like, 64, 32, "")
    x = random_like(like, 3, 128)[:, 64:]
    assert linear.kernel(x, weight).equal(linear.kernel(x.contiguous(), weight))


@pytest.mark.parametrize("used", [2, 25, 50])
@pytest.mark.parametrize("kind", KINDS)
@torch.inference_mode()
def test_padding_is_neither_read_nor_written(like, kind, used):
    """Products of real rounds: a plain step, a tree without guidance, and a tree with guidance."""
    weight, scale = stored(like, 128, 64, kind)
    x = random_like(like, 64, 128)
    x[used:] = torch.nan
    expected = linear.kernel(x[:used].contiguous(), weight, scale)
    assert linear.kernel(x, weight, scale, None, used)[:used].equal(expected)
    plus = random_like(like, 64, 64)
    expected = linear.kernel(x[:used].contiguous(), weight, scale, plus[:used].clone())
    sums = linear.kernel(x, weight, scale, plus.clone(), used)
    assert sums[:used].equal(expected) and sums[used:].equal(plus[used:])


@torch.inference_mode()
def test_there_are_no_programs_for_padding(monkeypatch):
    """Otherwise three of four programs of a plain round would only use resources."""
    from triton.runtime.interpreter import GridExecutor

    grids = []
    monkeypatch.setattr(GridExecutor, "__call__", lambda self, *args, **options: grids.append(self.grid))
    x = torch.zeros(64, 128, dtype=torch.float16)
    for used in (2, 25, 50):
        linear.kernel(x, torch.zeros(128, 64, dtype=torch.float16), None, None, used)
    assert grids == [(1, 2), (1, 2), (1, 2)]


@pytest.mark.parametrize("kind", KINDS)
@torch.inference_mode()
def test_blocks_of_inputs_are_added_in_order(kind, monkeypatch):
    """The first and the last block cancel each other, and are far larger than the block between them.

    So a float32 sum in ascending order loses the bits of the middle block in all rows, for each number of rows.
    """
    like = torch.zeros(())
    inputs = 192
    weight, scale = stored(like, inputs, 32, kind)
    size = 64 if kind == "int4" else 32
    first = random_like(like, 1, size).round()
    weight[-size // 2 if kind == "int4" else -size :] = weight[: size // 2 if kind == "int4" else size]
    if kind == "int4":
        scale[:, -1] = scale[:, 0]
    x = torch.zeros(128, inputs)
    x[:, :size] = first * 2**20
    x[:, size : 2 * size] = random_like(like, 128, size, seed=3).round()  # exact sums in a group of int4
    x[:, -size:] = -first * 2**20
    expected = linear.kernel(x, weight, scale)
    exact = linear.reference(x, weight, scale)
    assert not torch.allclose(expected, exact, rtol=0, atol=1e-3), "the order of the sum must matter in this test"
    for rows in linear.TESTED_ROWS:
        assert linear.kernel(x[:rows], weight, scale).equal(expected[:rows]), rows


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("stored_dtype", [None, *linear.STORED], ids=str)
@pytest.mark.parametrize("outputs", [512, 4096, 22016])
def test_the_number_of_rows_does_not_change_the_inputs_of_a_block(dtype, stored_dtype, outputs):
    for gpu in (linear.Gpu.of(128, 8), linear.Gpu.of(132, 9), linear.Gpu.of(40, 7)):
        blocks = [
            linear.Blocks.of(rows, outputs, dtype, stored_dtype or dtype, gpu) for rows in (1, 16, 17, 64, 65, 999)
        ]
        assert len({block.inputs for block in blocks}) == 1
        larger = [min(size, gpu.block_rows[-1]) for size in (64, 128, 128)]
        assert [block.rows for block in blocks] == [16, 16, 32, *larger]
        assert all(block.stages >= (1 if dtype == torch.float32 else 2) for block in blocks)


@torch.inference_mode()
def test_other_dtypes_have_no_kernel(monkeypatch):
    monkeypatch.setattr(linear, "is_candidate", lambda *_: True)
    monkeypatch.setattr(linear.choice, "uses_kernel", lambda *_: True)
    x = torch.zeros(2, 8, dtype=torch.float16)
    weight = torch.zeros(8, 8, dtype=torch.float16)
    assert linear.uses_kernel(x, weight, None, None, None)
    assert not linear.uses_kernel(x, weight.float(), None, None, None)
    assert not linear.uses_kernel(torch.zeros(8, 2, dtype=torch.float16).t(), weight, None, None, None)
    assert not linear.uses_kernel(x, weight, None, torch.zeros(8, 2, dtype=torch.float16).t(), None)
