"""Tests of decoder layers: their kernels, the number of operations, and the state after a forward pass."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from adt_core import load_drafter, load_target
from adt_core.kernels import attend, gate, linear, norm, norm_rope_store
from adt_core.models import batch_invariance, layers, rotary
from adt_core.models.cache import KVCache
from adt_core.models.layers import LayerContext
from adt_core.models.rotary import rope_tables
from adt_core.models.rows import BatchRows, Roots
from adt_core.models.target import EncodedPrompt
from tests.layouts.janus import write_janus
from tests.reading import Reader
from tests.tiny import write_tiny_checkpoint, write_tiny_drafter
from tests.unit.kernels.references import as_kernel


def forwards(network, check=None, tokens=5):
    """Run a prefill of two prompts of unequal length, and a forward pass of some tokens. Return both outputs."""
    like = network.embedding
    rows = BatchRows([[1, 2, 3, 4], [5, 6]], 16, like)
    more = {} if check is None else {"check": check}
    generator = torch.Generator().manual_seed(0)

    def run(ids, step):
        features = torch.randn(*ids.shape, network.config.hidden_size, generator=generator).to(like)
        if hasattr(network, "head"):
            return network(ids, step, cache, rope, **more)
        return network(ids, features, LayerContext.of(step, rope, network.config), cache)

    cache = KVCache(network.config, 2, 16, like)
    rope = rope_tables(network.config, like)
    first = run(rows.ids, rows.prefill())
    step = rows.causal_metadata(Roots.all_at(torch.zeros(2, dtype=torch.long), 0), tokens)
    return first, run(torch.arange(2 * tokens).view(2, -1), step)


@pytest.fixture(scope="module")
def grouped(tmp_path_factory):
    """Return the folder of a target with 4 query heads and 2 key heads, and of its drafter."""
    folder = tmp_path_factory.mktemp("grouped")
    write_tiny_checkpoint(folder / "target", kv_heads=2)
    write_tiny_drafter(folder / "drafter", folder / "target")
    return folder


@pytest.mark.parametrize("before", [True, False])
def test_cudnn_is_off_during_a_forward_and_afterwards_as_it_was(models, before):
    enabled = torch.backends.cuda.cudnn_sdp_enabled
    set_enabled = torch.backends.cuda.enable_cudnn_sdp
    seen = []

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


def test_grouped_heads_become_queries_of_one_head(grouped, monkeypatch):
    """torch's fast kernels don't support grouped heads with a mask. All layers must use the same mask."""
    calls = []
    attention = attend.attention

    def watched(query, key, value, mask):
        calls.append((query.shape, key.shape, mask))
        return attention(query, key, value, mask)

    monkeypatch.setattr(attend, "attention", watched)
    target = load_target(grouped / "target")
    forwards(target.decoder)
    forwards(load_drafter(grouped / "drafter", target))
    assert len(calls) == 2 * (target.decoder.config.num_layers + 1)
    assert all(q[1] == k[1] == 2 and q[2] == mask.shape[2] for q, k, mask in calls)
    assert [q[2] for q, _, _ in calls] == [8, 8, 10, 10, 8, 10]
    assert calls[0][2] is calls[1][2] and calls[2][2] is calls[3][2]


class Operations(TorchDispatchMode):
    """Recorder of the names of operations that compute or copy."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        memory = {x.untyped_storage().data_ptr() for x in args if isinstance(x, torch.Tensor)}
        made = [x for x in tree_leaves(result) if isinstance(x, torch.Tensor)]
        if func._schema.is_mutable or any(x.untyped_storage().data_ptr() not in memory for x in made):
            self.names.append(func._schema.name.removeprefix("aten::"))
        return result


@pytest.mark.parametrize("tokens", [1, 7])
@torch.inference_mode()
def test_a_layer_is_thirteen_operations(models, monkeypatch, tokens):
    """On a GPU, each operation is a kernel launch. In a small model, launches take most of the time."""
    monkeypatch.setitem(rotary.MATRICES_PAY_UP_TO, "cpu", 512)
    decoder = models[0].decoder
    rows = BatchRows([[1, 2], [3]], 16, decoder.embedding)
    cache = KVCache(decoder.config, 2, 16, decoder.embedding)
    step = rows.causal_metadata(Roots.all_at(torch.zeros(2, dtype=torch.long), 0), tokens)
    config = replace(decoder.config, num_layers=32)
    x = torch.randn(2 * tokens, config.hidden_size, dtype=decoder.dtype)
    rope = rope_tables(config, decoder.embedding)
    frame = LayerContext.of(step, rope, config)
    assert frame.rotation.matrices is not None
    with Operations() as operations:
        decoder.layers[0](x, frame, cache.data[0])
    assert len(operations.names) <= 13, operations.names


