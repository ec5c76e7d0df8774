"""Tests of the storage of int4 weights: the layout of bits, the error of a round trip, and products."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from adt_core.models import int4
from adt_core.models.layers import product
from adt_core.models.quantised import store


@st.composite
def matrices(draw):
    """Return a random matrix [in, out]. Its columns have different sizes and offsets, and may be constant."""
    inputs = draw(st.sampled_from([1, 31, 64, 65, 130]))
    outputs = draw(st.integers(1, 5))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 999)))
    spread = torch.tensor(draw(st.lists(st.sampled_from([0.0, 1e-30, 0.02, 1e4]), min_size=outputs, max_size=outputs)))
    offset = torch.tensor(draw(st.lists(st.sampled_from([0.0, -0.1, 3e4]), min_size=outputs, max_size=outputs)))
    return torch.randn(inputs, outputs, generator=generator) * spread + offset


def stored(value):
    packed, scale = int4.empty(*value.shape, value.device)
    store(packed, scale, value)
    return packed, scale


def unpack_one_by_one(packed, scale, inputs):
    """Return the weights [inputs, out] by the definition in the docstring of `int4`."""
    weights = torch.empty(inputs, packed.shape[1])
    for i in range(inputs):
        g = i // 64
        within = i % 64
        for o in range(packed.shape[1]):
            byte = int(packed[32 * g + within % 32, o])
            level = byte % 16 if within < 32 else byte // 16
            weights[i, o] = (level - scale[1, g, o].float()) * scale[0, g, o].float()
    return weights


@given(matrices())
def test_bits_are_stored_as_defined(value):
    packed, scale = stored(value)
    groups = -(-len(value) // 64)
    assert packed.shape == (32 * groups, value.shape[1]) and packed.t().is_contiguous()
    assert scale.shape == (2, groups, value.shape[1]) and scale.is_contiguous()
    assert (scale[1] == scale[1].round()).all() and scale[1].min() >= 0 and scale[1].max() <= 15
    weights = int4.unpack(packed, scale, torch.float32)
    assert weights[: len(value)].equal(unpack_one_by_one(packed, scale, len(value)))
    assert (weights[len(value) :] == 0).all()


@given(matrices())
def test_an_error_is_at_most_half_a_step_of_symmetric_levels(value):
    """The squared error of a group must not exceed the squared error of symmetric levels."""
    packed, scale = stored(value)
    error = int4.unpack(packed, scale, torch.float32)[: len(value)] - value
    for rows, wrong in zip(value.split(64), error.split(64)):
        largest = rows.abs().amax(0)
        bound = (0.51 * largest / 7.5) ** 2 * len(rows)  # 0.51: the step is rounded to bfloat16
        assert (wrong.square().sum(0) <= bound + 1e-70).all()


def test_a_zero_point_is_used_where_it_is_better():
    """Weights from 1 to 2 need no negative levels. Weights from -1 to 1 do."""
    rising = torch.linspace(0, 1, 64)
    _, scale = stored(torch.stack([1 + rising, 2 * rising - 1], 1))
    assert scale[1, 0].tolist() == [0, 8]


def test_stored_weights_are_stored_without_error():
    """Weights that int4 represents exactly must not change, whether the levels are symmetric or not."""
    levels = torch.arange(64) % 16
    value = torch.stack([(levels - zero) * 0.25 for zero in (0.0, 3.0, 7.0, 12.0, 15.0)], 1)
    assert int4.unpack(*stored(value), torch.float32).equal(value)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("inputs", [64, 100])
@pytest.mark.parametrize("inference", [True, False], ids=["inference", "training"])
def test_products(dtype, inputs, inference):
    """The error may be 4 times the dtype's epsilon, relative to the largest number of the product."""
    generator = torch.Generator().manual_seed(0)
    packed, scale = stored(torch.randn(inputs, 48, generator=generator))
    x = torch.randn(3, inputs, generator=generator).to(dtype)
    plus = torch.randn(3, 48, generator=generator).to(dtype)
    expected = x.double() @ int4.unpack(packed, scale, torch.float64)[:inputs] + plus.double()
    with torch.inference_mode(inference):
        found = product(x, packed, scale, plus.clone())
    assert found.dtype == dtype
    assert (found.double() - expected).abs().max() <= 4 * torch.finfo(dtype).eps * expected.abs().max()


def test_the_layout_of_the_value_does_not_change_the_result():
    value = torch.randn(130, 9, generator=torch.Generator().manual_seed(1))
    for one, other in zip(stored(value), stored(value.t().contiguous().t())):
        assert one.equal(other)
