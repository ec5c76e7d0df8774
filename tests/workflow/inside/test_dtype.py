"""The dtype that the Model Loader chooses for a card."""

import pytest
import torch
from small import SMALL

CARDS = {
    "with bfloat16": (True, 8e9, torch.bfloat16),
    "without bfloat16, large enough for float32": (False, 8e9, torch.float32),
    "without bfloat16, too small for float32": (False, 1e5, torch.float16),
}
"""Name -> whether the card has bfloat16, its bytes of memory, and what is chosen."""


@pytest.fixture
def chosen(pack, monkeypatch):
    """A function: the dtype that is chosen for a card, and what is shown under the node."""
    loaders, shown = pack.package(".nodes.loaders"), []
    monkeypatch.setattr(loaders, "tell", shown.append)

    def choose(has_bfloat16, memory, model=SMALL, weights=None):
        path = model if model == "bundled" else str(pack.base / "models" / "ar_image" / model)
        for name, value in {
            "get_torch_device": torch.device("cuda"),
            "should_use_bf16": has_bfloat16,
            "should_use_fp16": True,
            "get_total_memory": memory,
        }.items():
            monkeypatch.setattr(loaders.mm, name, lambda *_, value=value: value)
        return loaders.auto_dtype(path, weights), shown

    return choose


@pytest.mark.parametrize("card", CARDS)
def test_half_precision_is_chosen_where_it_is_safe(chosen, card):
    has_bfloat16, memory, expected = CARDS[card]
    dtype, shown = chosen(has_bfloat16, memory)
    assert dtype == expected
    assert [line.startswith("float16, because this card has no bfloat16") for line in shown] == (
        [True] if expected == torch.float16 else []
    )


def test_stored_in_a_byte_each_weights_compute_in_float32_on_cards_without_bfloat16(chosen):
    assert chosen(False, 1e5, weights="int8") == (torch.float32, [])
    assert chosen(True, 1e5, weights="int8") == (torch.bfloat16, [])


def test_the_bundled_model_is_small_enough_for_float32(chosen):
    assert chosen(True, 8e9, model="bundled") == (torch.float32, [])