@pytest.mark.parametrize("near, most", [(None, 19), (4, 23)], ids=["all keys near", "far keys"])
@torch.inference_mode()
def test_a_batch_invariant_layer_has_few_more_operations(tiny, monkeypatch, near, most):
    """The mode pads rows to a tile, and attends to far keys, with torch's kernel, and to near keys separately."""
    monkeypatch.setitem(rotary.MATRICES_PAY_UP_TO, "cpu", 512)
    monkeypatch.setitem(batch_invariance.TILE, "cpu", 8)
    monkeypatch.setattr(layers, "supports_half_matmul", lambda dtype: True)  # as on a GPU
    decoder = load_target(tiny / "target", dtype=torch.bfloat16).decoder
    rows = BatchRows([[1, 2], [3]], 16, decoder.embedding)
    cache = KVCache(decoder.config, 2, 16, decoder.embedding)
    config = replace(decoder.config, num_layers=32)
    heads = decoder.config.num_heads
    seen = torch.zeros(2, heads, 3, config.head_dim, dtype=decoder.dtype), torch.zeros(2, heads, 3)
    monkeypatch.setattr(attend, "far_attention", lambda *_: seen)
    step = rows.split_near_keys(rows.causal_metadata(Roots.all_at(torch.zeros(2, dtype=torch.long), 4), 3), 6, near)
    frame = LayerContext.of(step, rope_tables(config, decoder.embedding), config, decoder.tile)
    x = batch_invariance.pad_rows(torch.randn(2 * 3, config.hidden_size).to(decoder.dtype), decoder.tile)
    decoder.layers[0](x, frame, cache.data[0])  # makes constants
    with Operations() as operations:
        decoder.layers[0](x, frame, cache.data[0])
    assert len(operations.names) + (near is not None) <= most, operations.names


def replace_kernels(monkeypatch, operations):
    """Use the kernels of all operations. The references compute their results, and count as launches of the kernels."""

    def launching(module, count):
        def kernel(*given):
            before = list(operations.names)
            result = as_kernel(module, *given)
            operations.names[:] = [*before, *[module.__name__] * count]
            return result

        monkeypatch.setattr(module, "uses_kernel", lambda *_: True)
        monkeypatch.setattr(module, "kernel", kernel)

    launching(attend, 2)
    for module in (gate, linear, norm, norm_rope_store):
        launching(module, 1)


@pytest.mark.parametrize("weights", [None, "int8", "int4"])
@pytest.mark.parametrize("post_norms", [False, True])
@pytest.mark.parametrize("guided", [False, True], ids=["one row", "two rows"])
@torch.inference_mode()
def test_a_batch_invariant_layer_with_kernels_is_ten_launches(tiny, monkeypatch, post_norms, guided, weights):
    monkeypatch.setitem(batch_invariance.TILE, "cpu", 8)
    monkeypatch.setattr(layers, "supports_half_matmul", lambda dtype: True)  # as on a GPU
    monkeypatch.setattr(attend, "far_attention", lambda q, *_: (torch.zeros_like(q), q[..., 0].float()))
    decoder = load_target(tiny / "target", dtype=torch.bfloat16, weights=weights).decoder
    prompts = [[1, 2], [3]][: 1 + guided]
    rows = BatchRows(prompts, 16, decoder.embedding, images=1)
    cache = KVCache(decoder.config, len(prompts), 16, decoder.embedding)
    layer = decoder.layers[0]
    if post_norms:
        layer.out_norm = layer.mlp_norm
        layer.down_norm = layer.mlp_norm
    step = rows.split_near_keys(rows.causal_metadata(Roots.all_at(torch.zeros(1, dtype=torch.long), 4), 3), 6, 4)
    x = batch_invariance.pad_rows(torch.randn(len(prompts) * 3, decoder.config.hidden_size).bfloat16(), 8)
    with Operations() as operations:
        replace_kernels(monkeypatch, operations)
        context = LayerContext.of(step, rope_tables(decoder.config, decoder.embedding), decoder.config, decoder.tile)
        operations.names.clear()
        layer(x, context, cache.data[0])
    assert len(operations.names) == (12 if post_norms else 10), operations.names


def test_rotations_as_matrices_are_the_same(models, grouped, monkeypatch):
    for decoder in (models[0].decoder, load_target(grouped / "target", dtype=torch.float64).decoder):
        # the matrices are used only with several layers
        monkeypatch.setattr(decoder, "config", replace(decoder.config, num_layers=3))
        expected = forwards(decoder)
        with monkeypatch.context() as patch, torch.inference_mode():
            patch.setitem(rotary.MATRICES_PAY_UP_TO, "cpu", 512)
            found = forwards(decoder)
        for mine, theirs in zip(found, expected):
            assert (mine - theirs).abs().max() < 1e-12


