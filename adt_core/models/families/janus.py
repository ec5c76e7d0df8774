"""Janus-Pro: a LLaMA decoder with an embedding and a head of its own for image tokens, and the codec VQ-16.

Chen et al., arXiv 2501.17811. Two layouts: that of transformers (``deepseek-community/Janus-Pro-1B``) and DeepSeek's
own. What the decoder reads of an image token depends on its code alone. So it is computed once and kept in the
embedding, in rows behind those of the text.
"""

from __future__ import annotations

from functools import partial
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from ...errors import AdtError
from ..downloads import Download, Published
from ..family import Family, model_type
from ..layers import Decoder
from ..prompter import TokenPrompter
from ..reading.checkpoint import Checkpoint, Entry, same
from ..reading.fields import section, size
from ..reading.layout import body_entries, decoder_config, with_room
from ..target import EncodedPrompt, PublishedSampling, Target
from ..vq import AUTHORS_NAMES, VQConfig, VQModel

BOS, PAD, BEGIN_IMAGE = "<｜begin▁of▁sentence｜>", "<｜▁pad▁｜>", "<begin_of_image>"
# What transformers takes for values that a config.json leaves out, as DeepSeek's does.
_LLAMA = {
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 2048,
}
_VQ_16 = {"embed_dim": 8, "num_embeddings": 16384, "latent_channels": 256, "attention": True, "normalised": True}
_DEEPSEEK = "multi_modality"  # the model_type of deepseek-ai/Janus-Pro-1B
# From transformers' names to DeepSeek's.
_DEEPSEEKS = {
    "model.language_model.": "language_model.model.",
    "model.generation_embeddings.": "gen_embed.",
    "model.generation_head.proj_out.": "gen_head.output_mlp_projector.",
    "model.generation_head.": "gen_head.",
    "model.vqmodel.": "gen_vision_model.",
    **AUTHORS_NAMES,
}


class JanusPrompter(TokenPrompter):
    """Rows ``<bos> <|User|>: text, <|Assistant|>: <begin_of_image>``; without a text, padding between the ends."""

    BOS, IN_TOKENIZER = BOS, (BOS, PAD, BEGIN_IMAGE)

    def behind(self, grid: tuple[int, int]) -> tuple[str, ...]:
        return (BEGIN_IMAGE,)

    def request(self, text: str, grid: tuple[int, int]) -> str:
        return f"<|User|>: {text}\n\n<|Assistant|>:"

    def unconditional(self, prompt: EncodedPrompt, grid: tuple[int, int]) -> EncodedPrompt:
        return EncodedPrompt([prompt[0], *self.ids(PAD) * (len(prompt) - 2), prompt[-1]])


def _sections(checkpoint: Checkpoint) -> tuple[dict, dict, int]:
    """Configuration of the decoder and of what draws, by transformers' names; pixels per side. AdtError if missing."""
    config, source = checkpoint.config, checkpoint.path
    if "vision_gen_dec_config" in config:
        remedy = FAMILY.published[0].how_to_get(checkpoint.home)
        raise AdtError(
            f"{source} is JanusFlow, which generates images by rectified flow, not as tokens; use Janus-Pro: {remedy}."
        )
    if model_type(config) == _DEEPSEEK:
        text = section(config, "language_config", source)
        vision, codes, aligner, head = (
            section(section(config, f"{name}_config", source), "params", source)
            for name in ("vision", "gen_vision", "gen_aligner", "gen_head")
        )
        first = "gen_vision_model.encoder.conv_in.weight"  # the configuration does not say how wide the codec is
        stated = {
            "embed_dim": codes.get("n_embed"),
            "num_embeddings": codes.get("image_token_size"),
            "num_hidden_layers": aligner.get("depth"),
            "projection_dim": head.get("image_token_embed"),
            "base_channels": checkpoint.sizes(first)[0] if first in checkpoint.names else 128,
        }
        drawing = {name: value for name, value in stated.items() if value}
    else:
        text, drawing, vision = (section(config, f"{name}_config", source) for name in ("text", "vq", "vision"))
    return _LLAMA | text, _VQ_16 | drawing, size(vision, "image_size", source, 384)


