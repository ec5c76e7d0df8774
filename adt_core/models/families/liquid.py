"""Liquid: the language model Gemma-7B with the codes of Chameleon's codec as additional tokens.

Wu et al., arXiv 2412.04332. Layout: the folder ``Junfeng5/Liquid_V1_7B`` as published, and Chameleon's codec next to
this folder. The token id of code n is 256000 + n; lower ids are Gemma's own tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

import torch
from torch import Tensor

from ..family import Family, model_type
from ..layers import Decoder
from ..prompter import TokenPrompter
from ..reading.checkpoint import Checkpoint
from ..reading.codec import codec_config
from ..reading.entries import Entry, module_entries
from ..reading.layout import consecutive_ids, decoder_config, decoder_entries
from ..repositories import Download, Published
from ..target import EncodedPrompt, PublishedSampling, Target
from ..vq import VQConfig, VQModel
from . import chameleon
from .chameleon import CHAMELEON_CODEC, CODEC

_FIRST_CODE = 256000
_EMBEDDING = "model.embed_tokens.weight"
_GELU = "gelu_pytorch_tanh"


def _recognises(config: dict, names: Collection[str]) -> bool:
    """Return whether the checkpoint is Gemma with more than its own 256,000 tokens."""
    vocab_size = config.get("vocab_size")
    return model_type(config) == "gemma" and isinstance(vocab_size, int) and vocab_size > _FIRST_CODE


class LiquidPrompter(TokenPrompter):
    """Prompter with rows ``<bos> text Generate an image based on this description.<boi>``.

    Unconditional rows are ``<bos><unconditional><boi>``.
    """

    BOS = "<bos>"
    IN_TOKENIZER = ("<bos>", "<unconditional>", "<boi>")

    def format_text(self, text: str, grid: tuple[int, int]) -> str:
        return f"{text} Generate an image based on this description."

    def suffix_tokens(self, grid: tuple[int, int]) -> tuple[str, ...]:
        return ("<boi>",)

    def unconditional(self, prompt: EncodedPrompt, grid: tuple[int, int]) -> EncodedPrompt:
        return EncodedPrompt(self.ids(*self.IN_TOKENIZER))


def skeleton(checkpoint: Checkpoint) -> Target:
    """Return an empty target for a Liquid checkpoint, and add the codec's file to the checkpoint."""
    chameleon.add_codec(checkpoint)
    fields = checkpoint.config
    activation = fields.get("hidden_act")
    if activation == "gelu":  # Gemma's config.json names the exact GELU, but the model uses the tanh approximation
        activation = _GELU
    config = decoder_config({**fields, "hidden_act": activation}, checkpoint.path, qk_norm=False)
    codec = VQModel(codec_config(checkpoint, CODEC, VQConfig()))
    cells = codec.config.cells
    ids = consecutive_ids(config.vocab_size, _FIRST_CODE, codec.config.num_embeddings, checkpoint.path)
    decoder = Decoder(config, torch.tensor(ids, device="cpu"))
    script_vocab_size = config.vocab_size
    return Target(checkpoint.name, FAMILY.name, decoder, codec, (cells, cells), script_vocab_size=script_vocab_size)


def entries(target: Target, checkpoint: Checkpoint) -> list[Entry]:
    """Return the entries of the decoder, in transformers' layout, and of the codec, with prefix ``model.vqmodel.``.

    Gemma multiplies its embeddings by the square root of the hidden size, and adds 1 to the weights of its norms. The
    loader does both once, while it reads the weights. Gemma uses the embedding also as output head. The loader does not
    multiply the head.
    """
    decoder = target.decoder
    head = _EMBEDDING if checkpoint.config.get("tie_word_embeddings", True) else "lm_head.weight"
    stored = decoder_entries(decoder, checkpoint, head=head)
    scale = torch.tensor(decoder.config.hidden_size**0.5, dtype=decoder.dtype, device="cpu").item()

    def put(parameter: Tensor) -> Callable[[Tensor], object] | None:
        if parameter is decoder.embedding:
            return lambda value: parameter.copy_(value).mul_(scale)
        return (lambda value: parameter.copy_(value).add_(1)) if parameter.ndim == 1 else None

    made = [replace(entry, put=put(entry.parameter) or entry.put) for entry in stored]
    return made + module_entries(target.codec, CODEC)


LIQUID = Download("Junfeng5/Liquid_V1_7B", 17, "MIT; it builds on Gemma, which has terms of its own", "Liquid_V1_7B")
FAMILY = Family(
    name="liquid",
    title="Liquid",
    recognises=_recognises,
    skeleton=skeleton,
    entries=entries,
    prompter=LiquidPrompter.of,
    unneeded=chameleon.FAMILY.unneeded,
    remedies=chameleon.FAMILY.remedies,
    sampling=PublishedSampling(7.0, 0.99, 4096, 0.96, source="github.com/FoundationVision/Liquid"),
    search=("liquid", "gemma"),
    published=(Published("Liquid_V1_7B", (LIQUID, CHAMELEON_CODEC), "512", (19.0, 11.8, 8.8)),),
)