def test_training_and_inference_compute_the_same(models):
    """Training needs gradients, so it may not overwrite tensors. The results must be equal nevertheless."""
    target, drafter = models
    for network in (target.decoder, drafter):
        with torch.inference_mode():
            expected = forwards(network)
        with torch.enable_grad():
            for mine, theirs in zip(forwards(network), expected):
                assert (mine - theirs).abs().max() < 1e-12


@pytest.mark.parametrize("size", [0, 1e-6, 1, 1e6])
@pytest.mark.parametrize("shape", [(1, 256), (50, 640), (2, 3, 80)])
@torch.inference_mode()
def test_the_rms_norm_on_a_cpu_is_that_of_torch(shape, size):
    """Numbers of size 1e-6 are smaller than the square root of epsilon."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0)) * size
    weight = torch.linspace(-2, 3, shape[-1])
    expected = F.rms_norm(x.double(), shape[-1:], weight.double(), 1e-5)
    found = norm.rms_norm(x, weight, 1e-5)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), expected, rtol=5e-7, atol=0)


@torch.inference_mode()
def test_the_rms_norm_on_a_cpu_keeps_wrong_numbers():
    x = torch.ones(2, 8)
    x[0, 3] = torch.nan
    found = norm.rms_norm(x, torch.ones(8), 1e-5)
    assert found[0].isnan().all() and found[1].isfinite().all()


@torch.inference_mode()
def test_given_inputs_are_not_overwritten(models):
    decoder = models[0].decoder
    reader = Reader(decoder, [[1, 2, 3]])
    given = torch.randn(1, 3, decoder.config.hidden_size, dtype=decoder.dtype)
    kept = given.clone()
    decoder(reader.rows.ids, reader.rows.prefill(), reader.cache, reader.rope, inputs=given)
    assert given.equal(kept)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
@torch.inference_mode()
def test_norm_and_head_are_stored_in_the_dtype_of_their_computation(tmp_path, dtype):
    """The test uses Janus, whose head has a hidden layer. A forward pass must not convert parameters."""
    decoder = load_target(write_janus(tmp_path / "janus"), dtype=dtype).decoder
    wide = torch.promote_types(dtype, torch.float32)
    assert {name: decoder.get_parameter(name).dtype for name in layers.WIDE} == dict.fromkeys(layers.WIDE, wide)
    assert decoder.dtype == dtype and decoder.layers[0].qkv.dtype == dtype and decoder.wide_dtype == wide
    features = torch.randn(2, 1, decoder.config.hidden_size, dtype=wide)
    with Operations() as operations:
        z = decoder.logits(features, 3.0)
    assert z.dtype == wide and not {"to", "_to_copy", "copy_"} & set(operations.names)


@pytest.mark.parametrize("tokens, rows", [(1, 16), (16, 16), (25, 32), (64, 64)])
@torch.inference_mode()
def test_the_head_multiplies_few_rows_of_padding(models, monkeypatch, tokens, rows):
    """In batch-invariant mode on a GPU, the head rounds the number of tokens up to tiles of 16 rows, not of 64."""
    decoder = models[0].decoder
    monkeypatch.setattr(type(decoder), "tile", batch_invariance.TILE["cuda"])
    multiplied = []

    def recorded(x, weight, **options):
        multiplied.append(len(x))
        return product(x, weight, **options)

    product = layers.product
    monkeypatch.setattr(layers, "product", recorded)
    features = torch.randn(2, tokens, decoder.config.hidden_size, dtype=decoder.wide_dtype)
    z = decoder.logits(features, 3.0)
    assert multiplied == [rows]
    monkeypatch.setattr(type(decoder), "tile", 0)
    assert z.shape == (1, tokens, decoder.head.shape[1]) and torch.allclose(z, decoder.logits(features, 3.0))


def test_hidden_prompt_tokens_are_visible_to_a_drafter_that_reads_them():
    """The first row has one padding token, which stays invisible, and two hidden tokens."""
    rows = BatchRows([EncodedPrompt([1, 2, 3], hidden=2), EncodedPrompt([1, 2, 3, 4])], 8, torch.empty(0))
    assert (rows.prefill().mask[0, 0, 3] == 0).tolist() == [False, False, False, True]
    assert (rows.unhidden().prefill().mask[0, 0, 3] == 0).tolist() == [False, True, True, True]
