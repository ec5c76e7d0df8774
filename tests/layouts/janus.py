"""Small random checkpoints in Janus-Pro's two layouts.

transformers' layout (``deepseek-community/Janus-Pro-1B``): the model class of transformers writes the files.

DeepSeek's layout (``deepseek-ai/Janus-Pro-1B``): one file ``pytorch_model.bin``, or several files with an index for
Janus-Pro-7B. Tensor names follow the modules in github.com/deepseek-ai/Janus (janus/models: modeling_vlm, vq_model,
projector, clip_encoder). The script models/janus/convert_janus_weights_to_hf.py in transformers converts the same names
and reads the same fields of config.json.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import JanusConfig, JanusForConditionalGeneration

from tests.layouts.lumina import save_shards
from tests.layouts.tokens import tokenizer_with

BOS = "<｜begin▁of▁sentence｜>"
PAD = "<｜▁pad▁｜>"
BEGIN_IMAGE = "<begin_of_image>"
SPECIAL = (
    *(BOS, "<｜end▁of▁sentence｜>", PAD, "<|User|>", "<|Assistant|>"),
    *(BEGIN_IMAGE, "<end_of_image>", "<image_placeholder>"),
)
CODES = 40
_NAMES = (  # part of transformers' name -> part of DeepSeek's name; the replacements are applied in this order
    ("model.language_model.", "language_model.model."),
    ("lm_head.", "language_model.lm_head."),
    ("model.vqmodel.encoder.down.", "gen_vision_model.encoder.conv_blocks."),
    ("model.vqmodel.decoder.up.", "gen_vision_model.decoder.conv_blocks."),
    ("model.vqmodel.", "gen_vision_model."),
    ("mid.block_1.", "mid.0."),
    ("mid.attn_1.", "mid.1."),
    ("mid.block_2.", "mid.2."),
    ("model.generation_embeddings.", "gen_embed."),
    ("model.generation_aligner.fc1.", "gen_aligner.layers.0."),
    ("model.generation_aligner.hidden_layers.0.", "gen_aligner.layers.2."),
    ("model.generation_head.proj_out.", "gen_head.output_mlp_projector."),
    ("model.generation_head.", "gen_head."),
    ("model.aligner.fc1.", "aligner.layers.0."),
    ("model.aligner.hidden_layers.0.", "aligner.layers.2."),
    ("model.vision_model.", "vision_model.vision_tower."),
)


def write_janus(
    folder: Path,
    *,
    layout: str = "transformers",
    hidden: int = 64,
    layers: int = 2,
    heads: int = 4,
    image_size: int = 64,
    scale: float = 1.0,
    shards: int = 1,
) -> Path:
    """Write a random target.

    Args:
        layout: "transformers" or "deepseek".
        image_size: Width and height in pixels. A token has 16 x 16 pixels.
        scale: Factor of the logits; larger values sharpen the distributions.
        shards: Number of files in DeepSeek's layout.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = tokenizer_with(SPECIAL)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = _config(tokenizer, hidden, layers, heads, image_size)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = JanusForConditionalGeneration(config).eval()
        randomise(model)
        model.model.generation_head.vision_head.weight.data.mul_(scale)
    if layout == "transformers":
        model.save_pretrained(folder)
    else:
        _write_deepseek(folder, model, shards)
    return folder


def _config(tokenizer: Tokenizer, hidden: int, layers: int, heads: int, image_size: int) -> JanusConfig:
    return JanusConfig(
        text_config={
            "model_type": "llama",
            "vocab_size": tokenizer.get_vocab_size() + 3,
            "hidden_size": hidden,
            "intermediate_size": 96,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "num_key_value_heads": heads,
            "max_position_embeddings": 200,
            "bos_token_id": tokenizer.token_to_id(BOS),
            "pad_token_id": tokenizer.token_to_id(PAD),
            "eos_token_id": None,
        },
        vision_config={
            "hidden_size": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "image_size": image_size,
            "patch_size": 16,
            "projection_dim": hidden,
            "num_image_tokens": (image_size // 16) ** 2,
        },
        vq_config={
            "num_embeddings": CODES,
            "base_channels": 32,
            "projection_dim": hidden,
            "image_token_embed_dim": hidden,
        },
    )


@torch.no_grad()
def randomise(model: torch.nn.Module) -> None:
    """Fill all parameters with random values.

    The scale of a matrix is chosen so that outputs are as large as inputs. Biases are small; norm weights are near 1.
    """
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1:
            parameter.normal_(std=1 if "embed" in name else parameter[0].numel() ** -0.5)
        else:
            parameter.normal_(mean=float(name.endswith("weight")), std=0.1)


def deepseek_name(name: str) -> str:
    """Convert a tensor name from transformers to DeepSeek.

    For tensors of the vision tower, only the prefix is converted. The rest of the name differs from DeepSeek's name.
    """
    for old, new in _NAMES:
        name = name.replace(old, new) if not old.startswith("lm_head") or name.startswith(old) else name
    return re.sub(r"(conv_blocks\.\d+\.)block\.", r"\1res.", name)


def _write_deepseek(folder: Path, model: JanusForConditionalGeneration, shards: int) -> None:
    tensors = {deepseek_name(name): value for name, value in model.state_dict().items()}
    tensors["gen_vision_model.quantize.codebook_used"] = torch.zeros(65536)
    if shards > 1:
        save_shards(folder, tensors, shards, is_pickled=True)
    else:
        torch.save(tensors, folder / "pytorch_model.bin")
    (folder / "config.json").write_text(json.dumps(_deepseek_config(model.config)), encoding="utf-8")


def _deepseek_config(config: JanusConfig) -> dict:
    """Return DeepSeek's config.json for the same model."""
    hidden = config.text_config.hidden_size
    sizes = "hidden_size intermediate_size max_position_embeddings num_attention_heads num_hidden_layers"
    sizes += " num_key_value_heads vocab_size"
    language = {name: getattr(config.text_config, name) for name in sizes.split()}

    aligner = {"depth": 2, "n_embed": hidden, "projector_type": "mlp_gelu"}
    tower = {"model_name": "siglip_large_patch16_384", "select_feature": "same", "select_layer": -1}
    modules = {
        "aligner": ("MlpProjector", {**aligner, "input_dim": 16}),
        "gen_aligner": ("MlpProjector", {**aligner, "input_dim": 8}),
        "gen_head": ("vision_head", {"image_token_embed": hidden, "image_token_size": CODES, "n_embed": hidden}),
        "gen_vision": ("VQ-16", {"image_token_size": CODES, "n_embed": 8}),
        "vision": ("CLIPVisionTower", {**tower, "image_size": config.vision_config.image_size}),
    }
    return {
        "architectures": ["MultiModalityCausalLM"],
        "model_type": "multi_modality",
        "torch_dtype": "bfloat16",
        "language_config": {**language, "model_type": "llama", "torch_dtype": "bfloat16"},
        **{f"{x}_config": {"cls": kind, "model_type": x, "params": params} for x, (kind, params) in modules.items()},
    }
