"""Small random checkpoint in Emu3-Gen's layout (``BAAI/Emu3-Gen-hf``).

The model class of transformers writes the files. The token names follow models/emu3/convert_emu3_weights_to_hf.py in
transformers and emu3/mllm/tokenization_emu3.py in github.com/baaivision/Emu3. The order of the tokens is:
``<|endoftext|>``, chat marks, 205 extra tokens, image tokens.

The files published by BAAI have the tensor names of the model class's first versions (early 2025). These names start
with ``text_model.model.``, ``text_model.lm_head.`` or ``vqmodel.``, and ``rope_theta`` is at the top level of
config.json. conversion_mapping.py in transformers renames these tensors.
"""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import Emu3Config, Emu3ForConditionalGeneration

from tests.layouts.edits import edit_config
from tests.layouts.janus import randomise
from tests.layouts.lumina import save_shards
from tests.layouts.tokens import tokenizer_with

CODES = 40
SPECIAL = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
    *(f"<|extra_{i}|>" for i in range(205)),
    *("<|image start|>", "<|image end|>", "<|image token|>", "<image>"),
    *(f"<|visual token {i:06}|>" for i in range(CODES)),
)


def write_emu3(
    folder: Path, *, names: str = "first", layers: int = 2, rope_theta: float = 1e6, scale: float = 1.0
) -> Path:
    """Write a random target in two files.

    Args:
        names: "first" for the tensor names of the class's first versions, "present" for the names of new versions.
        scale: Factor of the logits; larger values sharpen the distributions.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = tokenizer_with(SPECIAL)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = _config(tokenizer.get_vocab(), layers, rope_theta)
    config.save_pretrained(folder)
    tensors = _random_tensors(config, scale)
    if names == "first":
        tensors = {_first_name(name): value for name, value in tensors.items()}
        edit_config(folder, lambda fields: _use_first_rope(fields["text_config"]))
    save_shards(folder, tensors, 2)
    return folder


def _use_first_rope(text: dict) -> None:
    text |= {"rope_theta": text.pop("rope_parameters")["rope_theta"], "rope_scaling": None}


def _random_tensors(config: Emu3Config, scale: float) -> dict[str, torch.Tensor]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Emu3ForConditionalGeneration(config).eval()
        randomise(model)
        model.lm_head.weight.data.mul_(scale)
        for name, buffer in model.model.vqmodel.named_buffers():  # statistics of batch normalisation
            if name.endswith(("running_mean", "running_var")):
                buffer.uniform_(0.5, 1.5)
    return model.state_dict()


def _config(vocabulary: dict, layers: int, rope_theta: float) -> Emu3Config:
    return Emu3Config(
        text_config={
            "vocab_size": len(vocabulary) + 5,
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": layers,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 600,
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


def _first_name(name: str) -> str:
    """Convert a tensor name to the name in the class's first versions."""
    name = name.replace("model.text_model.", "text_model.model.", 1).replace("lm_head.", "text_model.lm_head.", 1)
    return name.removeprefix("model.")
