"""Half precision, which GPUs use: every way of drafting ends, with one image and with several that come and go."""

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
    """The first tokens are those of plain decoding. Later a near tie may fall differently, and the image is another."""
    target, drafters = half
    source, options = METHODS[name]
    codes = run(target, drafters[source], prompts, drafting=Drafting(**options), at_once=at_once).codes
    expected = run(target, prompts=prompts).codes
    assert (codes >= 0).all() and (codes < target.num_codes).all()
    assert codes[:, :2].equal(expected[:, :2])
    assert (codes == expected).float().mean() > 0.5
