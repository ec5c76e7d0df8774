"""Lumina-mGPT 2.0: Lumina-mGPT with words of another tokenizer, images of more tokens, and the codec MoVQGAN.

Xin et al., arXiv 2507.17801. Read as published: ``Alpha-VLLM/Lumina-mGPT-2.0`` with ``movqgan_270M.ckpt`` beside it.
Image tokens have no names: code n is the token 155000 + n.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import ClassVar

import torch

from ...errors import AdtError
from ..downloads import Download, Published
from ..family import Family
from ..layers import Decoder
from ..movq import MoVQ
from ..prompter import TokenPrompter
from ..reading.checkpoint import Checkpoint, Entry, read_json, whole
from ..reading.layout import codec_config, decoder_config, decoder_entries, numbered_tokens, with_room
from ..target import PublishedSampling, Target
from ..vq import VQConfig
from .chameleon import BEGIN_IMAGE, SEPARATOR, is_chameleon
from .lumina import HEADER, MOST_OBLONG, PIXELS, LuminaPrompter, size_token

CODEC = "codec."
_FIRST_CODE, _END_OF_ROW = 155000, 151670
"""Ids that the published code fixes: the first of the image's tokens, and ``<reserved08799>``."""
_STEPS = 24  # of 32 pixels: 768 per side
_LONGEST = _STEPS * round(MOST_OBLONG**0.5)  # steps of the longer side, where the other is the shortest that may be
_LEAST_GUIDANCE = 4.0
_USUAL = (4, 16384, 4, _STEPS * PIXELS, 3, 256, (1, 2, 2, 4), 2)  # MoVQGAN-270M, as VQConfig has it
_CODEC_FILES = "movqgan_270M.ckpt", "movqgan_270M.safetensors", "MoVQGAN/movqgan_270M.ckpt"


def _recognises(config: dict, names: Collection[str]) -> bool:
    """Chameleon's architecture with room for the image's tokens: Chameleon itself has 65,536."""
    words = config.get("vocab_size")
    return is_chameleon(config) and isinstance(words, int) and words > _FIRST_CODE


class Lumina2Prompter(LuminaPrompter):
    """The same rows. They begin with what the tokenizer's configuration calls the first token, or else the last."""

    CELLS = 4
    IN_TOKENIZER: ClassVar = (SEPARATOR, BEGIN_IMAGE, *map(size_token, range(1, _LONGEST + 1)))

    @classmethod
    def of(cls, target: Target, checkpoint: Checkpoint) -> TokenPrompter:
        made, stated = super().of(target, checkpoint), read_json(checkpoint.folder / "tokenizer_config.json")
        first = stated.get("bos_token") or stated.get("eos_token")
        name = first.get("content") if isinstance(first, dict) else first
        number = made.tokenizer.token_to_id(name) if isinstance(name, str) else None
        if number is None:
            problem = "tokenizer_config.json names no bos_token or eos_token that tokenizer.json has"
            raise AdtError(f"{checkpoint.folder}: {problem}; download both again.")
        made.vocabulary[cls.BOS] = number
        return made


def guidance(scale: float, grid: tuple[int, int]) -> list[float]:
    """The published loop's scale of guidance at every position of an image of ``grid`` cells.

    Before the token that has n tokens between it and the one that begins the image, the size's two included, it takes
    the scale of the token before times 1 - n / N, and 4 if that is less. N is a quarter of the cells.
    """
    rows, columns = grid
    scales, quarter = [], rows * columns / 4
    for position in range(rows * (columns + 1)):
        scale = max(_LEAST_GUIDANCE, scale * (1 - (position + 2) / quarter))
        scales.append(scale)
    return scales


def skeleton(checkpoint: Checkpoint) -> Target:
    """An empty target of the family."""
    file = checkpoint.beside(_CODEC_FILES)
    if file is not None:
        checkpoint.add(file, CODEC)
    config = decoder_config(checkpoint.config, checkpoint.path)
    codec = MoVQ(codec_config(checkpoint, CODEC, VQConfig(*_USUAL, attention=True)))
    codes, cells = len(codec.codebook), codec.config.cells
    ids = [*numbered_tokens(config.vocab_size, _FIRST_CODE, codes, checkpoint.path), _END_OF_ROW]
    decoder = Decoder(with_room(config, cells * (cells + 1)), torch.tensor(ids, device="cpu"), codes)
    target = Target(checkpoint.name, FAMILY.name, decoder, codec, (cells, cells), row_end=True, guidance_of=guidance)
    target.draws_from, target.drawn_before = config.vocab_size, HEADER
    return target


def entries(target: Target, checkpoint: Checkpoint) -> list[Entry]:
    """The decoder under Hugging Face names, the codec from its own file."""
    return decoder_entries(target.decoder, checkpoint) + whole(target.codec, CODEC)


def _download(name: str) -> Download:
    return Download(f"Alpha-VLLM/{name}", 16, "Apache 2.0", name)


MOVQGAN = Download("ai-forever/MoVQGAN", 1.1, "not stated", "", ("movqgan_270M.ckpt",))


def _published(name: str) -> Published:
    return Published(name, (_download(name), MOVQGAN), "768, or as many in another shape", (29.5, 23.5))


FAMILY = Family(
    name="lumina-mgpt-2",
    title="Lumina-mGPT 2.0",
    recognises=_recognises,
    skeleton=skeleton,
    entries=entries,
    prompter=Lumina2Prompter.of,
    unneeded=("model.vqmodel.", f"{CODEC}loss.", f"{CODEC}ema_"),
    remedies={CODEC: ("download movqgan_270M.ckpt of ai-forever/MoVQGAN and put it beside it", MOVQGAN)},
    sampling=PublishedSampling(guidance=4.0, top_k=4096, source="github.com/Alpha-VLLM/Lumina-mGPT-2.0"),
    trained=(1, 1),  # shapes of as many pixels as the square
    search=("lumina mgpt 2", "movqgan"),
    beside=_CODEC_FILES,
    published=(_published("Lumina-mGPT-2.0"), _published("Lumina-mGPT-2.0-Omni")),
)
