"""Janus-Pro: a LLaMA decoder with an embedding and a head of its own for image tokens, and the codec VQ-16.

Chen et al., arXiv 2501.17811. Read in the layout of transformers (``deepseek-community/Janus-Pro-1B``) and in DeepSeek's own. What the model reads of an image
token is a function of its code alone, so it is computed once and kept as rows of the embedding behind those of the text. The published settings are
guidance 5 and temperature 1, without top-k and top-p.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..checkpoint import Checkpoint, Entry, same
from ..layers import Decoder
from ..layout import body_entries, decoder_config, load_tokenizer, named_tokens, section, whole_number
from ..prompter import TokenPrompter
from ..target import Family, Prompt, Target
from ..vq import VQConfig, VQModel, authors_name, coarsest_first

BOS, PAD, BEGIN_IMAGE = "<｜begin▁of▁sentence｜>", "<｜▁pad▁｜>", "<begin_of_image>"
_LLAMA = {
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 2048,
}  # what transformers takes for values that a config.json leaves out, as DeepSeek's does
_VQ_16 = {"embed_dim": 8, "num_embeddings": 16384, "latent_channels": 256, "attention": True, "normalised": True}


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


class _Names(NamedTuple):
    """Where the tensors of a layout are. aligner: its layers, numbered. codec: beginning of the codec's names, and what it calls a parameter of ours."""

    text: str
    codes: str
    aligner: Callable[[int], str]
    head: tuple[str, str]
    codec: tuple[str, Callable[[str, VQConfig], str]]


_TRANSFORMERS = _Names(
    "model.language_model.",
    "model.generation_embeddings.weight",
    lambda i: f"model.generation_aligner.hidden_layers.{i - 1}" if i else "model.generation_aligner.fc1",
    ("model.generation_head.proj_out", "model.generation_head.vision_head"),
    ("model.vqmodel.", coarsest_first),
)
_DEEPSEEK = _Names(
    "language_model.model.",
    "gen_embed.weight",
    lambda i: f"gen_aligner.layers.{2 * i}",
    ("gen_head.output_mlp_projector", "gen_head.vision_head"),
    ("gen_vision_model.", authors_name),
)


def _sections(checkpoint: Checkpoint) -> tuple[dict, dict, int]:
    """The configuration of the decoder and of what draws, by transformers' names, and the side of an image in pixels. AdtError if there is none."""
    config, source = checkpoint.config, checkpoint.path
    if not _is_deepseeks(checkpoint):
        text, drawing = section(config, "text_config", source), section(config, "vq_config", source)
        return (
            _LLAMA | text,
            _VQ_16 | drawing,
            whole_number(section(config, "vision_config", source), "image_size", source, 384),
        )
    text = section(config, "language_config", source)
    vision, codes, aligner, head = (
        section(section(config, f"{name}_config", source), "params", source)
        for name in ("vision", "gen_vision", "gen_aligner", "gen_head")
    )
    first = f"{_DEEPSEEK.codec[0]}encoder.conv_in.weight"  # the configuration says nothing of the codec's width
    drawing = {
        "embed_dim": codes.get("n_embed"),
        "num_embeddings": codes.get("image_token_size"),
        "num_hidden_layers": aligner.get("depth"),
        "projection_dim": head.get("image_token_embed"),
        "base_channels": checkpoint.shape(first)[0] if first in checkpoint.names else 128,
    }
    return (
        _LLAMA | text,
        _VQ_16 | {name: value for name, value in drawing.items() if value},
        whole_number(vision, "image_size", source, 384),
    )


def skeleton(checkpoint: Checkpoint) -> Target:
    """An empty target of the family."""
    text, drawing, side = _sections(checkpoint)
    codes, words = (
        whole_number(config, name, checkpoint.path)
        for config, name in ((drawing, "num_embeddings"), (text, "vocab_size"))
    )
    config = decoder_config(
        text,
        checkpoint.path,
        vocab_size=words + codes,
        qk_norm=False,
        head_width=whole_number(drawing, "projection_dim", checkpoint.path, 2048),
    )
    codec = VQModel(VQConfig.from_dict({**drawing, "resolution": side}))
    cells = side // codec.config.downsample
    return Target(
        checkpoint.path.name,
        FAMILY.name,
        Decoder(config, torch.arange(words, words + codes, device="cpu")),
        codec,
        (cells, cells),
    )


def prompter(target: Target, checkpoint: Checkpoint) -> JanusPrompter:
    """What reads the prompts of a target."""
    tokenizer = load_tokenizer(checkpoint.folder)
    return JanusPrompter(
        target.name,
        tokenizer,
        named_tokens(tokenizer, (BOS, PAD, BEGIN_IMAGE), checkpoint.folder),
        target.decoder.config.max_positions,
    )


def entries(target: Target, checkpoint: Checkpoint) -> list[Entry]:
    """Text rows of the embedding as they are, image rows computed; layers, head and codec."""
    decoder, codec, names = target.decoder, target.codec, _DEEPSEEK if _is_deepseeks(checkpoint) else _TRANSFORMERS
    codes, width, words = target.num_codes, decoder.config.hidden_size, decoder.config.vocab_size - target.num_codes
    depth = whole_number(_sections(checkpoint)[1], "num_hidden_layers", checkpoint.path, 2)
    aligner = [f"{names.aligner(i)}.{kind}" for i in range(depth) for kind in ("weight", "bias")]
    shapes = [
        (codes, codec.config.embed_dim),
        (width, codec.config.embed_dim),
        (width,),
        *[(width, width), (width,)] * (depth - 1),
    ]
    (hidden, last), (prefix, called) = names.head, names.codec
    return [
        same(decoder.embedding[:words], f"{names.text}embed_tokens.weight"),
        Entry(decoder.embedding[words:], (names.codes, *aligner), tuple(shapes), make=partial(_image_rows, decoder)),
        *body_entries(decoder, checkpoint, names.text),
        same(decoder.head_in, f"{hidden}.weight", transpose=True),
        same(decoder.head_in_bias, f"{hidden}.bias"),
        same(decoder.head, f"{last}.weight", transpose=True),
        same(decoder.head_bias, f"{last}.bias"),
        *(same(parameter, prefix + called(name, codec.config)) for name, parameter in codec.named_parameters()),
    ]


def _image_rows(decoder: Decoder, parts: list[Tensor]) -> Tensor:
    """What the decoder reads of every code: the code's own embedding through the generation aligner, an MLP."""
    x, *linear = (part.to(decoder.embedding.device, decoder.wide_dtype) for part in parts)
    for i, (weight, bias) in enumerate(zip(linear[::2], linear[1::2])):
        x = F.linear(x if i == 0 else F.gelu(x), weight, bias)
    return x


def _recognises(checkpoint: Checkpoint) -> bool:
    return checkpoint.config.get("model_type") == "janus" or _is_deepseeks(checkpoint)


_UNDERSTANDING = (
    "model.vision_model.",
    "model.aligner.",
    "lm_head.",
    "vision_model.",
    "aligner.",
    "language_model.lm_head.",
    "gen_vision_model.quantize.codebook_used",
)
FAMILY = Family("janus", _recognises, skeleton, entries, prompter, unneeded=_UNDERSTANDING)
