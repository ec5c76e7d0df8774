"""Tests of batch-invariant attention on a GPU, which uses torch's memory-efficient kernel for far keys.

Far keys are keys more than 32 positions back. The kernel adds them in the order of their cache positions.

CPUs don't have this kernel, so a function for the CPU replaces it. The function adds keys block by block in the
kernel's order, and checks the alignment of masks like the kernel.
"""

import pytest
import torch
import torch.nn.functional as F

from adt_core import Drafting, Sampling, load_drafter, load_target
from adt_core.engine.device.invariance import COMPANY, InvarianceReport
from adt_core.engine.request import Request
from adt_core.kernels import attend
from adt_core.models import batch_invariance
from tests.drafted import METHODS, run
from tests.layouts.emu3 import write_emu3
from tests.tiny import write_tiny_checkpoint

LONG = "a cat beside a dog that looks at a bird in a tree by the lake under the mountains"
"""Prompt that is padded to another multiple of 64 than a short prompt."""


def by_blocks(q, keys, values, mask):
    """Attend to far keys. This function replaces :func:`adt_core.models.torch_private.far_attention`.

    Products are computed in float64, because float32 products on a CPU depend on the number of queries. The products of
    the kernel do not depend on it.
    """
    block = 64 if q.shape[-1] <= 64 else 128
    assert mask.data_ptr() % 16 == 0 and all(stride % 8 == 0 for stride in mask.stride()[:-1]), "mask is not aligned"
    highest = q.new_full((*q.shape[:3], 1), -torch.inf, dtype=torch.float32)
    total = torch.zeros_like(highest)
    out = torch.zeros_like(q, dtype=torch.float32)
    for at in range(0, keys.shape[2], block):
        here = slice(at, at + block)
        scores = (q.double() @ keys[:, :, here].double().mT).float() * q.shape[-1] ** -0.5 + mask[..., here].float()
        new = torch.maximum(highest, scores.amax(-1, keepdim=True))
        finite = new.masked_fill(new == -torch.inf, 0.0)
        shrink = (highest - finite).exp()
        shares = (scores - finite).exp()
        total = total * shrink + shares.sum(-1, keepdim=True)
        out = out * shrink + (shares.to(q.dtype).double() @ values[:, :, here].double()).float()
        highest = new
    return (out / total).to(q.dtype), (highest + total.log())[..., 0]


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch):
    monkeypatch.setattr(Request, "replayed", True)
    monkeypatch.setattr("adt_core.engine.request.near_window", lambda *model: batch_invariance.NEAR_WINDOW)
    monkeypatch.setattr(attend, "far_attention", by_blocks)


@pytest.fixture(scope="module")
def emu3(tmp_path_factory):
    """Return a model with grouped-query attention."""
    return load_target(write_emu3(tmp_path_factory.mktemp("emu3")), dtype=torch.bfloat16).sized(48, 40)


@pytest.mark.parametrize("kept", [0, 3, 10])
def test_masks_of_grouped_heads_are_aligned(emu3, kept):
    """The masks must be aligned for any number of cache positions, and after any prefix."""
    how = {"prompts": ("a cat", LONG), "sampling": Sampling(seed=3, guidance_scale=3.0)}
    plain = run(emu3, **how).codes
    cells = emu3.cells(plain).flatten(1)[:, :kept]
    drafted = run(emu3, load_drafter("jacobi", emu3), drafting=Drafting(**METHODS["jacobi"][1]), kept=cells, **how)
    assert drafted.codes.equal(plain)


def test_a_kernel_may_return_queries_before_heads_in_memory(emu3, monkeypatch):
    """GPU kernels of torch store queries before heads."""
    how = {"prompts": ("a cat",), "sampling": Sampling(seed=3, guidance_scale=3.0)}
    expected = run(emu3, **how).codes
    usual = F.scaled_dot_product_attention
    name = "scaled_dot_product_attention"
    monkeypatch.setattr(F, name, lambda *given: usual(*given).transpose(1, 2).contiguous().transpose(1, 2))
    assert run(emu3, **how).codes.equal(expected)


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    """Return a model with heads of 128 elements, as in 7B models.

    With such heads, the kernel adds 128 keys at a time.
    """
    folder = tmp_path_factory.mktemp("wide")
    path = write_tiny_checkpoint(folder / "target", scale=3.0, hidden=256, heads=2, resolution=96, max_positions=600)
    return load_target(path, dtype=torch.bfloat16)


def test_a_kernel_that_depends_on_cache_positions_is_detected(runtime, wide, monkeypatch, tmp_path):
    """In the invariance check, the longer prompt moves the image to other cache positions."""

    def by_place(q, keys, values, mask):
        out, log_sum = by_blocks(q, keys, values, mask)
        first = (mask == 0).int().argmax(-1, keepdim=True)
        return (out * (1 + first * 2**-9)).to(q.dtype), log_sum

    monkeypatch.setattr(attend, "far_attention", by_place)
    monkeypatch.setenv("ADT_TREE_CACHE", str(tmp_path))
    tried = run(wide, prompts=("a cat",), sampling=Sampling(guidance_scale=3.0)).invariance
    assert tried.differing == (COMPANY,) and tried.remark


def test_features_are_equal_in_a_batch_with_a_longer_prompt(wide, monkeypatch):
    sampling = Sampling(guidance_scale=3.0)
    tried = run(wide, prompts=("a cat",), sampling=sampling)  # runs the check before the first image
    assert tried.invariance == InvarianceReport(), "the kernel for far keys is not used"
    recorded = []
    logits = wide.decoder.logits

    def recording(features, guidance=1):
        z = logits(features, guidance)
        recorded[-1].append(z[0])
        return z

    monkeypatch.setattr(wide.decoder, "logits", recording)
    cells = torch.randint(0, wide.num_codes, (1, 136), generator=torch.Generator().manual_seed(1))
    for prompts in (("a cat",), ("a cat", LONG)):
        recorded.append([])
        run(wide, prompts=prompts, sampling=sampling, kept=cells.expand(len(prompts), -1))
    single, batched = (torch.cat(bits) for bits in recorded)
    assert single.equal(batched)
