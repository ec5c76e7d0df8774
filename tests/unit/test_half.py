"""Half precision, in which models are used on GPUs: every way of drafting, one image and several that come and go,
finds its way to the end."""

import pytest
import torch

from adt_core import Drafting, load_drafter, load_target
from adt_core.app.benchmark import sources
from tests.drafted import METHODS, run


@pytest.fixture(scope="module", params=[torch.bfloat16, torch.float16], ids=str)
def half(request, tiny):
    target = load_target(tiny / "target", dtype=request.param)
    return target, sources(load_drafter(tiny / "drafter", target))


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize(
    "prompts, at_once", [(("a cat",), None), (("a cat", "three small dogs", "fog"), 2)], ids=["one", "several"]
)
def test_every_method(half, name, prompts, at_once):
    """Near ties may fall differently than in plain decoding, and an image that has left it is another one; the first
    tokens are the same."""
    target, drafters = half
    source, options = METHODS[name]
    codes = run(target, drafters[source], prompts, drafting=Drafting(**options), at_once=at_once).codes
    expected = run(target, prompts=prompts).codes
    assert (codes >= 0).all() and (codes < target.num_codes).all()
    assert codes[:, :2].equal(expected[:, :2])
    assert (codes == expected).float().mean() > 0.5
