"""CLIP models in open_clip's layout, such as the published file of HPSv2, as models of transformers.

The layout is described in https://github.com/mlfoundations/open_clip (`open_clip/transformer.py`). The file contains
only tensors, so the sizes of the model follow from their shapes, except for the number of attention heads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor

HEADS = 16
"""Number of attention heads of ViT-H-14, the architecture of HPSv2, for images and for texts."""
_NAMES = {
    "visual.conv1.": "vision_model.embeddings.patch_embedding.",
    "visual.class_embedding": "vision_model.embeddings.class_embedding",
    "visual.positional_embedding": "vision_model.embeddings.position_embedding.weight",
    "visual.ln_pre.": "vision_model.pre_layrnorm.",
    "visual.ln_post.": "vision_model.post_layernorm.",
    "visual.transformer.resblocks.": "vision_model.encoder.layers.",
    "visual.proj": "visual_projection.weight",
    "token_embedding.": "text_model.embeddings.token_embedding.",
    "positional_embedding": "text_model.embeddings.position_embedding.weight",
    "ln_final.": "text_model.final_layer_norm.",
    "transformer.resblocks.": "text_model.encoder.layers.",
    "text_projection": "text_projection.weight",
    "logit_scale": "logit_scale",
}
"""Names of tensors or beginnings of names: open_clip's -> transformers'."""
_IN_LAYER = {
    ".ln_1.": ".layer_norm1.",
    ".ln_2.": ".layer_norm2.",
    ".mlp.c_fc.": ".mlp.fc1.",
    ".mlp.c_proj.": ".mlp.fc2.",
    ".attn.out_proj.": ".self_attn.out_proj.",
}
"""Parts of the names of a layer's tensors: open_clip's -> transformers'."""


def clip_model(tensors: Mapping[str, Tensor], heads: int = HEADS) -> Any:
    """Return the CLIPModel of transformers that has these weights. Other tensors raise KeyError or RuntimeError."""
    from transformers import CLIPConfig, CLIPModel

    patches, width = tensors["visual.positional_embedding"].shape
    patch = tensors["visual.conv1.weight"].shape[-1]
    vocabulary, text_width = tensors["token_embedding.weight"].shape
    vision = _sizes(tensors, "visual.transformer.", width, heads)
    text = _sizes(tensors, "transformer.", text_width, heads)
    vision |= {"patch_size": patch, "image_size": patch * math.isqrt(patches - 1)}
    text |= {"vocab_size": vocabulary, "max_position_embeddings": len(tensors["positional_embedding"])}
    text |= {"bos_token_id": vocabulary - 2, "eos_token_id": vocabulary - 1}
    embedding = tensors["text_projection"].shape[1]
    model = CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=embedding))
    model.load_state_dict({name: value for item in tensors.items() for name, value in _renamed(*item)})
    return model


def _sizes(tensors: Mapping[str, Tensor], prefix: str, width: int, heads: int) -> dict[str, Any]:
    """Return the part of a configuration that texts and images have in common."""
    layers = [name for name in tensors if name.startswith(prefix) and name.endswith(".mlp.c_fc.weight")]
    return {
        "hidden_size": width,
        "intermediate_size": len(tensors[f"{prefix}resblocks.0.mlp.c_fc.weight"]),
        "num_hidden_layers": len(layers),
        "num_attention_heads": heads,
        "hidden_act": "gelu",
    }


def _renamed(name: str, value: Tensor) -> list[tuple[str, Tensor]]:
    """Return pairs (transformers' name, tensor) for a tensor of open_clip."""
    if name == "attn_mask":  # a constant that old files contain
        return []
    start = max((start for start in _NAMES if name.startswith(start)), key=len, default="")
    name = _NAMES.get(start, "") + name.removeprefix(start)
    for part, other in _IN_LAYER.items():
        name = name.replace(part, other)
    if name.endswith("_projection.weight"):
        value = value.T
    before, packed, kind = name.partition(".attn.in_proj_")
    if not packed:
        return [(name, value)]
    return [(f"{before}.self_attn.{one}_proj.{kind}", part) for one, part in zip("qkv", value.chunk(3))]
