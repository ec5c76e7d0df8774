"""Tests of packed weights: copies of float32 matrices in the memory layout of oneDNN."""

import copy
import gc
from types import SimpleNamespace

import pytest
import torch

from adt_core import Drafting, load_drafter, load_target
from adt_core.models import cpu, layers, packed
from adt_core.models.torch_private import onednn_pack
from adt_core.runtime import get_runtime
from tests.drafted import new_decoding

pytestmark = pytest.mark.skipif(
    onednn_pack(torch.ones(8, 8)) is None, reason="torch has no oneDNN kernel to pack weights"
)


@pytest.fixture
def decoder(tiny):
    return load_target(tiny / "target", dtype=torch.float32).decoder


def matrices(decoder):
    return {name: weight for name, weight in decoder.named_parameters() if packed.packed(weight) is not None}


def test_all_weights_of_products_are_packed_and_nothing_else(decoder):
    packed.pack([decoder])
    expected = {f"layers.{i}.{name}" for i in range(len(decoder.layers)) for name in layers.MATRICES} | {"head"}
    assert set(matrices(decoder)) == expected


@pytest.mark.parametrize("rows", [1, 3, 4, 18, 50, 128])
@pytest.mark.parametrize("has_plus", [False, True])
@torch.inference_mode()
def test_packed_weights_change_no_bit(rows, has_plus):
    numbers = torch.Generator().manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(96, 160, generator=numbers), requires_grad=False)
    x = torch.randn(rows, 96, generator=numbers)
    plus = torch.randn(rows, 160, generator=numbers) if has_plus else None

    def product():
        return layers.product(x, weight, plus=None if plus is None else plus.clone())

    expected = product()
    assert torch.allclose(expected, x @ weight + (0 if plus is None else plus), atol=1e-4)
    packed.pack([SimpleNamespace(named_parameters=lambda: [("layer.out", weight)])])
    assert packed.packed(weight) is not None
    assert torch.equal(product(), expected)


@torch.inference_mode()
def test_products_with_few_rows_do_not_need_the_copy(monkeypatch, decoder):
    """MKL multiplies them, and reads the weight itself."""
    packed.pack([decoder])
    monkeypatch.setattr(layers, "onednn_matmul", None)
    weight = decoder.layers[0].qkv
    x = torch.ones(cpu.FEW_ROWS, weight.shape[0])
    assert torch.equal(layers.product(x, weight), x @ weight)
    assert torch.equal(layers.product(x[None], weight), x[None] @ weight)


def test_a_weight_that_has_changed_is_packed_again(decoder):
    packed.pack([decoder])
    weight = decoder.layers[0].out
    before = packed.packed(weight)
    packed.pack([decoder])
    assert packed.packed(weight) is before
    with torch.no_grad():
        weight.mul_(2)
    assert packed.packed(weight) is None
    packed.pack([decoder])
    assert torch.equal(packed.packed(weight).to_dense(), weight.T)


def test_a_converted_weight_is_not_multiplied_in_its_old_dtype(decoder):
    packed.pack([decoder])
    decoder.set_dtype(torch.float64)
    assert set(matrices(decoder)) == set()
    packed.pack([decoder])
    assert set(matrices(decoder)) == set()
    assert not hasattr(decoder.head, "packed"), "the memory of the copy is free"


def test_copies_of_a_network_have_no_packed_weights(decoder):
    packed.pack([decoder])
    assert not matrices(copy.deepcopy(decoder))


def test_large_networks_are_not_packed(monkeypatch, decoder):
    monkeypatch.setattr(packed, "MAX_BYTES", sum(4 * weight.numel() for weight in decoder.layers.parameters()) // 2)
    packed.pack([decoder])
    assert not matrices(decoder)


def test_decoding_packs_the_weights_of_target_and_drafter(tiny):
    target = load_target(tiny / "target", dtype=torch.float32)
    drafter = load_drafter(tiny / "drafter", target)
    next(iter(new_decoding(target, [[1, 2, 3]], drafting=Drafting("adt-tree"), drafter=drafter)))
    assert matrices(target.decoder)
    assert packed.packed(drafter.layer.qkv) is not None
    assert packed.packed(drafter.fc) is not None


def test_a_copy_is_freed_with_its_weight(decoder):
    packed.pack([decoder])
    held = len(get_runtime().packed_weights)
    number = len(matrices(decoder))
    decoder.layers = decoder.layers[:0]
    gc.collect()
    assert number > 1 and len(get_runtime().packed_weights) == held - number + 1, "the head is left"
