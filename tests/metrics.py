"""Small random weights of image metrics."""

import json
from pathlib import Path

import torch
from tokenizers import pre_tokenizers


def write_clip(folder: Path) -> Path:
    """Write a random CLIP model with 8 embedding dimensions and a byte tokenizer, and return its folder."""
    from transformers import CLIPConfig, CLIPImageProcessor, CLIPModel, CLIPProcessor, CLIPTokenizer

    layers = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = CLIPConfig(
        text_config={**layers, "vocab_size": 300, "max_position_embeddings": 20, "bos_token_id": 0, "eos_token_id": 1},
        vision_config={**layers, "image_size": 32, "patch_size": 16},
        projection_dim=8,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        CLIPModel(config).save_pretrained(folder)
    tokens = ["<|startoftext|>", "<|endoftext|>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    (folder / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    (folder / "merges.txt").write_text("#version: 0.2\n", encoding="utf-8")
    tokenizer = CLIPTokenizer(str(folder / "vocab.json"), str(folder / "merges.txt"))
    images = CLIPImageProcessor(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32})
    CLIPProcessor(images, tokenizer).save_pretrained(folder)
    return folder
