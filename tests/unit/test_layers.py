"""The decoder's layers: which kernels of attention they ask for, and what a forward leaves behind."""

import pytest
import torch
import torch.nn.functional as F

from adt_core import load_drafter, load_target
from adt_core.models.cache import KVCache
from adt_core.models.layers import rope_tables
from adt_core.models.rows import Roots, Rows
from tests.tiny import write_tiny_checkpoint, write_tiny_drafter


def forwards(network, check=None, tokens=5):
    """Prefill of two prompts of unequal length, then a forward of some tokens. Returns the outputs of both."""
    like = network.embedding
    rows = Rows([[1, 2, 3, 4], [5, 6]], 16, like)
    more = {} if check is None else {"check": check}
    generator = torch.Generator().manual_seed(0)

    def run(ids, step):
        features = torch.randn(*ids.shape, network.config.hidden_size, generator=generator).to(like)
        extra = () if hasattr(network, "head") else (features,)
        return network(ids, *extra, step=step, cache=cache, rope=rope, **more)

    cache, rope = KVCache(network.config, 2, 16, like), rope_tables(network.config, like)
    first = run(rows.ids, rows.prefill())
    step = rows.causal_step(Roots.all_at(torch.zeros(2, dtype=torch.long), 0), tokens)
    return first, run(torch.arange(2 * tokens).view(2, -1), step)


@pytest.fixture(scope="module")
def grouped(tmp_path_factory):
    """A folder with a target of four heads that share the keys of two, and its drafter."""
    folder = tmp_path_factory.mktemp("grouped")
    write_tiny_checkpoint(folder / "target", kv_heads=2)
    write_tiny_drafter(folder / "drafter", folder / "target")
    return folder


@pytest.mark.parametrize("before", [True, False])
def test_cudnn_is_off_during_a_forward_and_afterwards_as_it_was(models, before):
    enabled, set_enabled, seen = torch.backends.cuda.cudnn_sdp_enabled, torch.backends.cuda.enable_cudnn_sdp, []

    def interrupt():
        raise KeyboardInterrupt

    was = enabled()
    try:
        set_enabled(before)
        forwards(models[0].decoder, lambda: seen.append(enabled()))
        assert seen and not any(seen) and enabled() is before
        with pytest.raises(KeyboardInterrupt):
            forwards(models[0].decoder, interrupt)
        assert enabled() is before
    finally:
        set_enabled(was)


def test_heads_that_share_keys_are_queries_of_one_head(grouped, monkeypatch):
    """torch's fast kernels take no grouped heads with a mask. What they get has as many heads of queries as of keys,
    and one mask for all layers."""
    calls, attention = [], F.scaled_dot_product_attention

    def watched(query, key, value, mask):
        calls.append((query.shape, key.shape, mask))
        return attention(query, key, value, mask)

    monkeypatch.setattr(F, "scaled_dot_product_attention", watched)
    target = load_target(grouped / "target")
    forwards(target.decoder)
    forwards(load_drafter(grouped / "drafter", target))
    assert len(calls) == 2 * (target.decoder.config.num_layers + 1)
    assert all(q[1] == k[1] == 2 and q[2] == mask.shape[2] for q, k, mask in calls)
    assert [q[2] for q, _, _ in calls] == [8, 8, 10, 10, 8, 10]
    assert calls[0][2] is calls[1][2] and calls[2][2] is calls[3][2]


@pytest.mark.parametrize("tokens", [1, 5])
def test_they_attend_as_torch_says(grouped, monkeypatch, tokens):
    """The same with torch's own way to share keys."""
    attention = F.scaled_dot_product_attention

    def shared(query, key, value, mask):
        rows, kv, _, dim = query.shape
        query, mask = query.reshape(rows, 2 * kv, -1, dim), mask[:, :, : mask.shape[2] // 2]
        return attention(query, key, value, mask, enable_gqa=True).reshape(rows, kv, -1, dim)

    target = load_target(grouped / "target", dtype=torch.float64)
    for network in (target.decoder, load_drafter(grouped / "drafter", target)):
        ours = forwards(network, tokens=tokens)
        with monkeypatch.context() as patch:
            patch.setattr(F, "scaled_dot_product_attention", shared)
            theirs = forwards(network, tokens=tokens)
        for mine, expected in zip(ours, theirs):
            assert (mine - expected).abs().max() < 1e-12
