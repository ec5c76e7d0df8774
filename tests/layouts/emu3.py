"""Small random checkpoint in Emu3-Gen's layout (``BAAI/Emu3-Gen-hf``).

The model class of transformers writes the files. The token names follow models/emu3/convert_emu3_weights_to_hf.py in
transformers and emu3/mllm/tokenization_emu3.py in github.com/baaivision/Emu3. The order of the tokens is:
``<|endoftext|>``, chat marks, 205 extra tokens, image tokens.

The files published by BAAI have the tensor names of the model class's first versions (early 2025). These names start
with ``text_model.model.``, ``text_model.lm_head.`` or ``vqmodel.``, and ``rope_theta`` is at the top level of
config.json. conversion_mapping.py in transformers renames these tensors.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from transformers import Emu3Config, Emu3ForConditionalGeneration

from tests.layouts.janus import randomise
from tests.layouts.lumina import save_shards
from tests.layouts.tokens import tokenizer_with

CODES = 40
SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    *(f"<|extra_{i}|>" for i in range(205)),
    "<|image start|>",
    "<|image end|>",
    "<|image token|>",
    "<image>",
    *(f"<|visual token {i:06}|>" for i in range(CODES)),
)


def write_emu3(
    folder: Path,
    *,
    names: str = "first",
    hidden: int = 64,
    layers: int = 2,
    heads: int = 4,
    kv_heads: int = 2,
    max_positions: int = 600,
    rope_theta: float = 1e6,
    scale: float = 1.0,
    shards: int = 2,
    seed: int = 0,
) -> Path:
    """Write a random target.

    Args:
        names: "first" for the tensor names of the class's first versions, "present" for the names of new versions.
        max_positions: Maximum number of positions.
        scale: Factor of the logits; larger values sharpen the distributions.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = tokenizer_with(SPECIAL)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = _config(tokenizer.get_vocab(), hidden, layers, heads, kv_heads, max_positions, rope_theta)
    config.save_pretrained(folder)
    tensors = _random_tensors(config, scale, seed)
    if names == "first":
        tensors = {_first_name(name): value for name, value in tensors.items()}
        _write_first_config(folder)
    save_shards(folder, tensors, shards)
    return folder


def _write_first_config(folder: Path) -> None:
    written = read_config(folder)
    text = written["text_config"]
    text |= {"rope_theta": text.pop("rope_parameters")["rope_theta"], "rope_scaling": None}
    (folder / "config.json").write_text(json.dumps(written), encoding="utf-8")


def _random_tensors(config: Emu3Config, scale: float, seed: int) -> dict[str, torch.Tensor]:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = Emu3ForConditionalGeneration(config).eval()
        randomise(model)
        model.lm_head.weight.data.mul_(scale)
        for name, buffer in model.model.vqmodel.named_buffers():  # statistics of batch normalisation
            if name.endswith(("running_mean", "running_var")):
                buffer.uniform_(0.5, 1.5)
    return model.state_dict()


def _config(
    vocabulary: dict, hidden: int, layers: int, heads: int, kv_heads: int, max_positions: int, rope_theta: float
) -> Emu3Config:
    return Emu3Config(
        text_config={
            "vocab_size": len(vocabulary) + 5,
            "hidden_size": hidden,
            "intermediate_size": 96,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "num_key_value_heads": kv_heads,
            "max_position_embeddings": max_positions,
            "rope_parameters": {"rope_type": "default", "rope_theta": rope_theta},
            "pad_token_id": vocabulary["<|endoftext|>"],
            "bos_token_id": vocabulary["<|extra_203|>"],
            "eos_token_id": vocabulary["<|extra_204|>"],
        },
        vq_config={
            "codebook_size": CODES,
            "base_channels": 32,
            "channel_multiplier": [1, 1, 1, 2],
            "num_res_blocks": 1,
            "hidden_size": 64,
        },
        vocabulary_map=vocabulary,
    )


def read_config(folder: Path) -> dict:
    """Read the config.json of a checkpoint."""
    return json.loads((folder / "config.json").read_text(encoding="utf-8"))


def _first_name(name: str) -> str:
    """Convert a tensor name to the name in the class's first versions."""
    name = name.replace("model.text_model.", "text_model.model.", 1).replace("lm_head.", "text_model.lm_head.", 1)
    return name.removeprefix("model.")