def skeleton(checkpoint: Checkpoint) -> Target:
    """An empty target of the family."""
    text, drawing, side = _sections(checkpoint)
    source = checkpoint.path
    words, codes = size(text, "vocab_size", source), size(drawing, "num_embeddings", source)
    head_width = size(drawing, "projection_dim", source, 2048)
    config = decoder_config(text, source, vocab_size=words + codes, qk_norm=False, head_width=head_width)
    codec = VQModel(VQConfig.from_dict({**drawing, "resolution": side}, source))
    config = with_room(config, codec.config.cells**2)
    decoder = Decoder(config, torch.arange(words, words + codes, device="cpu"))
    return Target(checkpoint.name, FAMILY.name, decoder, codec, (codec.config.cells, codec.config.cells))


def entries(target: Target, checkpoint: Checkpoint) -> list[Entry]:
    """Text rows of the embedding as they are, image rows computed; layers, head and codec."""
    decoder, codec = target.decoder, cast(VQModel, target.codec)
    is_deepseeks = model_type(checkpoint.config) == _DEEPSEEK
    codes, width = target.num_codes, decoder.config.hidden_size
    words, vector = decoder.config.vocab_size - codes, codec.config.embed_dim
    depth = size(_sections(checkpoint)[1], "num_hidden_layers", checkpoint.path, 2)
    aligner = "gen_aligner.layers" if is_deepseeks else "model.generation_aligner.hidden_layers"
    first = f"{aligner}.0" if is_deepseeks else "model.generation_aligner.fc1"
    layers = [first, *(f"{aligner}.{2 * i + 2 if is_deepseeks else i}" for i in range(depth - 1))]
    made_of = ["model.generation_embeddings.weight", *(f"{x}.{kind}" for x in layers for kind in ("weight", "bias"))]
    shapes = [(codes, vector), (width, vector), (width,), *[(width, width), (width,)] * (depth - 1)]
    text, head = "model.language_model.", "model.generation_head"
    made = [
        same(decoder.embedding[:words], f"{text}embed_tokens.weight"),
        Entry(decoder.embedding[words:], tuple(made_of), tuple(shapes), partial(_image_rows, decoder)),
        *body_entries(decoder, checkpoint, text),
        same(decoder.get_parameter("head_in"), f"{head}.proj_out.weight", transpose=True),
        same(decoder.get_parameter("head_in_bias"), f"{head}.proj_out.bias"),
        same(decoder.head, f"{head}.vision_head.weight", transpose=True),
        same(decoder.get_parameter("head_bias"), f"{head}.vision_head.bias"),
        *codec.entries("model.vqmodel."),
    ]
    return [entry.renamed(_DEEPSEEKS) for entry in made] if is_deepseeks else made


def _image_rows(decoder: Decoder, parts: list[Tensor]) -> Tensor:
    """What the decoder reads of every code [codes, h]: the code's embedding, through the generation aligner, an MLP."""
    x, *linear = (part.to(decoder.embedding.device, decoder.wide_dtype) for part in parts)
    for i, (weight, bias) in enumerate(zip(linear[::2], linear[1::2])):
        x = F.linear(x if i == 0 else F.gelu(x), weight, bias)
    return x


def _published(size: str, gigabytes: int, memory: tuple[float, float]) -> Published:
    name = f"Janus-Pro-{size}"
    own = Download(f"deepseek-community/{name}", gigabytes, "DeepSeek's model licence", name)
    return Published(name, (own,), "384", memory)


FAMILY = Family(
    name="janus",
    title="Janus-Pro",
    recognises=lambda config, names: model_type(config) in ("janus", _DEEPSEEK),
    skeleton=skeleton,
    entries=entries,
    prompter=JanusPrompter.of,
    unneeded=(  # what understands pictures
        "model.vision_model.",
        "model.aligner.",
        "lm_head.",
        "vision_model.",
        "aligner.",
        "language_model.lm_head.",
        "gen_vision_model.quantize.codebook_used",
    ),
    sampling=PublishedSampling(guidance=5.0, source="github.com/deepseek-ai/Janus"),
    search=("janus",),
    published=(_published("1B", 4, (4.4, 3.3)), _published("7B", 15, (14.5, 8.9))),
)
