"""Chameleon's architecture: Anole-7B and the bundled model, in the layout of transformers.

The checkpoint's vocabulary gives the ids of special tokens and image tokens by name. The image token of a code has the
name ``IMGIMG<letters>Z``. The letters A to J stand for the decimal digits 0 to 9: the token of code 42 is IMGIMGECZ.
"""

from __future__ import annotations

from collections.abc import Collection

import torch

from ...errors import AdtError
from ...settings import Lantern
from ..family import Family, model_type
from ..layers import Decoder
from ..prompter import TokenPrompter
from ..reading.checkpoint import Checkpoint
from ..reading.codec import vq_config
from ..reading.entries import Entry, module_entries
from ..reading.fields import section
from ..reading.layout import decoder_config, decoder_entries, image_tokens, read_vocabulary, with_min_positions
from ..repositories import Download, Published
from ..target import EncodedPrompt, PublishedSampling, Target
from ..vq import VQModel

BOS = "<s>"
SEPARATOR = "<reserved08706>"
BEGIN_IMAGE = "<racm3:break>"
CODEC = "model.vqmodel."
_CODEC_FILES = (
    "vqgan.ckpt",
    "vqgan.safetensors",
    "*vqvae*/model.safetensors",
    "*vqvae*/snapshots/*/model.safetensors",
    "chameleon/tokenizer/vqgan.ckpt",
)


def is_chameleon(config: dict, names: Collection[str] = ()) -> bool:
    """Return whether a config.json states Chameleon's architecture. Lumina-mGPT has the same architecture."""
    return model_type(config) == "chameleon"


def image_token_ids(vocabulary: dict[str, int]) -> list[int]:
    """Return the token ids of all codes, in code order.

    Raises:
        AdtError: If a code is missing, or if the ids are not consecutive; drafters require consecutive ids.
    """
    codes = image_tokens(vocabulary, "IMGIMG", "Z", "image-generating Chameleon")
    wrong = next((code for code, number in enumerate(codes) if number != codes[0] + code), None)
    if wrong is not None:
        raise AdtError("vocabulary.wrong_id", code=wrong, id=codes[wrong], expected=codes[0] + wrong)
    return codes


class ChameleonPrompter(TokenPrompter):
    """Prompter with rows ``<s> text <reserved08706> <racm3:break>``. Unconditional rows are ``<s> <racm3:break>``."""

    BOS = BOS

    def suffix_tokens(self, grid: tuple[int, int]) -> tuple[str, ...]:
        return SEPARATOR, BEGIN_IMAGE

    def unconditional(self, prompt: EncodedPrompt, grid: tuple[int, int]) -> EncodedPrompt:
        return EncodedPrompt(self.ids(BOS, BEGIN_IMAGE))


def add_codec(checkpoint: Checkpoint) -> None:
    """Add the codec from another file, if the checkpoint has no image decoder.

    Most checkpoints in transformers' layout lack the image decoder. The other file is Meta's ``vqgan.ckpt``, or the
    weights file in the folder ``Anole-7b-v0.1-vqvae-hf``. If neither is found, the checkpoint stays unchanged.
    """
    file = None if f"{CODEC}decoder.conv_in.weight" in checkpoint.names else checkpoint.find_companion(_CODEC_FILES)
    if file is not None:
        checkpoint.add(file, CODEC)


def build(checkpoint: Checkpoint, family: str, codec: VQModel, cells: int, named: tuple[str, ...] = ()) -> Target:
    """Return an empty target of Chameleon's architecture.

    Args:
        codec: Codec without weights.
        cells: Number of codes per side of an image of the default size, which is a square.
        named: Names of more tokens that the vocabulary must contain. The first of them ends every row of codes. If
            empty, rows of codes have no end token.

    Raises:
        AdtError: If a field of config.json is missing or has an unsupported value.
    """
    if checkpoint.config.get("swin_norm"):
        raise AdtError("chameleon.swin_norm", path=checkpoint.path)
    vocabulary = read_vocabulary(checkpoint, (BOS, SEPARATOR, BEGIN_IMAGE, *named))
    config = decoder_config(checkpoint.config, checkpoint.path)
    codes = image_token_ids(vocabulary)
    row_end = [vocabulary[name] for name in named[:1]]
    config = with_min_positions(config, cells * (cells + len(row_end)))
    decoder = Decoder(config, torch.tensor(codes + row_end, device="cpu"), len(codes))
    add_codec(checkpoint)
    grid = (cells, cells)
    script_vocab_size = config.vocab_size
    return Target(checkpoint.name, family, decoder, codec, grid, bool(row_end), script_vocab_size=script_vocab_size)


def skeleton(checkpoint: Checkpoint) -> Target:
    """Return an empty target for a Chameleon checkpoint."""
    codec = VQModel(vq_config(section(checkpoint.config, "vq_config", checkpoint.path), checkpoint.path))
    return build(checkpoint, FAMILY.name, codec, codec.config.cells)


def entries(target: Target, checkpoint: Checkpoint) -> list[Entry]:
    """Return the entries of the decoder, in transformers' layout, and of the codec, with prefix ``model.vqmodel.``."""
    return decoder_entries(target.decoder, checkpoint) + module_entries(target.codec, CODEC)


LICENCE = "Chameleon's, for research"
ANOLE = Download(
    "leloy/Anole-7b-v0.1-hf", 14, LICENCE, "Anole-7b-v0.1-hf", commit="96df52301e844d8a624a13953051ead4c008343b"
)
CHAMELEON_CODEC = Download("leloy/Anole-7b-v0.1-vqvae-hf", 0.3, LICENCE, "Anole-7b-v0.1-vqvae-hf")
ANOLE_DRAFTER = Download("jadohu/anole_drafter", 1, LICENCE, "anole_drafter")
FAMILY = Family(
    name="chameleon",
    title="Anole",
    recognises=is_chameleon,
    skeleton=skeleton,
    entries=entries,
    prompter=ChameleonPrompter.of,
    unneeded=(f"{CODEC}loss.",),
    remedies={CODEC: ("remedy.chameleon_codec", CHAMELEON_CODEC)},
    sampling=PublishedSampling(
        temperature=0.7,
        top_p=0.9,
        source="github.com/facebookresearch/chameleon",
        lantern=Lantern(neighbours=100, delta=0.5),  # in the README of ADT-Tree, for Anole
    ),
    search=("anole", "chameleon"),
    companions=_CODEC_FILES,
    published=(
        Published("bundled", (), "128", (0.1, 0.1, 0.1)),
        Published(ANOLE.folder, (ANOLE, CHAMELEON_CODEC), "512", (15.8, 9.7, 7.3), ANOLE_DRAFTER),
    ),
)
