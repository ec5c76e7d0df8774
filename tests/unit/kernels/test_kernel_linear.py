"""Tests of the Triton kernels of products, in Triton's interpreter.

They are compared with products in float64, rounded to float16, the dtype of the activations.
"""

import numpy as np
import pytest
import torch

from adt_core.kernels import linear
from adt_core.kernels.trials import random_like
from adt_core.models import quantised

pytest.importorskip("triton", reason="Triton is not installed")

LIKE = torch.zeros((), dtype=torch.float16)
TOLERANCE = 1e-3  # largest difference, relative to the largest result: one rounding of the result
SIZES = [(1, 64, 32), (2, 100, 70), (33, 200, 130), (128, 192, 40)]  # rows, inputs and outputs
KINDS = ["int8", "fp8", "int4"]


def stored(inputs, outputs, kind):
    """Return a weight in the format `kind`, and its scale."""
    weight = random_like(LIKE, inputs, outputs, seed=1)
    matrix, scale = quantised.empty(weight, kind, torch.float32)
    quantised.store(matrix, scale, weight)
    return matrix, scale


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows, inputs, outputs", SIZES)
@torch.inference_mode()
def test_values(kind, rows, inputs, outputs):
    weight, scale = stored(inputs, outputs, kind)
    x = random_like(LIKE, rows, inputs)
    plus = random_like(LIKE, rows, outputs, seed=2)
    for added in (None, plus):
        expected = linear.reference(x, weight, scale, added)
        y = linear.kernel(x, weight, scale, added)
        assert y.dtype == x.dtype and (added is None or y is added)
        limit = TOLERANCE * float(expected.abs().max())
        assert (y.double() - expected.double()).abs().max() < limit


@pytest.mark.parametrize("kind", KINDS)
@torch.inference_mode()
def test_activations_may_be_part_of_a_wider_matrix(kind):
    weight, scale = stored(64, 32, kind)
    x = random_like(LIKE, 3, 128)[:, 64:]
    assert linear.kernel(x, weight, scale).equal(linear.kernel(x.contiguous(), weight, scale))


@pytest.mark.parametrize("kind", KINDS)
@torch.inference_mode()
def test_addresses_in_place_of_tensors_give_the_same_result(kind, monkeypatch):
    """The launcher gets plain addresses with CUDA's asynchronous allocator."""
    weight, scale = stored(128, 64, kind)
    x = random_like(LIKE, 25, 128)
    plus = random_like(LIKE, 25, 64, seed=2)
    expected = linear.kernel(x, weight, scale, plus.clone())
    monkeypatch.setattr(linear.choice, "pointers", lambda *operands: [operand.data_ptr() for operand in operands])
    assert linear.kernel(x, weight, scale, plus.clone()).equal(expected)


@pytest.mark.parametrize("used", [2, 25, 50])
@pytest.mark.parametrize("kind", KINDS)
@torch.inference_mode()
def test_padding_is_neither_read_nor_written(kind, used):
    """Products of real rounds: a plain round, a tree without guidance, and a tree with guidance."""
    weight, scale = stored(128, 64, kind)
    x = random_like(LIKE, 64, 128)
    x[used:] = torch.nan
    expected = linear.kernel(x[:used].contiguous(), weight, scale)
    assert linear.kernel(x, weight, scale, None, used)[:used].equal(expected)
    plus = random_like(LIKE, 64, 64)
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
        linear.kernel(x, *stored(128, 64, "int8"), None, used)
    assert grids == [(1, 2), (1, 2), (1, 2)]


@pytest.mark.parametrize("kind", KINDS)
@torch.inference_mode()
def test_blocks_of_inputs_are_added_in_order(kind, monkeypatch):
    """The first and the last block cancel each other, and are far larger than the block between them.

    So a float32 sum in ascending order loses the bits of the middle block in all rows, for each number of rows. The
    products of numpy depend on the row on some processors, so a sum in ascending order replaces them.
    """
    monkeypatch.setattr(np, "matmul", lambda a, b, dtype=None: np.einsum("ik,kj->ij", a, b, dtype=dtype))
    inputs = 384
    weight, scale = stored(inputs, 32, kind)
    size = 64 if kind == "int4" else linear.BLOCK_INPUTS
    first = random_like(LIKE, 1, size).round()
    weight[-size // 2 if kind == "int4" else -size :] = weight[: size // 2 if kind == "int4" else size]
    if kind == "int4":
        scale[:, -1] = scale[:, 0]
    x = torch.zeros(128, inputs, dtype=torch.float16)
    x[:, :size] = first * 2**10
    x[:, size : 2 * size] = random_like(LIKE, 128, size, seed=3).round() / 2**10  # exact sums in a group of int4
    x[:, -size:] = -first * 2**10
    expected = linear.kernel(x, weight, scale)
    exact = linear.reference(x, weight, scale)
    assert not torch.allclose(expected, exact, rtol=1e-2, atol=0), "the order of the sum must matter in this test"
    for rows in linear.TESTED_ROWS:
        assert linear.kernel(x[:rows], weight, scale).equal(expected[:rows]), rows


@pytest.mark.parametrize("dtype", linear.TOLERANCE, ids=str)
@pytest.mark.parametrize("stored_dtype", linear.STORED, ids=str)
@pytest.mark.parametrize("outputs", [512, 4096, 22016])
def test_the_number_of_rows_does_not_change_the_inputs_of_a_block(dtype, stored_dtype, outputs):
    for multiprocessors, capability in ((128, (8, 9)), (108, (8, 0)), (132, (9, 0)), (40, (7, 5))):
        gpu = linear.Gpu.of(multiprocessors, capability)
        blocks = [linear.Blocks.of(rows, outputs, dtype, stored_dtype, gpu) for rows in (1, 16, 17, 64, 65, 999)]
        assert len({block.inputs for block in blocks}) == 1
        larger = [min(size, gpu.block_rows[-1]) for size in (64, 128, 128)]
        assert [block.rows for block in blocks] == [16, 16, 32, *larger]
        assert all(block.stages >= 2 for block in blocks)


@pytest.mark.parametrize("capability, stages", [((8, 0), 4), ((8, 6), 3), ((8, 9), 3), ((12, 0), 3)])
def test_two_programs_of_64_rows_share_a_multiprocessor(capability, stages):
    """A stage of 64 x 64 results with int8 weights has 24 KB. test_kernel_compilation.py checks the compiled sizes."""
    blocks = linear.Blocks.of(64, 22016, torch.bfloat16, torch.int8, linear.Gpu.of(80, capability))
    assert blocks.outputs == 64 and blocks.stages == stages


@torch.inference_mode()
def test_other_dtypes_have_no_kernel(monkeypatch):
    """A measured time must not decide whether PyTorch multiplies by a weight that is not quantised."""
    monkeypatch.setattr(linear, "is_candidate", lambda *_: True)
    monkeypatch.setattr(linear.choice, "uses_kernel", lambda *_: True)
    x = torch.zeros(2, 8, dtype=torch.float16)
    weight, scale = stored(8, 8, "int8")
    assert linear.uses_kernel(x, weight, scale, None, None)
    assert not linear.uses_kernel(x.float(), weight, scale, None, None)
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        assert not linear.uses_kernel(x, weight.to(dtype), scale, None, None)
    assert not linear.uses_kernel(torch.zeros(8, 2, dtype=torch.float16).t(), weight, scale, None, None)
    assert not linear.uses_kernel(x, weight, scale, torch.zeros(8, 2, dtype=torch.float16).t(), None)
