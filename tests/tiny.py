"""Tiny random-weight checkpoints in the published layouts, for tests that need no trained model."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from adt_core.models.reading.codec import vq_config
from adt_core.models.vq import VQModel
from model_making.sequences import build_vocabulary


def byte_tokenizer(vocabulary: dict[str, int] | None = None) -> Tokenizer:
    """Return a tokenizer that encodes any prompt byte by byte. By default, its vocabulary consists of the bytes."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocabulary or {token: i for i, token in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def write_tiny_checkpoint(
    folder: Path,
    *,
    hidden: int = 64,
    layers: int = 2,
    heads: int = 4,
    kv_heads: int | None = None,
    intermediate: int = 96,
    codes: int = 40,
    resolution: int = 32,
    max_positions: int = 160,
    scale: float = 1.0,
    seed: int = 0,
    downsample: int = 8,
) -> Path:
    """Write a Chameleon target with random weights. An image has ``resolution / downsample`` tokens per side.

    The logits are multiplied by ``scale``, so a larger scale sharpens the distributions.
    """
    tokenizer = byte_tokenizer()
    vocabulary = build_vocabulary(tokenizer.get_vocab(), codes)
    config = chameleon_config(len(vocabulary), hidden, intermediate, layers, heads, kv_heads or heads, max_positions)
    config |= {
        "vocabulary_map": vocabulary,
        "vq_config": _vq_config(codes, resolution, downsample),
        "bos_token_id": vocabulary["<s>"],
        "pad_token_id": vocabulary["<pad>"],
        "eos_token_id": vocabulary["</s>"],
        "tie_word_embeddings": False,
    }
    tensors = chameleon_tensors(config, scale, seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        codec = VQModel(vq_config(config["vq_config"], folder))
    tensors |= {f"model.vqmodel.{name}": value.clone() for name, value in codec.state_dict().items()}
    save_checkpoint(folder, config, tensors)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def chameleon_config(
    words: int, hidden: int, intermediate: int, layers: int, heads: int, kv_heads: int, max_positions: int
) -> dict:
    """Return the config.json of a Chameleon decoder with a vocabulary of ``words`` entries."""
    return {
        "architectures": ["ChameleonForConditionalGeneration"],
        "model_type": "chameleon",
        "vocab_size": words,
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": max_positions,
        "hidden_act": "silu",
        "model_parallel_size": 1,
        "swin_norm": False,
    }


def _vq_config(codes: int, resolution: int, downsample: int) -> dict:
    return {
        "embed_dim": 6,
        "num_embeddings": codes,
        "latent_channels": 32,
        "resolution": resolution,
        "in_channels": 3,
        "base_channels": 32,
        "channel_multiplier": [1] * downsample.bit_length(),
        "num_res_blocks": 1,
        "double_latent": False,
        "attn_type": "vanilla",
        "model_type": "chameleon_vqgan",
    }


def write_tiny_drafter(folder: Path, target: Path, *, seed: int = 1, hidden: int | None = None) -> Path:
    """Write a random EAGLE drafter with the embedding of its target.

    With ``hidden``, the drafter has this hidden size and a random embedding, so it doesn't match the target.
    """
    from safetensors.torch import load_file

    config = json.loads((target / "config.json").read_text(encoding="utf-8"))
    width = hidden or config["hidden_size"]
    generator = torch.Generator().manual_seed(seed)
    embedding = load_file(target / "model.safetensors")["model.embed_tokens.weight"]
    if hidden:
        embedding = _normal(generator, config["vocab_size"], width)
    tensors = {
        "embed_tokens.weight": embedding,
        "fc.weight": _normal(generator, width, 2 * width) * (2 * width) ** -0.5,
        "fc.bias": 0.1 * _normal(generator, width),
    }
    config |= {"hidden_size": width, "num_hidden_layers": 1}
    return save_checkpoint(folder, config, tensors | _layers(generator, "layers", config))


def save_checkpoint(folder: Path, config: dict, tensors: dict[str, torch.Tensor]) -> Path:
    """Write a checkpoint in one file and its config.json, and return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: value.contiguous() for name, value in tensors.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def chameleon_tensors(config: dict, scale: float, seed: int) -> dict[str, torch.Tensor]:
    """Return random tensors of a Chameleon decoder; a larger ``scale`` sharpens its distributions."""
    words = config["vocab_size"]
    hidden = config["hidden_size"]
    generator = torch.Generator().manual_seed(seed)
    tensors = {
        "model.embed_tokens.weight": _normal(generator, words, hidden),
        "model.norm.weight": 1 + 0.1 * _normal(generator, hidden),
        "lm_head.weight": _normal(generator, words, hidden) * scale * hidden**-0.5,
    }
    return tensors | _layers(generator, "model.layers", config)


def _layers(generator: torch.Generator, prefix: str, config: dict) -> dict[str, torch.Tensor]:
    """Return random tensors of all decoder layers that a config.json describes."""
    sizes = "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads"
    shape = [config[name] for name in sizes]
    tensors = {}
    for i in range(config["num_hidden_layers"]):
        tensors |= layer_tensors(generator, f"{prefix}.{i}", *shape)
    return tensors


def layer_tensors(
    generator: torch.Generator, prefix: str, hidden: int, intermediate: int, heads: int, kv_heads: int, dim: int = 0
) -> dict[str, torch.Tensor]:
    """Return random tensors of one Chameleon decoder layer, by their Hugging Face names.

    ``dim`` is the width of an attention head. The default 0 means ``hidden // heads``.
    """
    dim = dim or hidden // heads
    sizes = {
        "self_attn.q_proj": (heads * dim, hidden),
        "self_attn.k_proj": (kv_heads * dim, hidden),
        "self_attn.v_proj": (kv_heads * dim, hidden),
        "self_attn.o_proj": (hidden, heads * dim),
        "mlp.gate_proj": (intermediate, hidden),
        "mlp.up_proj": (intermediate, hidden),
        "mlp.down_proj": (hidden, intermediate),
    }
    tensors = {f"{prefix}.{name}.weight": _normal(generator, *size) * size[1] ** -0.5 for name, size in sizes.items()}
    for norm, n in (("q", heads), ("k", kv_heads)):
        tensors[f"{prefix}.self_attn.{norm}_norm.weight"] = 1 + 0.1 * _normal(generator, n, dim)
        tensors[f"{prefix}.self_attn.{norm}_norm.bias"] = 0.1 * _normal(generator, n, dim)
    for norm in ("input_layernorm", "post_attention_layernorm"):
        tensors[f"{prefix}.{norm}.weight"] = 1 + 0.1 * _normal(generator, hidden)
    return tensors


def _normal(generator: torch.Generator, *size: int) -> torch.Tensor:
    return torch.randn(*size, generator=generator)
