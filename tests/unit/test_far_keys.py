"""Exact half precision as a GPU does it: far keys go through torch's memory-efficient kernel, which CPUs lack.

What stands in for it here adds keys up in the kernel's order, block by block, and refuses masks as the kernel does.
"""

import pytest
import torch
import torch.nn.functional as F

from adt_core import Drafting, Sampling, load_drafter, load_target
from adt_core.engine.device.invariance import COMPANY, InvarianceReport
from adt_core.engine.request import Request
from adt_core.models import batch_invariance, layers
from tests.drafted import METHODS, run
from tests.layouts.emu3 import write_emu3
from tests.tiny import write_tiny_checkpoint

LONG = "a cat beside a dog that looks at a bird in a tree by the lake under the mountains"
"""Its tokens take another multiple of 64 than those of a short prompt."""


def by_blocks(q, keys, values, mask):
    """Attention to far keys, as :func:`adt_core.models.kernels.far_attention` gives it.

    Products are made in float64: a CPU's in float32 depend on the number of queries, as the kernel's don't.
    """
    block = 64 if q.shape[-1] <= 64 else 128
    assert mask.data_ptr() % 16 == 0 and all(stride % 8 == 0 for stride in mask.stride()[:-1]), "mask is not aligned"
    highest = q.new_full((*q.shape[:3], 1), -torch.inf, dtype=torch.float32)
    total, out = torch.zeros_like(highest), torch.zeros_like(q, dtype=torch.float32)
    for at in range(0, keys.shape[2], block):
        here = slice(at, at + block)
        scores = (q.double() @ keys[:, :, here].double().mT).float() * q.shape[-1] ** -0.5 + mask[..., here].float()
        new = torch.maximum(highest, scores.amax(-1, keepdim=True))
        finite = new.masked_fill(new == -torch.inf, 0.0)
        shrink, shares = (highest - finite).exp(), (scores - finite).exp()
        total = total * shrink + shares.sum(-1, keepdim=True)
        out = out * shrink + (shares.to(q.dtype).double() @ values[:, :, here].double()).float()
        highest = new
    return (out / total).to(q.dtype), (highest + total.log())[..., 0]


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch):
    monkeypatch.setattr(Request, "replayed", True)
    monkeypatch.setattr("adt_core.engine.request.near_window", lambda *model: batch_invariance.NEAR_WINDOW)
    monkeypatch.setattr(layers, "far_attention", by_blocks)


@pytest.fixture(scope="module")
def emu3(tmp_path_factory):
    """Heads that share keys."""
    return load_target(write_emu3(tmp_path_factory.mktemp("emu3")), dtype=torch.bfloat16).sized(48, 40)


@pytest.mark.parametrize("kept", [0, 3, 10])
def test_heads_that_share_keys_see_masks_that_the_kernel_takes(emu3, kept):
    """Whatever number of columns a forward reads, and behind any prefix."""
    how = {"prompts": ("a cat", LONG), "sampling": Sampling(seed=3, guidance=3.0)}
    whole = run(emu3, **how).codes
    cells = emu3.cells(whole).flatten(1)[:, :kept]
    drafted = run(emu3, load_drafter("jacobi", emu3), drafting=Drafting(**METHODS["jacobi"][1]), prefix=cells, **how)
    assert drafted.codes.equal(whole)


def test_a_kernel_may_leave_queries_before_heads_in_memory(emu3, monkeypatch):
    """As torch's attention for GPUs does."""
    how = {"prompts": ("a cat",), "sampling": Sampling(seed=3, guidance=3.0)}
    expected, usual = run(emu3, **how).codes, F.scaled_dot_product_attention
    monkeypatch.setattr(
        F, "scaled_dot_product_attention", lambda *given: usual(*given).transpose(1, 2).contiguous().transpose(1, 2)
    )
    assert run(emu3, **how).codes.equal(expected)


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    """Heads of 128 numbers, as models of 7B have: the kernel takes 128 keys at a time."""
    folder = tmp_path_factory.mktemp("wide")
    path = write_tiny_checkpoint(folder / "target", scale=3.0, hidden=256, heads=2, resolution=96, max_positions=600)
    return load_target(path, dtype=torch.bfloat16)


def test_a_kernel_to_which_it_matters_in_which_columns_an_image_is_would_be_found(runtime, wide, monkeypatch, tmp_path):
    """The prompt that is tried beside another is so much longer that the image's columns are others."""

    def by_place(q, keys, values, mask):
        out, log_sum = by_blocks(q, keys, values, mask)
        first = (mask == 0).int().argmax(-1, keepdim=True)
        return (out * (1 + first * 2**-9)).to(q.dtype), log_sum

    monkeypatch.setattr(layers, "far_attention", by_place)
    monkeypatch.setenv("ADT_TREE_CACHE", str(tmp_path))
    tried = run(wide, prompts=("a cat",), sampling=Sampling(guidance=3.0)).exact
    assert tried.differing == (COMPANY,) and tried.remark


def test_an_image_has_the_same_bits_beside_a_longer_prompt(wide, monkeypatch):
    tried = run(wide, prompts=("a cat",), sampling=Sampling(guidance=3.0))  # before the first image
    assert tried.exact == InvarianceReport(), "far keys go through the kernel"
    seen, logits = [], wide.decoder.logits

    def noting(features, guidance=1):
        z = logits(features, guidance)
        seen[-1].append(z[0])
        return z

    monkeypatch.setattr(wide.decoder, "logits", noting)
    cells = torch.randint(0, wide.num_codes, (1, 136), generator=torch.Generator().manual_seed(1))
    for prompts in (("a cat",), ("a cat", LONG)):
        seen.append([])
        run(wide, prompts=prompts, sampling=Sampling(guidance=3.0), prefix=cells.expand(len(prompts), -1))
    alone, beside = (torch.cat(bits) for bits in seen)
    assert alone.equal(beside)
