"""Small random checkpoints in LlamaGen's layouts.

The tensor names and fields follow these sources:

- Transformer, authors' layout: autoregressive/models/gpt.py in github.com/FoundationVision/LlamaGen. The tensors are in
  a dictionary "model", or in "module" if DeepSpeed saved them. The authors' sample_t2i.py reads both. Published example
  with float32 tensors and the same file names: huggingface.co/peizesun/llamagen_t2i.
- Transformer, Hugging Face layout: models/kv_variants/modeling_llamagen_kv.py in github.com/jadohu/LANTERN.
- Codec: tokenizer/tokenizer_image/vq_model.py in FoundationVision/LlamaGen.
- Text encoder: T5 as transformers saves it, including the unused decoder and output head.
- Drafter: models/drafters/cnets_llamagen.py and data/configs/llamagen_t2i_config.json in LANTERN.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers.processors import TemplateProcessing
from torch import Tensor

from tests.tiny import byte_tokenizer

NAMES = {16: "t2i_XL_stage1_256.pt", 32: "t2i_XL_stage2_512.pt"}
T5 = {"d_model": 24, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2, "vocab_size": 264}
T5 |= {"feed_forward_proj": "gated-gelu"}
HIDDEN = 128
HEADS = 2
WIDE = 96  # intermediate size of the MLP
CODES = 40
SHAPE = {
    "vocab_size": CODES,
    "hidden_size": HIDDEN,
    "intermediate_size": WIDE,
    "num_attention_heads": HEADS,
    "num_key_value_heads": HEADS,
    "max_position_embeddings": 2048,
}


def transformer(layers: int = 2) -> dict[str, Tensor]:
    """Return random tensors of the transformer, with the authors' names. A head has width 64 as in published models."""
    draw = _generator(0)
    tensors = {
        "tok_embeddings.weight": draw(CODES, HIDDEN),
        "norm.weight": 1 + 0.1 * draw(HIDDEN),
        "output.weight": 2 * draw(CODES, HIDDEN) * HIDDEN**-0.5,
        "cls_embedding.uncond_embedding": draw(120, T5["d_model"]),
        "cls_embedding.cap_proj.fc1.weight": draw(HIDDEN, T5["d_model"]) * T5["d_model"] ** -0.5,
        "cls_embedding.cap_proj.fc2.weight": draw(HIDDEN, HIDDEN) * HIDDEN**-0.5,
    }
    for i in range(layers):
        tensors |= {
            f"layers.{i}.attention.wqkv.weight": draw(3 * HIDDEN, HIDDEN) * HIDDEN**-0.5,
            f"layers.{i}.attention.wo.weight": draw(HIDDEN, HIDDEN) * HIDDEN**-0.5,
            f"layers.{i}.feed_forward.w1.weight": draw(WIDE, HIDDEN) * HIDDEN**-0.5,
            f"layers.{i}.feed_forward.w3.weight": draw(WIDE, HIDDEN) * HIDDEN**-0.5,
            f"layers.{i}.feed_forward.w2.weight": draw(HIDDEN, WIDE) * WIDE**-0.5,
            f"layers.{i}.attention_norm.weight": 1 + 0.1 * draw(HIDDEN),
            f"layers.{i}.ffn_norm.weight": 1 + 0.1 * draw(HIDDEN),
        }
    return tensors


