"""Small random checkpoint in Lumina-mGPT 2.0's layout.

The layout follows github.com/Alpha-VLLM/Lumina-mGPT-2.0 (lumina_mgpt):

- The decoder's tensors have Chameleon's names and Lumina-mGPT's shapes. The configuration has no vocabulary map.
- The tokenizer has bytes instead of Qwen's words. Its special tokens have the ids of the published code:
  ``<racm3:break>`` 151665, ``<eoss>`` 151666, ``<reserved08799>`` 151670. Image tokens start at 155000.
- The codec is a state dictionary like ``movqgan_270M.ckpt``. It has further keys that only training uses.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from tokenizers import Tokenizer, pre_tokenizers

from adt_core.models.movq import MoVQ
from adt_core.models.vq import VQConfig
from tests.layouts.lumina import save_shards
from tests.layouts.tokens import tokenizer_with
from tests.tiny import chameleon_config, chameleon_tensors

CODES = 40
FIRST_CODE = 155000
MARKS = {
    "<|endoftext|>": 151643,
    "<racm3:break>": 151665,
    "<eoss>": 151666,
    **{f"<reserved{8796 + i:05}>": 151667 + i for i in range(100)},
    "<reserved08706>": 151800,
}
CODEC = VQConfig(4, CODES, 4, 768, 3, 32, (1, 2, 2, 1), 1, attention=True)


def write_lumina2(folder: Path, *, kv_heads: int = 4, scale: float = 1.0) -> Path:
    """Write a random target in two files, with ``movqgan_270M.ckpt`` in the folder above it.

    A larger ``scale`` of the logits sharpens the distributions.
    """
    folder.mkdir(parents=True, exist_ok=True)
    words = FIRST_CODE + 16384 + 1
    config = chameleon_config(words, 32, intermediate=48, layers=2, heads=4, kv_heads=kv_heads, max_positions=10240)
    config |= {"mask_image_logits": False, "vocabulary_map": None, "bos_token_id": None, "tie_word_embeddings": False}
    tensors = chameleon_tensors(config, scale, 0)
    tensors["model.vqmodel.quantize.embedding.weight"] = torch.zeros(4, 4)  # Chameleon's codec is not used
    shared = {name: value[:1].clone() for name, value in tensors.items() if "self_attn" in name and "_norm." in name}
    save_shards(folder, tensors | shared, 2)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    _tokenizer().save(str(folder / "tokenizer.json"))
    tokenizer_config = {"bos_token": None, "eos_token": "<|endoftext|>", "tokenizer_class": "Qwen2Tokenizer"}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config), encoding="utf-8")
    torch.save({**random_codec(0).state_dict(), "loss.logvar": torch.zeros(())}, folder.parent / "movqgan_270M.ckpt")
    return folder


def random_codec(seed: int) -> MoVQ:
    """Return a codec with random weights."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        codec = MoVQ(CODEC).eval()
    for name, parameter in codec.named_parameters():
        if name.endswith(("conv_y.bias", "norm.weight")):
            parameter.data.add_(1)
    return codec


def _tokenizer() -> Tokenizer:
    """Return a byte tokenizer with special tokens at Qwen's ids. There are gaps between the ids."""
    vocabulary = {token: i for i, token in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    return tokenizer_with(MARKS, vocabulary | MARKS)
