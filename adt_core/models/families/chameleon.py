"""The Chameleon family: Anole-7B and the bundled model, in the Hugging Face layout.

Every token role is looked up by name in the checkpoint's own vocabulary; no id is hard-coded. Image token
``IMGIMG<letters>Z`` stands for the code whose decimal digits are the letters A..J.
"""

from __future__ import annotations

import torch

from ...errors import AdtError
from ..checkpoint import Checkpoint, Entry, whole
from ..layers import Decoder
from ..layout import decoder_config, decoder_entries, load_tokenizer, read_vocabulary
from ..prompter import TokenPrompter
from ..target import Family, Prompt, Target
from ..vq import VQConfig, VQModel

BOS, SEPARATOR, BEGIN_IMAGE = "<s>", "<reserved08706>", "<racm3:break>"
CODEC = "model.vqmodel."
_CODEC_FILES = ("vqgan.ckpt", "vqgan.safetensors", "*vqvae*/model.safetensors", "chameleon/tokenizer/vqgan.ckpt")


def image_token_ids(vocabulary: dict[str, int]) -> list[int]:
    """Token ids of the image codes, in code order. Raises AdtError if codes are missing."""
    digits = str.maketrans("ABCDEFGHIJ", "0123456789")
    names = [name for name in vocabulary if name.startswith("IMGIMG") and name.endswith("Z")]
    ids = {int(name[len("IMGIMG") : -1].translate(digits)): vocabulary[name] for name in names}
    if not ids or sorted(ids) != list(range(len(ids))):
        raise AdtError(
            "config.json's vocabulary_map does not name image tokens 0 to n - 1 as IMGIMG...Z; "
            "this is not an image-generating Chameleon checkpoint."
        )
    first = ids[0]
    wrong = next((code for code in range(len(ids)) if ids[code] != first + code), None)
    if wrong is not None:
        raise AdtError(
            f"config.json's vocabulary_map gives code {wrong} the id {ids[wrong]}, but code 0 has {first} and codes follow each other; "
            "use the checkpoint's own config.json."
        )
    return [first + code for code in range(len(ids))]


class ChameleonPrompter(TokenPrompter):
    """Rows ``<s> text <reserved08706> <racm3:break>``, and ``<s> <racm3:break>`` without a text."""

    def before(self) -> tuple[str, ...]:
        return (BOS,)

    def behind(self, grid: tuple[int, int]) -> tuple[str, ...]:
        return SEPARATOR, *self.header(grid)

    def unconditional(self, prompt: Prompt, grid: tuple[int, int]) -> Prompt:
        return Prompt([self.vocabulary[BOS], self.vocabulary[BEGIN_IMAGE]])

    def header(self, grid: tuple[int, int]) -> list[str]:
        """Names of the tokens that an image begins with."""
        return [BEGIN_IMAGE]


def find_codec(checkpoint: Checkpoint) -> None:
    """Take the codec from a file beside the checkpoint if the checkpoint has no image decoder of its own, as conversions of Chameleon hadn't.

    Looked for in its folder, then in the one above: Meta's ``vqgan.ckpt``, or the separate ``Anole-7b-v0.1-vqvae-hf``.
    """
    file = checkpoint.beside(_CODEC_FILES) if f"{CODEC}decoder.conv_in.weight" not in checkpoint.names else None
    if file is not None:
        checkpoint.add(file, CODEC)


def vq_config(checkpoint: Checkpoint) -> VQConfig:
    """Shape of the codec. AdtError if config.json has no ``vq_config``."""
    values = checkpoint.config.get("vq_config")
    if not isinstance(values, dict):
        raise AdtError(
            f"{checkpoint.path}: config.json has no vq_config, which describes the image tokenizer; use the checkpoint's own config.json."
        )
    return VQConfig.from_dict(values)


def skeleton(checkpoint: Checkpoint) -> Target:
    """An empty target of the family."""
    if checkpoint.config.get("swin_norm"):
        raise AdtError(
            f"{checkpoint.path}: config.json asks for swin_norm, which the 30B model has and this version can't; use a 7B checkpoint."
        )
    vocabulary = read_vocabulary(checkpoint, (BOS, SEPARATOR, BEGIN_IMAGE))
    config = decoder_config(checkpoint.config, checkpoint.path)
    decoder = Decoder(config, torch.tensor(image_token_ids(vocabulary), device="cpu"))
    codec = VQModel(vq_config(checkpoint))
    side = codec.config.resolution // codec.config.downsample
    find_codec(checkpoint)
    return Target(checkpoint.path.name, FAMILY.name, decoder, codec, (side, side))


def prompter(target: Target, checkpoint: Checkpoint) -> ChameleonPrompter:
    """What reads the prompts of a target."""
    return ChameleonPrompter(
        target.name,
        load_tokenizer(checkpoint.folder),
        checkpoint.config["vocabulary_map"],
        target.decoder.config.max_positions,
    )


def entries(target: Target, checkpoint: Checkpoint) -> list[Entry]:
    """The decoder under Hugging Face names, the codec under ``model.vqmodel.``."""
    return decoder_entries(target.decoder, checkpoint) + whole(target.codec, CODEC)


def is_chameleon(checkpoint: Checkpoint) -> bool:
    """Lumina-mGPT included."""
    return str(checkpoint.config.get("model_type")).startswith("chameleon")


CODEC_REMEDY = {CODEC: "put vqgan.ckpt of Chameleon, or the folder Anole-7b-v0.1-vqvae-hf, beside it"}
FAMILY = Family(
    "chameleon", is_chameleon, skeleton, entries, prompter, unneeded=(f"{CODEC}loss.",), remedies=CODEC_REMEDY
)
