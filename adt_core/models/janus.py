"""Janus-Pro: a LLaMA decoder with an embedding and a head of its own for image tokens, and the codec VQ-16.

Chen et al., arXiv 2501.17811. Read in the layout of transformers (``deepseek-community/Janus-Pro-1B``) and in DeepSeek's own. What the model reads of an image
token is a function of its code alone, so it is computed once and kept as rows of the embedding behind those of the text. The published settings are
guidance 5 and temperature 1, without top-k and top-p.
"""

from __future__ import annotations

import re
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from .checkpoint import Checkpoint, Entry, same
from .decoder import Decoder
from .layout import body_entries, decoder_config, load_tokenizer, named_tokens, section, whole_number
from .prompter import TokenPrompter
from .target import Family, Prompt, Target
from .vq import VQConfig, VQModel, coarsest_first

BOS, PAD, BEGIN_IMAGE = "<｜begin▁of▁sentence｜>", "<｜▁pad▁｜>", "<begin_of_image>"
_LLAMA = {"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32, "rms_norm_eps": 1e-6,
          "max_position_embeddings": 2048}  # what transformers takes for values that a config.json leaves out, as DeepSeek's does
_VQ_16 = {"embed_dim": 8, "num_embeddings": 16384, "latent_channels": 256, "attention": True, "normalised": True}
_RENAMED = (  # transformers' names -> DeepSeek's, as patterns
    (r"^model\.language_model\.", "language_model.model."),
    (r"^model\.generation_embeddings\.", "gen_embed."),
    (r"^model\.generation_aligner\.fc1\.", "gen_aligner.layers.0."),
    (r"^model\.generation_aligner\.hidden_layers\.(\d+)\.", lambda match: f"gen_aligner.layers.{2 * int(match[1]) + 2}."),
    (r"^model\.generation_head\.proj_out\.", "gen_head.output_mlp_projector."),
    (r"^model\.generation_head\.", "gen_head."),
    (r"^model\.vqmodel\.", "gen_vision_model."),
    (r"\.(?:down|up)\.(\d+)\.", r".conv_blocks.\1."),
    (r"(conv_blocks\.\d+)\.block\.", r"\1.res."),
    (r"\.mid\.block_1\.", ".mid.0."),
    (r"\.mid\.attn_1\.", ".mid.1."),
    (r"\.mid\.block_2\.", ".mid.2."),
)


class JanusPrompter(TokenPrompter):
    """Rows ``<bos> <|User|>: text, <|Assistant|>: <begin_of_image>``; without a text, all between the first and the last is padding that is read."""

    def before(self) -> tuple[str, ...]:
        return (BOS,)

    def behind(self, grid: tuple[int, int]) -> tuple[str, ...]:
        return (BEGIN_IMAGE,)

    def request(self, text: str, grid: tuple[int, int]) -> str:
        return f"<|User|>: {text}\n\n<|Assistant|>:"

    def unconditional(self, prompt: Prompt, grid: tuple[int, int]) -> Prompt:
        return Prompt([prompt[0], *[self.vocabulary[PAD]] * (len(prompt) - 2), prompt[-1]])


def _is_deepseeks(checkpoint: Checkpoint) -> bool:
    """Is it in the layout of deepseek-ai/Janus?"""
    return checkpoint.config.get("model_type") == "multi_modality" and "gen_vision_config" in checkpoint.config


def _named(checkpoint: Checkpoint, name: str) -> str:
    """What the tensor that transformers calls ``name`` is called in the checkpoint."""
    if _is_deepseeks(checkpoint):
        for pattern, replacement in _RENAMED:
            name = re.sub(pattern, replacement, name)
    return name


def _sections(checkpoint: Checkpoint) -> tuple[dict, dict, int]:
    """The configuration of the decoder and of what draws, by transformers' names, and the side of an image in pixels. AdtError if there is none."""
    config, source = checkpoint.config, checkpoint.path
    if not _is_deepseeks(checkpoint):
        text, drawing = section(config, "text_config", source), section(config, "vq_config", source)
        return _LLAMA | text, _VQ_16 | drawing, whole_number(section(config, "vision_config", source), "image_size", source, 384)
    text = section(config, "language_config", source)
    vision, codes, aligner, head = (section(section(config, f"{name}_config", source), "params", source)
                                    for name in ("vision", "gen_vision", "gen_aligner", "gen_head"))
    first = _named(checkpoint, "model.vqmodel.encoder.conv_in.weight")  # the configuration says nothing of the codec's width
    drawing = {"embed_dim": codes.get("n_embed"), "num_embeddings": codes.get("image_token_size"), "num_hidden_layers": aligner.get("depth"),
               "projection_dim": head.get("image_token_embed"), "base_channels": checkpoint.shape(first)[0] if first in checkpoint.names else 128}
    return _LLAMA | text, _VQ_16 | drawing, whole_number(vision, "image_size", source, 384)


