"""Tests of batch invariance: features of a tree node are bitwise equal to features in plain decoding.

Tensor dimensions: B images, R rows (conditional rows, then unconditional rows), n tokens or nodes, h hidden size.
"""

import tempfile
from functools import cache
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from adt_core import load_target
from adt_core.kernels import attend, gate, norm, norm_rope_store
from adt_core.models import batch_invariance, layers
from adt_core.models.config import QUANTISED
from adt_core.models.rows import Roots
from adt_core.rules.tree import ancestor_matrix
from tests.reading import Reader
from tests.tiny import write_tiny_checkpoint

PROMPTS = [[1, 2, 3, 4, 5, 6, 7], [8, 9, 10], [11, 12, 13, 14], [15, 16]]
"""Prompts of two images with guidance: two conditional rows, then two unconditional rows."""
SLOTS = 57
DECIDED = 14
NEAR_WINDOW = 5
"""Number of last positions whose keys are "near" keys, in tests with far keys. Also the maximum depth of trees."""


@cache
def target(dtype, weights=None, kv_heads=4):
    with tempfile.TemporaryDirectory() as folder:
        path = write_tiny_checkpoint(Path(folder) / "target", scale=3.0, kv_heads=kv_heads)
        return load_target(path, dtype=dtype, weights=weights)


class DecodedBatch(Reader):
    """Reader whose cache has the prompts and decided tokens [B, n] of each image. If `near` is None, all keys are."""

    def __init__(self, decoder, near, decided, tokens):
        super().__init__(decoder, PROMPTS, more=SLOTS, images=2)
        self.near = near
        # Each pass reads one position of all images. Positions after `decided` are overwritten later.
        for at in range(max(decided)):
            self.see(Roots.all_at(tokens[:, at], at), tokens[:, at : at + 1])

    def see(self, roots, codes, own=None, depths=0):
        """Return the features [R, n, h] of codes [B, n], root first, with ancestors [B, n, n] and depths [B, n]."""
        rows = self.rows
        step = self.rows.metadata(roots, 0, depths, own)
        if self.decoder.tile:
            step = rows.split_near_keys(step, rows.spread(roots.at) + rows.cache_offset, self.near)
        return self.read(rows.spread(self.decoder.image_ids[codes]), step)


def far_attention_float64(q, keys, values, mask):
    """Attend to far keys in float64. This replaces a kernel that exists only on GPUs."""
    scores = q.double() @ keys.double().mT * q.shape[-1] ** -0.5 + mask.double()
    return (scores.softmax(-1) @ values.double()).to(q.dtype), scores.logsumexp(-1).float()


def random_parents(draw, n):
    """Return parents and depths of n nodes. Node 0 is the root. No path is longer than NEAR_WINDOW."""
    depths = [0]
    parents = [0]
    for node in range(1, n):
        parent = draw(st.sampled_from([i for i in range(node) if depths[i] < NEAR_WINDOW]))
        parents.append(parent)
        depths.append(depths[parent] + 1)
    return parents, depths


@pytest.mark.parametrize("near", [None, NEAR_WINDOW], ids=["all keys near", "far keys"])
@pytest.mark.parametrize("kind", ["bfloat16", "float16", "int8", "fp8", "int4", "grouped heads"])
@given(data=st.data())
@torch.inference_mode()
def test_a_node_has_the_features_of_plain_decoding(kind, near, data):
    dtype = getattr(torch, kind, torch.bfloat16) if "float" in kind else torch.bfloat16
    model = target(dtype, kind if kind in QUANTISED else None, 2 if kind == "grouped heads" else 4)
    decoder = model.decoder
    n = data.draw(st.integers(1, 24))
    decided = data.draw(st.lists(st.integers(0, DECIDED), min_size=2, max_size=2))
    trees = [random_parents(data.draw, n) for _ in range(2)]
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 999)))
    tokens = torch.randint(0, model.num_codes, (2, DECIDED + n), generator=generator)
    codes = torch.randint(0, model.num_codes, (2, n), generator=generator)
    checked = data.draw(st.lists(st.tuples(st.integers(0, 1), st.integers(0, n - 1)), max_size=3))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attend, "far_attention", far_attention_float64)
        check_nodes(DecodedBatch(decoder, near, decided, tokens), decided, trees, codes, checked)


