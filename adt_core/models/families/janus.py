"""Janus-Pro: a LLaMA decoder with a separate embedding and head for image tokens, and the codec VQ-16.

Chen et al., arXiv 2501.17811. There are two layouts: that of transformers (``deepseek-community/Janus-Pro-1B``) and
DeepSeek's original layout (``deepseek-ai/Janus-Pro-1B``).

In the published code, an MLP called the generation aligner computes the decoder's input for an image token. The result
depends only on the code. So the loader computes the inputs of all codes once. It stores them in the embedding, in the
rows after the text tokens.
"""

from __future__ import annotations

from functools import partial
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from ...errors import AdtError
from ..family import Family, model_type
from ..layers import Decoder
from ..prompter import TokenPrompter
from ..reading.checkpoint import Checkpoint
from ..reading.codec import VQ16_NAMES, vq_config, vq_entries
from ..reading.entries import Entry, copy_entry
from ..reading.fields import section, size
from ..reading.layout import body_entries, decoder_config, with_min_positions
from ..repositories import Download, Published
from ..target import EncodedPrompt, PublishedSampling, Target
from ..vq import VQModel

BOS = "<｜begin▁of▁sentence｜>"
PAD = "<｜▁pad▁｜>"
BEGIN_IMAGE = "<begin_of_image>"
# Defaults of transformers' LlamaConfig for fields that DeepSeek's config.json omits.
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
# Parts of tensor names: transformers' name -> DeepSeek's name.
_DEEPSEEK_NAMES = {
    "model.language_model.": "language_model.model.",
    "model.generation_embeddings.": "gen_embed.",
    "model.generation_head.proj_out.": "gen_head.output_mlp_projector.",
    "model.generation_head.": "gen_head.",
    "model.vqmodel.": "gen_vision_model.",
    **VQ16_NAMES,
}


class JanusPrompter(TokenPrompter):
    """Prompter with rows ``<bos> <|User|>: text, <|Assistant|>: <begin_of_image>``.

    In unconditional rows, padding tokens replace all tokens except the first and the last.
    """

    BOS = BOS
    IN_TOKENIZER = (BOS, PAD, BEGIN_IMAGE)

    def suffix_tokens(self, grid: tuple[int, int]) -> tuple[str, ...]:
        return (BEGIN_IMAGE,)

    def format_text(self, text: str, grid: tuple[int, int]) -> str:
        return f"<|User|>: {text}\n\n<|Assistant|>:"

    def unconditional(self, prompt: EncodedPrompt, grid: tuple[int, int]) -> EncodedPrompt:
        return EncodedPrompt([prompt[0], *self.ids(PAD) * (len(prompt) - 2), prompt[-1]])


def _sections(checkpoint: Checkpoint) -> tuple[dict, dict, int]:
    """Return the fields of the decoder, the fields of codec and image tokens, and the side of an image in pixels.

    The fields have the names that transformers uses.

    Raises:
        AdtError: If a section is missing, or if the checkpoint is JanusFlow.
    """
    config = checkpoint.config
    source = checkpoint.path
    if "vision_gen_dec_config" in config:
        remedy = FAMILY.published[0].how_to_get(checkpoint.home)
        raise AdtError("janus.flow", source=source, remedy=remedy)
    if model_type(config) == _DEEPSEEK:
        text = section(config, "language_config", source)
        vision, codes, aligner, head = (
            section(section(config, f"{name}_config", source), "params", source)
            for name in ("vision", "gen_vision", "gen_aligner", "gen_head")
        )
        first = "gen_vision_model.encoder.conv_in.weight"  # the configuration lacks the codec's width
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
    """Return an empty target for a Janus-Pro checkpoint."""
    text, drawing, side = _sections(checkpoint)
    source = checkpoint.path
    text_tokens = size(text, "vocab_size", source)
    vocab_size = text_tokens + size(drawing, "num_embeddings", source)
    head_width = size(drawing, "projection_dim", source, 2048)
    config = decoder_config(text, source, vocab_size=vocab_size, qk_norm=False, head_hidden_size=head_width)
    codec = VQModel(vq_config({**drawing, "resolution": side}, source))
    config = with_min_positions(config, codec.config.cells**2)
    decoder = Decoder(config, torch.arange(text_tokens, vocab_size, device="cpu"))
    return Target(checkpoint.name, FAMILY.name, decoder, codec, (codec.config.cells, codec.config.cells))