def hugging_face(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Convert the authors' tensor names to the names in ``jadohu/LlamaGen-T2I``."""
    names = {
        "tok_embeddings": "embed_tokens",
        "attention.wo": "self_attn.o_proj",
        "feed_forward.w1": "mlp.gate_proj",
        "feed_forward.w3": "mlp.up_proj",
        "feed_forward.w2": "mlp.down_proj",
        "attention_norm": "input_layernorm",
        "ffn_norm": "post_attention_layernorm",
        "model.output": "lm_head",
    }
    renamed = {}
    for name, tensor in tensors.items():
        new = f"model.{name}"
        for old, part in names.items():
            new = new.replace(old, part)
        if "wqkv" in name:
            parts = zip("qkv", tensor.chunk(3))
            renamed |= {new.replace("attention.wqkv", f"self_attn.{x}_proj"): part.clone() for x, part in parts}
        else:
            renamed[new] = tensor
    return renamed


class _CodecLayers:
    """Random tensors of a codec's layers, with their names as keys. All layers have the same width."""

    width = 32

    def __init__(self):
        self.draw = _generator(3)
        self.tensors: dict[str, Tensor] = {}

    def conv(self, name: str, outputs: int, inputs: int, kernel: int) -> None:
        self.tensors[f"{name}.weight"] = self.draw(outputs, inputs, kernel, kernel) * (inputs * kernel**2) ** -0.5
        self.tensors[f"{name}.bias"] = 0.1 * self.draw(outputs)

    def norm(self, name: str) -> None:
        self.tensors[f"{name}.weight"] = 1 + 0.1 * self.draw(self.width)
        self.tensors[f"{name}.bias"] = 0.1 * self.draw(self.width)

    def residual(self, name: str) -> None:
        for i in "12":
            self.norm(f"{name}.norm{i}")
            self.conv(f"{name}.conv{i}", self.width, self.width, 3)

    def attention(self, name: str) -> None:
        self.norm(f"{name}.norm")
        for part in ("q", "k", "v", "proj_out"):
            self.conv(f"{name}.{part}", self.width, self.width, 1)


def codec() -> dict[str, Tensor]:
    """Return random tensors of a VQ-16 codec, with the authors' names. All five levels have the same width."""
    layers = _CodecLayers()
    base = layers.width
    latent = 16
    dim = 8
    sides = ("encoder", 3, latent, 2, "downsample"), ("decoder", latent, 3, 3, "upsample")
    for side, inputs, outputs, blocks, resample in sides:
        layers.conv(f"{side}.conv_in", base, inputs, 3)
        for level in range(5):
            for block in range(blocks):
                layers.residual(f"{side}.conv_blocks.{level}.res.{block}")
                if level == (4 if side == "encoder" else 0):  # the lowest resolution
                    layers.attention(f"{side}.conv_blocks.{level}.attn.{block}")
            if level < 4:
                layers.conv(f"{side}.conv_blocks.{level}.{resample}.conv", base, base, 3)
        layers.residual(f"{side}.mid.0")
        layers.attention(f"{side}.mid.1")
        layers.residual(f"{side}.mid.2")
        layers.norm(f"{side}.norm_out")
        layers.conv(f"{side}.conv_out", outputs, base, 3)
    layers.conv("quant_conv", dim, latent, 1)
    layers.conv("post_quant_conv", latent, dim, 1)
    layers.tensors["quantize.embedding.weight"] = layers.draw(CODES, dim)
    layers.tensors["quantize.codebook_used"] = torch.zeros(65536)
    return layers.tensors


def write_t5(folder: Path) -> Path:
    """Write a text encoder, with a byte tokenizer that appends ``</s>``."""
    from transformers import T5Config, T5ForConditionalGeneration

    with torch.random.fork_rng():
        torch.manual_seed(5)
        T5ForConditionalGeneration(T5Config(**T5)).save_pretrained(folder)
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens(["</s>"])
    end = ("</s>", tokenizer.token_to_id("</s>"))
    tokenizer.post_processor = TemplateProcessing(single="$A </s>", special_tokens=[end])
    tokenizer.enable_padding(length=512)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def write_upstream(folder: Path, side: int = 16, wrapper: str = "model", layers: int = 2) -> Path:
    """Write a model in the layout of the authors' README: a ``.pt`` file, the codec, and T5 in ``t5-ckpt``."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.save({wrapper: transformer(layers)}, folder / NAMES[side])
    torch.save({"model": codec()}, folder / "vq_ds16_t2i.pt")
    write_t5(folder / "t5-ckpt" / "flan-t5-xl")
    return folder / NAMES[side]


def write_hugging_face(folder: Path, side: int = 16) -> Path:
    """Write a model in the layout of LANTERN's README: the target in a folder, codec and T5 in the parent folder."""
    target = folder / "LlamaGen-T2I"
    target.mkdir(parents=True, exist_ok=True)
    save_file(hugging_face(transformer()), target / "model.safetensors", metadata={"format": "pt"})
    config = SHAPE | {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "input_type": "t2i",
        "block_size": side**2,
        "cls_token_num": 120,
        "rope_base": 10000,
        "caption_dim": T5["d_model"],
        "class_dropout_p": 0.1,
        "token_dropout_p": 0.1,
        "num_classes": 1000,
        "num_hidden_layers": 2,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
    }
    (target / "config.json").write_text(json.dumps(config), encoding="utf-8")
    torch.save({"model": codec()}, folder / "vq_ds16_t2i.pt")
    write_t5(folder / "t5" / "flan-t5-xl")
    return target


def drafter() -> dict[str, Tensor]:
    """Return random tensors of an EAGLE drafter.

    The drafter has no norm before its attention. Its embedding differs from the target's embedding.
    """
    draw = _generator(7)
    layer = "layers.0"
    tensors = {
        "embed_tokens.weight": transformer()["output.weight"],
        "fc.weight": draw(HIDDEN, 2 * HIDDEN) * (2 * HIDDEN) ** -0.5,
        "fc.bias": 0.1 * draw(HIDDEN),
        f"{layer}.post_attention_layernorm.weight": 1 + 0.1 * draw(HIDDEN),
    }
    tensors |= {f"{layer}.self_attn.{x}_proj.weight": draw(HIDDEN, HIDDEN) * HIDDEN**-0.5 for x in "qkvo"}
    return tensors | {
        f"{layer}.mlp.gate_proj.weight": draw(WIDE, HIDDEN) * HIDDEN**-0.5,
        f"{layer}.mlp.up_proj.weight": draw(WIDE, HIDDEN) * HIDDEN**-0.5,
        f"{layer}.mlp.down_proj.weight": draw(HIDDEN, WIDE) * WIDE**-0.5,
    }


def write_drafter(folder: Path, input_type: str = "t2i") -> Path:
    """Write a drafter in the layout of ``jadohu/llamagen_drafter`` ("t2i") or ``jadohu/llamagen2_drafter`` ("t2i2")."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(drafter(), folder / "pytorch_model.bin")
    config = SHAPE | {
        "architectures": ["LlamaForCausalLM"],
        "bos_token_id": 1,
        "eos_token_id": 2,
        "hidden_act": "silu",
        "caption_dim": T5["d_model"],
        "class_dropout_p": 0.0,
        "initializer_range": 0.02,
        "model_type": "llama",
        "num_hidden_layers": 1,
        "pretraining_tp": 1,
        "rms_norm_eps": 1e-06,
        "rope_scaling": None,
        "tie_word_embeddings": False,
        "torch_dtype": "float16",
        "use_cache": True,
        "input_type": input_type,
    }
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def _generator(seed: int):
    generator = torch.Generator().manual_seed(seed)
    return lambda *size: torch.randn(*size, generator=generator)
