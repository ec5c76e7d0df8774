"""Export of trained weights in the published checkpoint formats."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor

from ...drafters.eagle import EagleDrafter
from ...files import write_in
from ...models.layers import Layer
from ...models.reading.layout import head_order, reorder_heads


def layer_tensors(layer: Layer, prefix: str) -> dict[str, Tensor]:
    """Return the parameters of a layer with the names of Hugging Face's Llama layers.

    This package stores fused matrices (q, k and v in one; gate and up in one), in the shape [in, out]. This function
    splits the fused matrices, and transposes each matrix to [out, in].
    """
    c = layer.config
    kv = c.num_kv_heads * c.head_dim
    q, k, v = layer.qkv.T.split([c.query_width, kv, kv])
    order = head_order(c)
    if order is not None:
        q, k = (reorder_heads(part, order.argsort()) for part in (q, k))
    gate, up = layer.gate_up.T.chunk(2)
    tensors = {
        "self_attn.q_proj.weight": q,
        "self_attn.k_proj.weight": k,
        "self_attn.v_proj.weight": v,
        "self_attn.o_proj.weight": layer.out.T,
        "mlp.gate_proj.weight": gate,
        "mlp.up_proj.weight": up,
        "mlp.down_proj.weight": layer.down.T,
        "post_attention_layernorm.weight": layer.mlp_norm,
    }
    if layer.input_norm is not None:
        tensors["input_layernorm.weight"] = layer.input_norm
    for kind, norm in (("weight", layer.qk_norm_weight), ("bias", layer.qk_norm_bias)):
        if norm is not None:
            q_norm, k_norm = norm.split([c.num_heads, c.num_kv_heads])
            tensors |= {f"self_attn.q_norm.{kind}": q_norm, f"self_attn.k_norm.{kind}": k_norm}
    return {f"{prefix}.{name}": value for name, value in tensors.items()}


def drafter_tensors(drafter: EagleDrafter) -> dict[str, Tensor]:
    """Return a drafter's parameters with the names that the checkpoint `jadohu/anole_drafter` uses."""
    tensors = {"embed_tokens.weight": drafter.embedding, "fc.weight": drafter.fc.T, "fc.bias": drafter.fc_bias}
    return tensors | layer_tensors(drafter.layer, "layers.0")


def write_checkpoint(folder: Path, tensors: dict[str, Tensor], config: dict, dtype: torch.dtype) -> None:
    """Write `config.json` and `model.safetensors`. Each file is replaced atomically."""
    stored = {name: value.detach().to("cpu", dtype).contiguous() for name, value in tensors.items()}
    write_in(folder, "model.safetensors", save(stored, {"format": "pt"}))
    write_in(folder, "config.json", (json.dumps(config, indent=1) + "\n").encode())
