"""transformers' Chameleon with the weights of a checkpoint in Lumina-mGPT's layout."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import ChameleonConfig, ChameleonForConditionalGeneration, PreTrainedModel


def reference(folder: Path, left_out: str = " ", **fields) -> ChameleonForConditionalGeneration:
    """Load a checkpoint into transformers' Chameleon. The q and k norms are repeated for every head.

    Args:
        left_out: Skip tensors with this text in their name. The default, a space, occurs in no name.
    """
    config = ChameleonConfig(**json.loads((folder / "config.json").read_text(encoding="utf-8")) | fields)
    model = ChameleonForConditionalGeneration(config).eval()
    heads = {"q_norm": config.num_attention_heads, "k_norm": config.num_key_value_heads}
    tensors = {name: value for file in folder.glob("*.safetensors") for name, value in load_file(file).items()}
    expanded = {
        name: value.repeat(heads[name.split(".")[-2]], 1) if ".self_attn." in name and "_norm." in name else value
        for name, value in tensors.items()
        if left_out not in name
    }
    missing, left_over = model.load_state_dict(expanded, strict=False)
    assert all(left_out in name for name in missing) and not left_over
    return model


@torch.no_grad()
def image_logits(model: PreTrainedModel, row: list[int], first: int, count: int) -> torch.Tensor:
    """Return the logits of ``count`` image tokens, from the id ``first`` on, after each token id of a row."""
    features = model.model(input_ids=torch.tensor([row])).last_hidden_state[0]
    return features @ model.lm_head.weight[first : first + count].T