def check_nodes(batch, decided, trees, codes, checked):
    """Check that features of nodes with the codes [2, n] are bitwise equal to features in plain decoding."""
    before = batch.cache.data.clone()
    parents, depths = (torch.tensor([tree[i] for tree in trees]) for i in range(2))
    roots = Roots(codes[:, 0], torch.tensor(decided)[:, None])
    seen = batch.see(roots, codes, ancestor_matrix(parents, NEAR_WINDOW), depths)
    for image, node in checked:
        path = [node]
        at = node
        while at:
            at = trees[image][0][at]
            path.insert(0, at)
        batch.cache.data.copy_(before)
        for step, at in enumerate(path):
            single = Roots(codes[:, at], torch.tensor(decided)[:, None] + step)
            feature = batch.see(single, codes[:, at : at + 1])
        for row in (image, image + 2):
            assert seen[row, node].equal(feature[row, 0])


@pytest.mark.long
@torch.inference_mode()
def test_a_node_has_the_features_of_plain_decoding_with_triton_kernels(monkeypatch):
    """The kernels run in Triton's interpreter. The model has grouped heads."""
    pytest.importorskip("triton", reason="Triton is not installed")
    for module in (attend, gate, norm, norm_rope_store):
        monkeypatch.setattr(module, "uses_kernel", lambda *_: True)
    decided = [2, 8]
    tree = [0, 0, 1, 0, 2, 4, 5], [0, 1, 2, 1, 3, 4, 5]
    chain = [0, 0, 1, 2, 3, 4, 0], [0, 1, 2, 3, 4, 5, 1]
    codes = torch.randint(0, 32, (2, 8 + 7), generator=torch.Generator().manual_seed(0))
    batch = DecodedBatch(target(torch.float16, kv_heads=2).decoder, NEAR_WINDOW, decided, codes)
    check_nodes(batch, decided, (tree, chain), codes[:, 8:], [(0, 6), (0, 3), (1, 6), (1, 5)])


@pytest.mark.parametrize("on", [True, False], ids=["on", "off"])
@torch.inference_mode()
def test_features_differ_without_the_mode(runtime, monkeypatch, on):
    """Check that the test above can fail: without batch-invariant mode, a chain differs from plain decoding.

    On most machines, matrix products depend on the number of rows. This test simulates such products.
    """
    decoder = target(torch.bfloat16).decoder
    n = 12
    even = layers._multiply
    monkeypatch.setattr(decoder, "exact", on)
    monkeypatch.setattr(layers, "_multiply", lambda *given: even(*given).mul_(1 + len(given[2]) / 256))
    codes = torch.randint(0, 32, (2, n + 9), generator=torch.Generator().manual_seed(0))
    batch = DecodedBatch(decoder, None, [9, 9], codes)
    before = batch.cache.data.clone()
    codes = codes[:, 9:]
    causal = torch.ones(2, n, n, dtype=torch.bool).tril()
    chain = batch.see(Roots.all_at(codes[:, 0], 9), codes, causal, torch.arange(n).expand(2, -1))
    batch.cache.data.copy_(before)
    single = [batch.see(Roots.all_at(codes[:, i], 9 + i), codes[:, i : i + 1]) for i in range(n)]
    assert chain.equal(torch.cat(single, 1)) is on


@pytest.mark.parametrize("dtype, tile", [(torch.bfloat16, 4), (torch.float16, 4), (torch.float32, 0)], ids=str)
def test_only_half_precision_has_tiles(dtype, tile):
    assert target(dtype).decoder.tile == batch_invariance.tile_for(dtype, torch.device("cpu")) == tile


@pytest.mark.parametrize("near", [None, NEAR_WINDOW], ids=["all keys near", "far keys"])
@torch.inference_mode()
def test_every_key_is_attended_once(monkeypatch, near):
    """A key that is missing or attended twice would cause a difference above the precision of bfloat16."""
    monkeypatch.setattr(attend, "far_attention", far_attention_float64)
    codes = torch.randint(0, 32, (2, 18), generator=torch.Generator().manual_seed(0))

    def features(dtype, on):
        decoder = target(dtype).decoder
        monkeypatch.setattr(decoder, "exact", on)
        batch = DecodedBatch(decoder, near, [12, 12], codes)
        return torch.cat([batch.see(Roots.all_at(codes[:, at], at), codes[:, at : at + 1]) for at in range(18)], 1)

    true = features(torch.float32, True)
    for on in (True, False):
        error = (features(torch.bfloat16, on) - true).abs().max() / true.abs().max()
        assert error < 0.015