def entries(target: Target, checkpoint: Checkpoint) -> list[Entry]:
    """Return the entries of embedding, layers, head and codec, in the checkpoint's layout.

    The loader computes the rows of the embedding that belong to image tokens.
    """
    decoder = target.decoder
    codec = cast(VQModel, target.codec)
    text_tokens = decoder.config.vocab_size - target.num_codes
    text = "model.language_model."
    head = "model.generation_head"
    made = [
        copy_entry(decoder.embedding[:text_tokens], f"{text}embed_tokens.weight"),
        _image_embedding(decoder, codec.config.embed_dim, checkpoint),
        *body_entries(decoder, checkpoint, text),
        copy_entry(decoder.get_parameter("head_in"), f"{head}.proj_out.weight", transpose=True),
        copy_entry(decoder.get_parameter("head_in_bias"), f"{head}.proj_out.bias"),
        copy_entry(decoder.head, f"{head}.vision_head.weight", transpose=True),
        copy_entry(decoder.get_parameter("head_bias"), f"{head}.vision_head.bias"),
        *vq_entries(codec, "model.vqmodel."),
    ]
    is_deepseek = model_type(checkpoint.config) == _DEEPSEEK
    return [entry.renamed(_DEEPSEEK_NAMES) for entry in made] if is_deepseek else made


def _image_embedding(decoder: Decoder, vector: int, checkpoint: Checkpoint) -> Entry:
    """Return the entry of those rows of the embedding that belong to image tokens.

    Args:
        vector: Width of the vectors that the generation aligner receives, one for each code.
        checkpoint: The files. They determine the depth of the generation aligner and the names of its tensors.
    """
    is_deepseek = model_type(checkpoint.config) == _DEEPSEEK
    codes = decoder.head.shape[1]
    width = decoder.config.hidden_size
    depth = size(_sections(checkpoint)[1], "num_hidden_layers", checkpoint.path, 2)
    aligner = "gen_aligner.layers" if is_deepseek else "model.generation_aligner.hidden_layers"
    first = f"{aligner}.0" if is_deepseek else "model.generation_aligner.fc1"
    layers = [first, *(f"{aligner}.{2 * i + 2 if is_deepseek else i}" for i in range(depth - 1))]
    names = ["model.generation_embeddings.weight", *(f"{x}.{kind}" for x in layers for kind in ("weight", "bias"))]
    shapes = [(codes, vector), (width, vector), (width,), *[(width, width), (width,)] * (depth - 1)]
    return Entry(decoder.embedding[-codes:], tuple(names), tuple(shapes), partial(_image_rows, decoder))


def _image_rows(decoder: Decoder, parts: list[Tensor]) -> Tensor:
    """Compute the decoder's inputs [codes, hidden size] for all codes in ``wide_dtype``, with the generation aligner.

    Args:
        parts: The embedding of the codes, then weight and bias of each layer of the aligner.
    """
    x, *linear = (part.to(decoder.embedding.device, decoder.wide_dtype) for part in parts)
    for i, (weight, bias) in enumerate(zip(linear[::2], linear[1::2])):
        x = F.linear(x if i == 0 else F.gelu(x), weight, bias)
    return x


def _published(size: str, gigabytes: int, memory: tuple[float, float, float]) -> Published:
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
    unneeded=(  # used only for image understanding, or only in training
        "model.vision_model.",
        "model.aligner.",
        "lm_head.",
        "vision_model.",
        "aligner.",
        "language_model.lm_head.",
        "gen_vision_model.quantize.codebook_used",
    ),
    sampling=PublishedSampling(guidance_scale=5.0, source="github.com/deepseek-ai/Janus"),
    search=("janus",),
    published=(_published("1B", 4, (4.4, 3.3, 2.9)), _published("7B", 15, (14.5, 8.9, 6.6))),
)
