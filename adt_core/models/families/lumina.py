"""Lumina-mGPT: Chameleon's transformer and codec, with an end token behind every row of the image and the image's size in the prompt.

Liu et al., arXiv 2408.02657. Sizes come in steps of 32 pixels; the token ``<reserved{8800 + n}>`` stands for n steps.
"""

from __future__ import annotations

import re

import torch

from ..checkpoint import Checkpoint
from ..layers import Decoder
from ..layout import decoder_config, load_tokenizer, read_vocabulary
from ..target import Family, Prompt, Target
from ..vq import VQConfig, VQModel
from .chameleon import (
    BEGIN_IMAGE,
    BOS,
    CODEC,
    CODEC_REMEDY,
    SEPARATOR,
    ChameleonPrompter,
    entries,
    find_codec,
    image_token_ids,
    is_chameleon,
)

END_OF_ROW = "<reserved08799>"
_CELLS = 2  # tokens in a step of size
_PIXELS = 32
_MOST_OBLONG = 4  # width to height or height to width


def _size_token(steps: int) -> str:
    return f"<reserved{8800 + steps:05}>"


class LuminaPrompter(ChameleonPrompter):
    """Rows ``<s> request <reserved08706> <racm3:break> height width``, and the last three without a text."""

    def request(self, text: str, grid: tuple[int, int]) -> str:
        height, width = (side // _CELLS * _PIXELS for side in grid)
        return f"Generate an image of {width}x{height} according to the following prompt:\n{text}"

    def header(self, grid: tuple[int, int]) -> list[str]:
        return [BEGIN_IMAGE, *(_size_token(side // _CELLS) for side in grid)]

    def tokens(self, grid: tuple[int, int]) -> int:
        return grid[0] * (grid[1] + 1)

    def unconditional(self, prompt: Prompt, grid: tuple[int, int]) -> Prompt:
        return Prompt(self.vocabulary[name] for name in self.header(grid))

    def check_grid(self, grid: tuple[int, int], usual: tuple[int, int]) -> str:
        rows, columns = grid
        if rows % _CELLS or columns % _CELLS or not min(grid):
            return f"both sides must be multiples of {_PIXELS}"
        if rows * columns > usual[0] * usual[1]:
            return f"it may have no more pixels than {usual[1] // _CELLS * _PIXELS}x{usual[0] // _CELLS * _PIXELS}"
        return (
            "" if max(grid) <= _MOST_OBLONG * min(grid) else f"one side may be {_MOST_OBLONG} times the other at most"
        )


def skeleton(checkpoint: Checkpoint) -> Target:
    """An empty target of the family; the size of its images is in the name of its folder (768 if it is not)."""
    resolution = max((int(n) for n in re.findall(r"(?<!\d)(?:512|768|1024)(?!\d)", checkpoint.path.name)), default=768)
    side = resolution // _PIXELS
    vocabulary = read_vocabulary(checkpoint, (BOS, SEPARATOR, BEGIN_IMAGE, END_OF_ROW, _size_token(side)))
    config, codes = decoder_config(checkpoint.config, checkpoint.path), image_token_ids(vocabulary)
    decoder = Decoder(config, torch.tensor([*codes, vocabulary[END_OF_ROW]], device="cpu"), len(codes))
    codec = VQModel(VQConfig.from_dict(checkpoint.config.get("vq_config") or {}))
    find_codec(checkpoint)
    return Target(checkpoint.path.name, FAMILY.name, decoder, codec, (side * _CELLS, side * _CELLS), row_end=True)


def prompter(target: Target, checkpoint: Checkpoint) -> LuminaPrompter:
    """What reads the prompts of a target."""
    return LuminaPrompter(
        target.name,
        load_tokenizer(checkpoint.folder),
        checkpoint.config["vocabulary_map"],
        target.decoder.config.max_positions,
    )


def _recognises(checkpoint: Checkpoint) -> bool:
    """Its configuration names a class of its own, or has a field that Chameleon's hasn't."""
    config = checkpoint.config
    return is_chameleon(checkpoint) and (
        "XLLMX" in str(config.get("architectures")) or "z_loss_weight" in config or "mask_image_logits" in config
    )


FAMILY = Family(
    "lumina-mgpt", _recognises, skeleton, entries, prompter, unneeded=(f"{CODEC}loss.",), remedies=CODEC_REMEDY
)