def skeleton(checkpoint: Checkpoint) -> Target:
    """An empty target of the family."""
    text, drawing, side = _sections(checkpoint)
    codes, words = (whole_number(config, name, checkpoint.path) for config, name in ((drawing, "num_embeddings"), (text, "vocab_size")))
    config = decoder_config(text, checkpoint.path, vocab_size=words + codes, qk_norm=False,
                            head_width=whole_number(drawing, "projection_dim", checkpoint.path, 2048))
    codec = VQModel(VQConfig.from_dict({**drawing, "resolution": side}))
    cells = side // codec.config.downsample
    return Target(checkpoint.path.name, FAMILY.name, Decoder(config, torch.arange(words, words + codes, device="cpu")), codec, (cells, cells))


def prompter(target: Target, checkpoint: Checkpoint) -> JanusPrompter:
    """What reads the prompts of a target."""
    tokenizer = load_tokenizer(checkpoint.folder)
    return JanusPrompter(target.name, tokenizer, named_tokens(tokenizer, (BOS, PAD, BEGIN_IMAGE), checkpoint.folder), target.decoder.config.max_positions)


def entries(target: Target, checkpoint: Checkpoint) -> list[Entry]:
    """Text rows of the embedding as they are, image rows computed; layers, head and codec."""
    decoder, codec, called = target.decoder, target.codec, partial(_named, checkpoint)
    codes, width, words = target.num_codes, decoder.config.hidden_size, decoder.config.vocab_size - target.num_codes
    depth = whole_number(_sections(checkpoint)[1], "num_hidden_layers", checkpoint.path, 2)
    aligner = [f"model.generation_aligner.{name}" for name in ("fc1", *(f"hidden_layers.{i}" for i in range(depth - 1)))]
    names = ["model.generation_embeddings.weight", *(f"{name}.{kind}" for name in aligner for kind in ("weight", "bias"))]
    shapes = [(codes, codec.config.embed_dim), (width, codec.config.embed_dim), (width,), *[(width, width), (width,)] * (depth - 1)]
    return [
        same(decoder.embedding[:words], called("model.language_model.embed_tokens.weight")),
        Entry(decoder.embedding[words:], tuple(map(called, names)), tuple(shapes), make=partial(_image_rows, decoder)),
        *body_entries(decoder, checkpoint, called("model.language_model.")),
        same(decoder.head_in, called("model.generation_head.proj_out.weight"), transpose=True),
        same(decoder.head_in_bias, called("model.generation_head.proj_out.bias")),
        same(decoder.head, called("model.generation_head.vision_head.weight"), transpose=True),
        same(decoder.head_bias, called("model.generation_head.vision_head.bias")),
        *(same(parameter, called(f"model.vqmodel.{coarsest_first(name, codec.config)}")) for name, parameter in codec.named_parameters()),
    ]


def _image_rows(decoder: Decoder, parts: list[Tensor]) -> Tensor:
    """What the decoder reads of every code: the code's own embedding through the generation aligner, an MLP."""
    x, *linear = (part.to(decoder.embedding.device, decoder.wide_dtype) for part in parts)
    for i, (weight, bias) in enumerate(zip(linear[::2], linear[1::2])):
        x = F.linear(x if i == 0 else F.gelu(x), weight, bias)
    return x


def _recognises(checkpoint: Checkpoint) -> bool:
    return checkpoint.config.get("model_type") == "janus" or _is_deepseeks(checkpoint)


_UNDERSTANDING = ("model.vision_model.", "model.aligner.", "lm_head.", "vision_model.", "aligner.", "language_model.lm_head.",
                  "gen_vision_model.quantize.codebook_used")
FAMILY = Family("janus", _recognises, skeleton, entries, prompter, unneeded=_UNDERSTANDING)
