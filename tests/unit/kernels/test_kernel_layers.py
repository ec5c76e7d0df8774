"""Tests of the decoder of every family with the Triton kernels in Triton's interpreter."""

from functools import partial

import pytest
import torch

from adt_core.kernels import attend, gate, linear, norm, norm_rope_store
from adt_core.models.batch_invariance import TILE
from adt_core.models.cache import KVCache
from adt_core.models.rotary import rope_tables
from adt_core.models.rows import BatchRows
from tests.layouts.families import WRITERS, load_small
from tests.reading import roots_at
from tests.unit.kernels.references import as_kernel, float64_kernel

pytest.importorskip("triton", reason="Triton is not installed")

NEAR = 3  # number of positions before a token that have near keys
TOLERANCES = {torch.float32: 1e-5, torch.float16: 0.02}
"""Largest difference of final features between kernels and references, relative to the largest feature. In float16, the
references round after each operation, and the kernels only once."""
KERNELS = (attend, linear, gate, norm, norm_rope_store)
TOKENS = {8: 6, 16: 14, 12: 10, 64: 14}
"""Most tokens of a forward pass of `features`, by the number of rows with padding to tiles of 4 or 64 rows."""


def features(decoder):
    """Return the features of 5 tokens of two rows, after prompts of different lengths and 7 tokens."""
    rows = BatchRows([[1, 2, 3], [4]], 24, decoder.embedding)
    cache = KVCache(decoder.config, 2, 24, decoder.embedding)
    rope = rope_tables(decoder.config, decoder.embedding)
    decoder(rows.ids, rows.prefill(), cache, rope)
    for at, tokens in ((0, 7), (7, 5)):
        step = rows.causal_metadata(roots_at(at, at), tokens)
        if decoder.tile:
            step = rows.split_near_keys(step, rows.cache_offset + at, NEAR)
        out = decoder(torch.arange(2 * tokens).view(2, -1) + 1, step, cache, rope)
    return out


def filling_padding(kernel, value):
    """Return a kernel that writes a value to the padding of its result."""

    def filled(*given):
        y = kernel(*given)
        y[TOKENS[len(y)] :] = value
        return y

    return filled


@pytest.mark.parametrize("products", [True, False], ids=["products by Triton", "products by PyTorch"])
@torch.inference_mode()
def test_padding_may_be_nan(products, written, monkeypatch):
    """Kernels leave padding undefined. Nothing may read it into the results of tokens."""
    weights = "int8" if products else None  # only products with quantised weights have a kernel
    decoder = load_small("chameleon", written("chameleon"), dtype=torch.float16, weights=weights).decoder
    monkeypatch.setattr(attend, "far_attention", float64_kernel)
    kernels = [module for module in KERNELS if products or module is not linear]
    found = []
    for value in (torch.nan, 0.0):
        for module in kernels:
            monkeypatch.setattr(module, "uses_kernel", lambda *_: True)
            monkeypatch.setattr(module, "kernel", filling_padding(partial(as_kernel, module), value))
        found.append(features(decoder))
    assert found[0].isfinite().all() and found[0].equal(found[1])


@pytest.mark.long
@pytest.mark.parametrize("subset", range(2 ** len(KERNELS)), ids=lambda bits: f"{bits:05b}")
@torch.inference_mode()
def test_every_subset_of_the_kernels_computes_the_same(subset, written, monkeypatch):
    """A trial decides for each kernel. Each forward pass has the padding of a round, with NaN or zeros in it."""
    decoder = load_small("chameleon", written("chameleon"), dtype=torch.float16, weights="int8").decoder
    monkeypatch.setitem(TILE, "cpu", 64)
    monkeypatch.setattr(attend, "far_attention", float64_kernel)
    expected = features(decoder)
    chosen = [module for number, module in enumerate(KERNELS) if subset >> number & 1]
    found = []
    for value in (torch.nan, 0.0):
        with monkeypatch.context() as patch:
            for module in chosen:
                patch.setattr(module, "uses_kernel", lambda *_: True)
                patch.setattr(module, "kernel", filling_padding(module.kernel, value))
            found.append(features(decoder))
    assert found[0].equal(found[1]), "bits must not depend on padding"
    assert (found[0] - expected).abs().max() < TOLERANCES[torch.float16] * expected.abs().max()
    assert chosen or found[0].equal(expected)


@pytest.mark.long  # test_kernel_attend.py and test_kernel_rows.py test each kernel
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("family", WRITERS)
@torch.inference_mode()
def test_features_are_those_of_the_references(family, dtype, written, monkeypatch):
    """In float32 there are neither near keys nor tiles, so only float16 uses the kernels of attention and products.

    Only products with quantised weights have a kernel.
    """
    weights = "int8" if dtype == torch.float16 else None
    decoder = load_small(family, written(family), dtype=dtype, weights=weights).decoder
    monkeypatch.setattr(attend, "far_attention", float64_kernel)
    expected = features(decoder)
    called = []
    for module in KERNELS:
        monkeypatch.setattr(module, "uses_kernel", lambda *_: True)
        kernel = module.kernel
        monkeypatch.setattr(
            module, "kernel", lambda *given, module=module, kernel=kernel: called.append(module) or kernel(*given)
        )
    found = features(decoder)
    assert set(called) == set(KERNELS if decoder.tile else KERNELS[2:])
    assert (found - expected).abs().max() < TOLERANCES[dtype] * expected.abs().max()
