"""Small random checkpoint in Liquid's layout (``Junfeng5/Liquid_V1_7B``).

The Gemma class of transformers writes the files. config.json has the same fields as the published repository, which was
saved with transformers 4.39. The tokenizer has Gemma's type, with bytes instead of words. Three of its unused tokens
have the names from TRAIN.md in github.com/FoundationVision/Liquid. Chameleon's VQGAN is next to the folder, in Meta's
format.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, models, normalizers
from transformers import GemmaConfig, GemmaForCausalLM

from adt_core.models.vq import VQConfig, VQModel
from tests.layouts.janus import randomise
from tests.layouts.lumina import save_shards

CODES = 40
FIRST_CODE = 256000
MARKS = ("<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<2mass>", "[@BOS@]", "<boi>", "<eoi>", "<unconditional>")
CODEC = VQConfig(6, CODES, 32, 512, 3, 32, (1,) * 7, 1)
"""Codec with 64 pixels per token in each direction, so that an image has 64 tokens."""


def write_liquid(folder: Path, *, kv_heads: int = 4) -> Path:
    """Write a random target in two files, with ``vqgan.ckpt`` in the folder above it."""
    folder.mkdir(parents=True, exist_ok=True)
    config = _config(kv_heads)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = GemmaForCausalLM(GemmaConfig(**config))
        codec = VQModel(CODEC)
        randomise(model)
        model.model.embed_tokens.weight.data.normal_(std=config["hidden_size"] ** -0.5)
    tensors = {name: value for name, value in model.state_dict().items() if name != "lm_head.weight"}
    save_shards(folder, tensors, 2)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    _tokenizer().save(str(folder / "tokenizer.json"))
    stored = {**codec.state_dict(), "loss.discriminator.main.0.weight": torch.zeros(4, 3, 4, 4)}
    torch.save({"state_dict": stored}, folder.parent / "vqgan.ckpt")
    return folder


def _config(kv_heads: int) -> dict:
    return {
        "architectures": ["GemmaForCausalLM"],
        "attention_bias": False,
        "bos_token_id": 2,
        "eos_token_id": 1,
        "head_dim": 16,
        "hidden_act": "gelu",
        "hidden_activation": None,
        "hidden_size": 32,
        "intermediate_size": 48,
        "max_position_embeddings": 8192,
        "model_type": "gemma",
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "num_key_value_heads": kv_heads,
        "pad_token_id": 0,
        "rms_norm_eps": 1e-6,
        "rope_scaling": None,
        "rope_theta": 10000.0,
        "vocab_size": FIRST_CODE + 8192,
    }


def _tokenizer() -> Tokenizer:
    words = (*MARKS, *(f"<0x{byte:02X}>" for byte in range(256)))
    vocabulary = {word: number for number, word in enumerate(words)}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in MARKS])
    return tokenizer
