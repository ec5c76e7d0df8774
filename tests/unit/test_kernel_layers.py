"""Tests of the decoder of every family with the Triton kernels in Triton's interpreter."""

import pytest
import torch

from adt_core.kernels import attend, gate, linear, norm, norm_rope_store
from adt_core.models.cache import KVCache
from adt_core.models.rotary import rope_tables
from adt_core.models.rows import BatchRows
from tests.layouts.families import WRITERS, load_small
from tests.reading import roots_at

pytest.importorskip("triton", reason="Triton is not installed")

NEAR = 3
"""Number of positions before a token that have near keys."""
TOLERANCES = {torch.float32: 1e-5, torch.float16: 0.02}
"""Largest difference of final features between kernels and references, relative to the largest feature. In float16, the
references round after each operation, and the kernels only once."""
KERNELS = (attend, linear, gate, norm, norm_rope_store)


def float64_kernel(q, keys, values, mask):
    """Replacement for :func:`adt_core.models.kernels.far_attention`, which CPUs lack."""
    scores = q.double() @ keys.double().mT * q.shape[-1] ** -0.5 + mask.double()
    return scores.softmax(-1) @ values.double(), scores.logsumexp(-1)


def features(decoder):
    """Return the features of 5 tokens of two rows, after prompts of different lengths and 6 tokens."""
    rows = BatchRows([[1, 2, 3], [4]], 24, decoder.embedding)
    cache = KVCache(decoder.config, 2, 24, decoder.embedding)
    rope = rope_tables(decoder.config, decoder.embedding)
    decoder(rows.ids, rows.prefill(), cache, rope)
    for at, tokens in ((0, 6), (6, 5)):
        step = rows.causal_step(roots_at(at, at), tokens)
        if decoder.tile:
            step = rows.split_near_keys(step, rows.cache_offset + at, NEAR)
        out = decoder(torch.arange(2 * tokens).view(2, -1) + 1, step, cache, rope)
    return out


@pytest.mark.long  # test_kernel_attend.py and test_kernel_rows.py test each kernel
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("family", WRITERS)
@torch.inference_mode()
def test_features_are_those_of_the_references(family, dtype, written, monkeypatch):
    """In float32 there are neither near keys nor tiles, so only float16 uses the kernels of attention and products."""
    decoder = load_small(family, written(family), dtype=dtype).decoder
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
