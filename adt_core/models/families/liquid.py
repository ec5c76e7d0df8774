"""Liquid: the language model Gemma-7B with the codes of Chameleon's codec as further words.

Wu et al., arXiv 2412.04332. Read as published: ``Junfeng5/Liquid_V1_7B``, with Chameleon's VQGAN beside it. Image
tokens have no names: code n is the token 256000 + n, behind Gemma's own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

import torch
from torch import Tensor

from ..downloads import Download, Published
from ..family import Family, model_type
from ..layers import Decoder
from ..prompter import TokenPrompter
from ..reading.checkpoint import Checkpoint, Entry, whole
from ..reading.layout import codec_config, decoder_config, decoder_entries, numbered_tokens
from ..target import EncodedPrompt, PublishedSampling, Target
from ..vq import VQConfig, VQModel
from . import chameleon
from .chameleon import CHAMELEON_CODEC, CODEC

_FIRST_CODE = 256000
_EMBEDDING = "model.embed_tokens.weight"
_GELU = "gelu_pytorch_tanh"


def _recognises(config: dict, names: Collection[str]) -> bool:
    """Gemma's architecture with words for the image's tokens: Gemma itself has 256,000."""
    words = config.get("vocab_size")
    return model_type(config) == "gemma" and isinstance(words, int) and words > _FIRST_CODE


class LiquidPrompter(TokenPrompter):
    """Rows ``<bos> text Generate an image based on this description.<boi>``; else ``<bos><unconditional><boi>``."""

    BOS = "<bos>"
    IN_TOKENIZER = ("<bos>", "<unconditional>", "<boi>")

    def request(self, text: str, grid: tuple[int, int]) -> str:
        return f"{text} Generate an image based on this description."

    def behind(self, grid: tuple[int, int]) -> tuple[str, ...]:
        return ("<boi>",)

    def unconditional(self, prompt: EncodedPrompt, grid: tuple[int, int]) -> EncodedPrompt:
        return EncodedPrompt(self.ids(*self.IN_TOKENIZER))


def skeleton(checkpoint: Checkpoint) -> Target:
    """An empty target of the family."""
    chameleon.add_codec(checkpoint)
    stated = checkpoint.config
    act = stated.get("hidden_act")  # Gemma's configurations say "gelu" for its approximation, which they were made with
    config = decoder_config({**stated, "hidden_act": _GELU if act == "gelu" else act}, checkpoint.path, qk_norm=False)
    codec = VQModel(codec_config(checkpoint, CODEC, VQConfig()))
    codes, cells = codec.config.num_embeddings, codec.config.cells
    ids = torch.tensor(numbered_tokens(config.vocab_size, _FIRST_CODE, codes, checkpoint.path), device="cpu")
    decoder, usual = Decoder(config, ids), (cells, cells)
    return Target(checkpoint.name, FAMILY.name, decoder, codec, usual, draws_from=config.vocab_size)


def entries(target: Target, checkpoint: Checkpoint) -> list[Entry]:
    """The decoder under Hugging Face names, the codec under ``model.vqmodel.``.

    Gemma multiplies what it reads of its embedding, which is its head, too, by the root of its width, and adds 1 to the
    weights of norms. Both is done once, while they are loaded.
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
    return made + whole(target.codec, CODEC)


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
    published=(Published("Liquid_V1_7B", (LIQUID, CHAMELEON_CODEC), "512", (19.0, 11.8)),),
)
