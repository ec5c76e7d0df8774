"""Stage 6: write the shipped checkpoints, fp16 safetensors in the published layouts.

    python -m training.export --tokens DIR --codec codec.pt --target target.pt --drafter drafter.pt --out adt_core/bundled
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from adt_core.models.decoder import Decoder, Layer

from .codec import CONFIG
from .drafter import make_drafter
from .target import open_sequences, trained_decoder


def layer_tensors(layer: Layer, prefix: str) -> dict[str, Tensor]:
    """A layer's fused parameters under their Hugging Face names."""
    c = layer.config
    kv = c.num_kv_heads * c.head_dim
    q, k, v = layer.qkv.T.split([c.hidden_size, kv, kv])
    gate, up = layer.gate_up.T.chunk(2)
    tensors = {"self_attn.q_proj.weight": q, "self_attn.k_proj.weight": k, "self_attn.v_proj.weight": v, "self_attn.o_proj.weight": layer.out.T,
               "mlp.gate_proj.weight": gate, "mlp.up_proj.weight": up, "mlp.down_proj.weight": layer.down.T,
               "post_attention_layernorm.weight": layer.mlp_norm, "input_layernorm.weight": layer.input_norm}
    for kind, norm in (("weight", layer.qk_norm_weight), ("bias", layer.qk_norm_bias)):
        tensors[f"self_attn.q_norm.{kind}"], tensors[f"self_attn.k_norm.{kind}"] = norm.split([c.num_heads, c.num_kv_heads])
    return {f"{prefix}.{name}": value for name, value in tensors.items()}


def hf_config(decoder: Decoder, vocabulary: dict[str, int]) -> dict:
    c = decoder.config
    vq = {"model_type": "chameleon_vqgan", "embed_dim": CONFIG.embed_dim, "num_embeddings": CONFIG.num_embeddings, "double_latent": False,
          "latent_channels": CONFIG.latent_channels, "resolution": CONFIG.resolution, "in_channels": 3, "base_channels": CONFIG.base_channels,
          "channel_multiplier": list(CONFIG.channel_multiplier), "num_res_blocks": CONFIG.num_res_blocks, "attn_resolutions": None,
          "dropout": 0.0, "attn_type": "vanilla"}
    return {"architectures": ["ChameleonForConditionalGeneration"], "model_type": "chameleon", "torch_dtype": "float16",
            "vocab_size": c.vocab_size, "hidden_size": c.hidden_size, "intermediate_size": c.intermediate_size,
            "num_hidden_layers": c.num_layers, "num_attention_heads": c.num_heads, "num_key_value_heads": c.num_kv_heads,
            "hidden_act": "silu", "max_position_embeddings": c.max_positions, "rms_norm_eps": c.rms_norm_eps, "rope_theta": c.rope_theta,
            "attention_bias": False, "mlp_bias": False, "model_parallel_size": 1, "swin_norm": False, "tie_word_embeddings": False,
            "bos_token_id": vocabulary["<s>"], "pad_token_id": vocabulary["<pad>"], "eos_token_id": vocabulary["</s>"],
            "vocabulary_map": vocabulary, "vq_config": vq}


def write(folder: Path, tensors: dict[str, Tensor], config: dict) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: value.detach().half().contiguous() for name, value in tensors.items()}, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("tokens", "codec", "target", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--drafter", type=Path)
    args = parser.parse_args()
    vocabulary = open_sequences(args.tokens).vocabulary
    decoder = trained_decoder(args.target, vocabulary)
    config = hf_config(decoder, vocabulary)
    head = torch.zeros(len(vocabulary), decoder.config.hidden_size)  # only image tokens are ever predicted
    head[decoder.image_ids] = decoder.head.detach().T
    tensors = {"model.embed_tokens.weight": decoder.embedding, "model.norm.weight": decoder.norm, "lm_head.weight": head}
    for i, layer in enumerate(decoder.layers):
        tensors |= layer_tensors(layer, f"model.layers.{i}")
    codec = torch.load(args.codec, weights_only=True)["weights"]
    write(args.out / "target", tensors | {f"model.vqmodel.{name}": value for name, value in codec.items()}, config)
    shutil.copyfile(args.tokens / "tokenizer.json", args.out / "target" / "tokenizer.json")
    if args.drafter:
        drafter = make_drafter(decoder)
        drafter.load_state_dict(torch.load(args.drafter, weights_only=True)["average"])
        tensors = {"embed_tokens.weight": drafter.embedding, "fc.weight": drafter.fc.T, "fc.bias": drafter.fc_bias}
        write(args.out / "drafter", tensors | layer_tensors(drafter.layer, "layers.0"), {**config, "num_hidden_layers": 1})


if __name__ == "__main__":
    main()
