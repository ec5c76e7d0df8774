"""Small random checkpoint in GLM-Image's layout (``zai-org/GLM-Image``): the first stage and part of the second.

The model class of transformers writes the weights into ``vision_language_encoder``. The tokenizer is in ``processor``.
Code n is the token ``<|dit_token_n|>`` with id n. The next ids are the tokens that begin and end an image. The last ids
are the text tokens.
"""

from __future__ import annotations

from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer, pre_tokenizers

from adt_core.models.families.glm_image import BEGIN_GRID, BEGIN_IMAGE, END_GRID, END_IMAGE
from tests.layouts.janus import randomise
from tests.layouts.lumina import save_shards
from tests.layouts.tokens import tokenizer_with

CODES = 40
HEAD = 48  # number of tokens that the output head predicts: the codes and a few others
IMAGE = "<|image|>"


def write_glm_image(folder: Path, *, scale: float = 1.0) -> Path:
    """Write a random target in two files. A larger ``scale`` of the logits sharpens the distributions."""
    stage = folder / "vision_language_encoder"
    processor = folder / "processor"
    for part in (stage, processor, folder / "transformer"):
        part.mkdir(parents=True, exist_ok=True)
    tokenizer = _tokenizer()
    tokenizer.save(str(processor / "tokenizer.json"))
    config = _config(tokenizer)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = transformers.GlmImageForConditionalGeneration(config).eval()
        randomise(model)
        model.lm_head.weight.data.mul_(scale)
    config.architectures = ["GlmImageForConditionalGeneration"]
    config.save_pretrained(stage)
    save_shards(stage, model.state_dict(), 2)
    (folder / "model_index.json").write_text('{"_class_name": "GlmImagePipeline"}', encoding="utf-8")
    name = '{"_class_name": "GlmImageTransformer2DModel"}'
    (folder / "transformer" / "config.json").write_text(name, encoding="utf-8")
    return folder


def their_logits(model, inputs: dict, codes: list[int]) -> torch.Tensor:
    """Return the logits of the transformers model after a prompt and after each code.

    Args:
        inputs: Inputs of the prompt, with the grids of its images.

    Returns:
        Logits [1 + n, V], where V is the size of the output head.
    """
    first = model(**inputs, use_cache=True)
    if not codes:
        return first.logits[0, -1:]
    name = "cache" if "cache" in first else "past_key_values"
    grids = {name: inputs[name] for name in ("image_grid_thw", "images_per_sample")}
    rest = model(torch.tensor([codes]), **grids, **{name: first[name]}, use_cache=True)
    return torch.cat([first.logits[0, -1:], rest.logits[0]])


def _config(tokenizer: Tokenizer) -> transformers.GlmImageConfig:
    end = tokenizer.token_to_id(END_IMAGE)
    return transformers.GlmImageConfig(
        text_config={
            "vocab_size": tokenizer.get_vocab_size() + HEAD,
            "vision_vocab_size": HEAD,
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 5000,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000.0,
                "partial_rotary_factor": 0.5,
                "mrope_section": [2, 1, 1],  # half of the 16 elements of a head are rotated, two per pair
            },
            "pad_token_id": tokenizer.token_to_id(IMAGE),
            "eos_token_id": end,
        },
        vision_config={"depth": 2, "hidden_size": 32, "num_heads": 2, "image_size": 64, "intermediate_size": 48},
        vq_config={"embed_dim": 24, "num_embeddings": CODES, "latent_channels": 32},
        image_token_id=tokenizer.token_to_id(IMAGE),
        image_start_token_id=tokenizer.token_to_id(BEGIN_IMAGE),
        image_end_token_id=end,
    )


def _tokenizer() -> Tokenizer:
    """Return a tokenizer with the image tokens first. The byte tokens, in GLM-4's style, follow after them."""
    codes = [*(f"<|dit_token_{code}|>" for code in range(CODES)), BEGIN_IMAGE, END_IMAGE]
    others = [BEGIN_GRID, END_GRID, IMAGE]
    names = [*codes, *sorted(pre_tokenizers.ByteLevel.alphabet()), *others]
    return tokenizer_with([*codes, *others], {name: i for i, name in enumerate(names)})
