"""Lumina-mGPT 2.0: Lumina-mGPT with another tokenizer, more tokens per image, and the codec MoVQGAN.

Xin et al., arXiv 2507.17801. Layout: the folder ``Alpha-VLLM/Lumina-mGPT-2.0`` as published, and the codec's file
``movqgan_270M.ckpt`` next to this folder. The token id of code n is 155000 + n.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import ClassVar

import torch

from ...errors import AdtError
from ..family import Family
from ..layers import Decoder
from ..movq import MoVQ
from ..prompter import TokenPrompter
from ..reading.checkpoint import Checkpoint
from ..reading.codec import codec_config
from ..reading.entries import Entry, module_entries
from ..reading.fields import read_json
from ..reading.layout import consecutive_ids, decoder_config, decoder_entries, with_min_positions
from ..repositories import Download, Published
from ..target import PublishedSampling, Target
from ..vq import VQConfig
from .chameleon import BEGIN_IMAGE, SEPARATOR, is_chameleon
from .lumina import HEADER, MAX_ASPECT, PIXELS, LuminaPrompter, size_token

CODEC = "codec."
# Two token ids from the authors' code: the token of code 0, and ``<reserved08799>``.
_FIRST_CODE = 155000
_END_OF_ROW = 151670
_STEPS = 24  # sides are multiples of 32 pixels; 24 * 32 = 768 pixels is the default side
_LONGEST = _STEPS * round(MAX_ASPECT**0.5)  # largest side, in steps of 32 pixels, of an image with ratio MAX_ASPECT
_MIN_GUIDANCE = 4.0
_MOVQGAN_270M = (4, 16384, 4, _STEPS * PIXELS, 3, 256, (1, 2, 2, 4), 2)  # values of VQConfig's first fields
_CODEC_FILES = "movqgan_270M.ckpt", "movqgan_270M.safetensors", "MoVQGAN/movqgan_270M.ckpt"


def _recognises(config: dict, names: Collection[str]) -> bool:
    """Return whether the checkpoint has Chameleon's architecture and a larger vocabulary.

    Chameleon has 65,536 tokens, and Lumina-mGPT 2.0 has more than 155,000.
    """
    vocab_size = config.get("vocab_size")
    return is_chameleon(config) and isinstance(vocab_size, int) and vocab_size > _FIRST_CODE


class Lumina2Prompter(LuminaPrompter):
    """Prompter with the rows of Lumina-mGPT, but with another first token.

    The first token is the ``bos_token`` in tokenizer_config.json, or the ``eos_token`` if there is no ``bos_token``.
    """

    CELLS = 4
    IN_TOKENIZER: ClassVar = (SEPARATOR, BEGIN_IMAGE, *map(size_token, range(1, _LONGEST + 1)))

    @classmethod
    def of(cls, target: Target, checkpoint: Checkpoint) -> TokenPrompter:
        prompter = super().of(target, checkpoint)
        fields = read_json(checkpoint.folder / "tokenizer_config.json")
        first = fields.get("bos_token") or fields.get("eos_token")
        name = first.get("content") if isinstance(first, dict) else first
        token_id = prompter.tokenizer.token_to_id(name) if isinstance(name, str) else None
        if token_id is None:
            raise AdtError("lumina2.no_tokens", folder=checkpoint.folder)
        prompter.vocabulary[cls.BOS] = token_id
        return prompter


def guidance(scale: float, grid: tuple[int, int]) -> list[float]:
    """Return the guidance scale at every position of an image, as in the authors' sampling loop.

    The scale at raster position p is the previous scale times 1 - (p + 2) / N, but at least 4. N is a quarter of the
    number of codes. The 2 stands for the two tokens with the image size, which the authors' loop also samples.

    Args:
        scale: Requested scale. At position 0, it takes the place of the previous scale.
        grid: Rows and columns of the image's codes. The result also has scales for the tokens that end rows.
    """
    rows, columns = grid
    quarter = rows * columns / 4
    scales = []
    for position in range(rows * (columns + 1)):
        scale = max(_MIN_GUIDANCE, scale * (1 - (position + 2) / quarter))
        scales.append(scale)
    return scales


def skeleton(checkpoint: Checkpoint) -> Target:
    """Return an empty target for a Lumina-mGPT 2.0 checkpoint, and add the codec's file to the checkpoint."""
    file = checkpoint.find_companion(_CODEC_FILES)
    if file is not None:
        checkpoint.add(file, CODEC)
    config = decoder_config(checkpoint.config, checkpoint.path)
    codec = MoVQ(codec_config(checkpoint, CODEC, VQConfig(*_MOVQGAN_270M, attention=True)))
    codes = len(codec.codebook)
    cells = codec.config.cells
    ids = [*consecutive_ids(config.vocab_size, _FIRST_CODE, codes, checkpoint.path), _END_OF_ROW]
    decoder = Decoder(with_min_positions(config, cells * (cells + 1)), torch.tensor(ids, device="cpu"), codes)
    target = Target(checkpoint.name, FAMILY.name, decoder, codec, (cells, cells), row_end=True, guidance_of=guidance)
    target.script_vocab_size = config.vocab_size
    target.script_header = HEADER
    return target


def entries(target: Target, checkpoint: Checkpoint) -> list[Entry]:
    """Return the entries of the decoder, in transformers' layout, and of the codec, from its separate file."""
    return decoder_entries(target.decoder, checkpoint) + module_entries(target.codec, CODEC)


MOVQGAN = Download("ai-forever/MoVQGAN", 1.1, "not stated", "", ("movqgan_270M.ckpt",))


def _published(name: str) -> Published:
    download = Download(f"Alpha-VLLM/{name}", 16, "Apache 2.0", name)
    return Published(name, (download, MOVQGAN), "768, or as many in another shape", (29.5, 23.5, 21.0))


FAMILY = Family(
    name="lumina-mgpt-2",
    title="Lumina-mGPT 2.0",
    recognises=_recognises,
    skeleton=skeleton,
    entries=entries,
    prompter=Lumina2Prompter.of,
    unneeded=("model.vqmodel.", f"{CODEC}loss.", f"{CODEC}ema_"),
    remedies={CODEC: ("remedy.movqgan", MOVQGAN)},
    sampling=PublishedSampling(guidance_scale=4.0, top_k=4096, source="github.com/Alpha-VLLM/Lumina-mGPT-2.0"),
    trained=(1, 1),  # only sizes with as many pixels as the default square were trained
    search=("lumina mgpt 2", "movqgan"),
    companions=_CODEC_FILES,
    published=(_published("Lumina-mGPT-2.0"), _published("Lumina-mGPT-2.0-Omni")),
)
