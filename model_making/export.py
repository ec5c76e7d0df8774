"""Stage 5: export the target as fp16 safetensors in Chameleon's published layout.

    python -m model_making.export --tokens DIR --target target.safetensors --out adt_core/bundled/target
        [--codec codec.safetensors]

Without ``--codec``, the bundled model's codec is exported. The script also writes the caption words, grouped into
things, scenery and others, to ``words.json`` in the parent folder of ``--out``.
"""

from __future__ import annotations

import argparse
import json
import shutil
from dataclasses import asdict
from pathlib import Path

import torch

from adt_core.lab.training.save import layer_tensors, write_checkpoint
from adt_core.models.layers import Decoder

from .captions import known_words
from .codec import CONFIG
from .target import trained_decoder, vocabulary
from .tokenise import open_codec

VQ_CONFIG = {
    "model_type": "chameleon_vqgan",
    **{name: value for name, value in asdict(CONFIG).items() if name not in ("attention", "normalised")},
    "double_latent": False,
    "attn_resolutions": None,
    "dropout": 0.0,
    "attn_type": "vanilla",
}


def hf_config(decoder: Decoder, vocabulary: dict[str, int]) -> dict:
    """Return the contents of ``config.json``."""
    c = decoder.config
    return {
        "architectures": ["ChameleonForConditionalGeneration"],
        "model_type": "chameleon",
        "torch_dtype": "float16",
        "vocab_size": c.vocab_size,
        "hidden_size": c.hidden_size,
        "intermediate_size": c.intermediate_size,
        "num_hidden_layers": c.num_layers,
        "num_attention_heads": c.num_heads,
        "num_key_value_heads": c.num_kv_heads,
        "hidden_act": "silu",
        "max_position_embeddings": c.max_positions,
        "rms_norm_eps": c.rms_norm_eps,
        "rope_theta": c.rope_theta,
        "attention_bias": False,
        "mlp_bias": False,
        "model_parallel_size": 1,
        "swin_norm": False,
        "tie_word_embeddings": False,
        "bos_token_id": vocabulary["<s>"],
        "pad_token_id": vocabulary["<pad>"],
        "eos_token_id": vocabulary["</s>"],
        "vocabulary_map": vocabulary,
        "vq_config": VQ_CONFIG,
    }


def write_words(path: Path) -> None:
    """Write the groups of words from :func:`model_making.captions.known_words` as JSON."""
    path.write_text(json.dumps(known_words(), indent=0) + "\n", encoding="utf-8")


def main() -> None:
    """Export the target."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("tokens", "target", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--codec", type=Path, help="codec.safetensors of stage 2")
    args = parser.parse_args()
    names = vocabulary(args.tokens)
    decoder = trained_decoder(args.target, names)
    head = torch.zeros(len(names), decoder.config.hidden_size)  # rows of text tokens stay zero
    head[decoder.image_ids] = decoder.head.detach().T
    tensors = {
        "model.embed_tokens.weight": decoder.embedding,
        "model.norm.weight": decoder.norm,
        "lm_head.weight": head,
    }
    for i, layer in enumerate(decoder.layers):
        tensors |= layer_tensors(layer, f"model.layers.{i}")
    tensors |= {f"model.vqmodel.{name}": value for name, value in open_codec(args.codec).state_dict().items()}
    write_checkpoint(args.out, tensors, hf_config(decoder, names), torch.float16)
    shutil.copyfile(args.tokens / "tokenizer.json", args.out / "tokenizer.json")
    write_words(args.out.parent / "words.json")


if __name__ == "__main__":
    main()
