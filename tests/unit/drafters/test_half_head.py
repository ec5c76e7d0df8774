"""Tests of the copy of the output head with which a GPU computes the logits of drafts."""

import gc
from types import SimpleNamespace

import pytest
import torch

from adt_core import Drafting, load_drafter, load_target
from adt_core.drafters import half_head, with_window
from adt_core.engine.device.memory import state_bytes
from adt_core.models.layers import Decoder
from adt_core.policies import PLAIN
from tests.drafted import new_decoding, run
from tests.layouts.families import load_small

GPU = torch.device("cuda")
DRAFTED = Drafting("eagle2", depth=4, width=3, drafts=12)


@pytest.fixture(scope="module")
def halves(tiny):
    target = load_target(tiny / "target", dtype=torch.bfloat16)
    return target, load_drafter(tiny / "drafter", target)


@pytest.fixture
def as_gpu(monkeypatch):
    """Let drafts on the CPU use a copy of the head, as on a GPU."""
    asked = half_head.has_half_head
    monkeypatch.setattr(half_head, "has_half_head", lambda decoder, device: asked(decoder, GPU))


@pytest.mark.parametrize("drafter", [lambda network: network, with_window], ids=["network", "network and window"])
def test_only_drafts_are_computed_with_the_copy(halves, as_gpu, monkeypatch, drafter):
    target, network = halves
    expected = run(target).codes
    logits = Decoder.logits
    dtypes = []

    def noted(decoder, features, guidance=1, head=None):
        dtypes.append(decoder.head.dtype if head is None else head.dtype)
        return logits(decoder, features, guidance, head)

    monkeypatch.setattr(Decoder, "logits", noted)
    decoding = run(target, drafter(network), drafting=DRAFTED)
    assert decoding.codes.equal(expected)
    passes = len(decoding.trace.rounds) + 1  # with the prefill
    assert dtypes.count(torch.float32) == passes and dtypes.count(torch.bfloat16) > passes


@pytest.mark.parametrize("family", ["chameleon", "janus"])
def test_logits_of_the_copy_differ_only_by_rounding(written, family, as_gpu):
    """Janus-Pro's head has a hidden layer and a bias."""
    decoder = load_small(family, written(family), dtype=torch.bfloat16).decoder
    features = torch.randn(2, 3, decoder.config.hidden_size, generator=torch.Generator().manual_seed(0))
    expected = decoder.logits(features, 3.0)
    found = decoder.logits(features, 3.0, half_head.half_head(decoder))
    assert found.shape == expected.shape and found.dtype == expected.dtype
    assert 0 < (found - expected).abs().max() < 0.02 * expected.abs().max()


def test_all_proposers_share_the_copy_and_the_last_one_frees_it(halves, as_gpu, runtime):
    decoder = halves[0].decoder
    copies = [half_head.half_head(decoder) for _ in range(2)]
    assert copies[0] is copies[1] and copies[0].dtype == torch.bfloat16
    copies.clear()
    gc.collect()
    assert runtime.half_heads[decoder]() is None


@pytest.mark.parametrize(
    "device, dtype, size",
    [("cpu", torch.bfloat16, 0), ("cuda", torch.float32, 0), ("cuda", torch.float64, 0), ("cuda", torch.float16, 2)],
)
def test_only_half_precision_on_a_gpu_needs_the_copy(device, dtype, size):
    wide = max(dtype, torch.float32, key=lambda it: it.itemsize)
    decoder = SimpleNamespace(dtype=dtype, head=torch.zeros(4, 8, dtype=wide))
    assert half_head.half_head_bytes(decoder, torch.device(device)) == 32 * size


def test_estimates_of_memory_contain_the_copy(halves, monkeypatch):
    target, network = halves
    prompts = [target.encode_prompt("a cat")]
    settings = {"drafter": network, "drafting": DRAFTED}, {"drafting": Drafting(PLAIN)}
    requests = [new_decoding(target, prompts, **given).request for given in settings]
    before = [state_bytes(request, 1) for request in requests]
    monkeypatch.setattr(half_head, "has_half_head", lambda decoder, device: True)
    added = [state_bytes(request, 1) - size for request, size in zip(requests, before)]
    assert added == [2 * target.decoder.head.numel(), 0]
