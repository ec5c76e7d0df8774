"""Tests of NaN, infinity and overflow.

Such values in the transformer or the codec must raise an error. Such values in the drafter must not change the image.
"""

import pytest
import torch

from adt_core import load_drafter, load_target
from adt_core.engine.request import Request
from adt_core.lab.benchmark import drafters_by_name
from tests.drafted import METHODS, Drafting, run
from tests.raising import raises_key
from tests.tape import Tape

DRAFTED = {
    "plain": (None, {"method": "no-drafting"}),
    **{name: METHODS[name] for name in ("adt-tree", "jacobi", "merged")},
}


@pytest.fixture
def loaded(tiny):
    """Return a function (dtype) -> target in this dtype, and a dict of its drafters."""

    def load(dtype):
        target = load_target(tiny / "target", dtype=dtype)
        return target, drafters_by_name(load_drafter(tiny / "drafter", target))

    return load


def decode(target, drafters, name):
    source, options = DRAFTED[name]
    return run(target, source and drafters[source], drafting=Drafting(**options))


@pytest.mark.parametrize("name", DRAFTED)
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_one_weight_that_is_not_finite_raises_an_error(loaded, name, value):
    target, drafters = loaded(torch.float64)
    target.decoder.layers[-1].down.data[3, 5] = value
    with raises_key("dtype.not_finite", dtype="float64", model="target"):
        decode(target, drafters, name)


@pytest.mark.parametrize("name", DRAFTED)
def test_an_overflow_in_float16_names_dtypes_with_a_larger_range(loaded, name):
    target, drafters = loaded(torch.float16)
    target.decoder.layers[0].down.data *= 3e4
    with raises_key("dtype.overflow", dtype="float16"):
        decode(target, drafters, name)


def test_a_replayed_round_raises_the_error_too(runtime, loaded, monkeypatch):
    """A weight becomes NaN between two images, after rounds have been captured as graphs."""
    target, drafters = loaded(torch.float64)
    tape = Tape()
    monkeypatch.setattr(Request, "replayed", True)
    monkeypatch.setattr("adt_core.engine.queue.make_recorder", lambda device: tape)
    decode(target, drafters, "merged")
    assert tape.captured and not runtime.graph_failures
    target.decoder.layers[-1].down.data[3, 5] = torch.nan
    with raises_key("dtype.not_finite"):
        decode(target, drafters, "merged")
    target.decoder.free_pool()


def test_a_drafter_that_returns_nan_does_not_change_the_image(loaded):
    """The drafts are bad, but the image must equal the image of plain decoding."""
    target, drafters = loaded(torch.float64)
    expected = decode(target, drafters, "plain").codes
    drafters["network"].fc.data[0, 0] = torch.nan
    assert decode(target, drafters, "adt-tree").codes.equal(expected)


@pytest.mark.parametrize("part", ["decoder", "encoder"])
def test_a_codec_that_returns_nan_raises_an_error(loaded, part):
    target, _ = loaded(torch.float64)
    weight = next(value for name, value in target.codec.named_parameters() if name.startswith(part))
    weight.data.view(-1)[0] = torch.nan
    codes = torch.zeros(1, 4, 4, dtype=torch.long)
    with raises_key("codec.not_finite"):
        if part == "decoder":
            target.codec.decode(codes)
        else:
            target.codec.encode(torch.zeros(1, 3, 32, 32))
