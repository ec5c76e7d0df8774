"""Trained weights in the published layouts."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor

from ..app.images import write
from ..drafters.eagle import EagleDrafter
from ..drafters.eagle_files import LLAMAGEN_GRIDS
from ..models.layers import Layer
from ..models.layout import paired


def layer_tensors(layer: Layer, prefix: str) -> dict[str, Tensor]:
    """A layer's fused parameters under their Hugging Face names."""
    c = layer.config
    kv = c.num_kv_heads * c.head_dim
    q, k, v = layer.qkv.T.split([c.hidden_size, kv, kv])
    if c.grid_rope:
        q, k = paired(c.head_dim)(q), paired(c.head_dim)(k)
    gate, up = layer.gate_up.T.chunk(2)
    attention = {"q_proj.weight": q, "k_proj.weight": k, "v_proj.weight": v, "o_proj.weight": layer.out.T}
    if layer.qk_norm_weight is not None and layer.qk_norm_bias is not None:
        for kind, norm in (("weight", layer.qk_norm_weight), ("bias", layer.qk_norm_bias)):
            heads = norm.split([c.num_heads, c.num_kv_heads])
            attention |= {f"q_norm.{kind}": heads[0], f"k_norm.{kind}": heads[1]}
    tensors = {
        **{f"self_attn.{name}": value for name, value in attention.items()},
        "mlp.gate_proj.weight": gate,
        "mlp.up_proj.weight": up,
        "mlp.down_proj.weight": layer.down.T,
        "post_attention_layernorm.weight": layer.mlp_norm,
        **({} if layer.input_norm is None else {"input_layernorm.weight": layer.input_norm}),
    }
    return {f"{prefix}.{name}": value for name, value in tensors.items()}


def drafter_tensors(drafter: EagleDrafter) -> dict[str, Tensor]:
    """A drafter's parameters under the names of ``jadohu/anole_drafter``."""
    tensors = {"embed_tokens.weight": drafter.embedding, "fc.weight": drafter.fc.T, "fc.bias": drafter.fc_bias}
    return tensors | layer_tensors(drafter.layer, "layers.0")


def config_fields(drafter: EagleDrafter) -> dict:
    """The fields of a ``config.json`` that shape a drafter."""
    c = drafter.config
    stage = next((name for name, grid in LLAMAGEN_GRIDS.items() if grid == c.grid_rope), None)
    return {
        **({"input_type": stage} if stage else {}),
        "vocab_size": c.vocab_size,
        "hidden_size": c.hidden_size,
        "intermediate_size": c.intermediate_size,
        "num_hidden_layers": 1,
        "num_attention_heads": c.num_heads,
        "num_key_value_heads": c.num_kv_heads,
        "rms_norm_eps": c.rms_norm_eps,
        "rope_theta": c.rope_theta,
        "max_position_embeddings": c.max_positions,
    }


def write_checkpoint(
    folder: Path, tensors: dict[str, Tensor], config: dict, dtype: torch.dtype = torch.float16
) -> None:
    """``config.json`` and ``model.safetensors``, each whole or not at all."""
    stored = {name: value.detach().to("cpu", dtype).contiguous() for name, value in tensors.items()}
    write(folder / "model.safetensors", save(stored, {"format": "pt"}))
    write(folder / "config.json", (json.dumps(config, indent=1) + "\n").encode())
