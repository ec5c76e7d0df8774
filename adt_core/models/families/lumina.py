"""Lumina-mGPT: Chameleon with an end token after every row of the image, and the image size in the prompt.

Liu et al., arXiv 2408.02657. Height and width are multiples of 32 pixels. The prompt contains one token for the
height and one for the width: ``<reserved08824>`` means 24 * 32 = 768 pixels, because 8824 is 8800 + 24.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import ClassVar

from ...errors import AdtError
from ...messages import message
from ..family import Family
from ..prompter import TokenPrompter
from ..reading.checkpoint import Checkpoint
from ..reading.codec import vq_config
from ..reading.fields import section
from ..reading.tokenizer import has_tokenizer
from ..repositories import Download, Published
from ..target import EncodedPrompt, PublishedSampling, Target
from ..vq import VQModel
from . import chameleon
from .chameleon import BEGIN_IMAGE, CHAMELEON_CODEC, SEPARATOR, ChameleonPrompter, build, entries, is_chameleon

END_OF_ROW = "<reserved08799>"
PIXELS = 32  # height and width are multiples of this number of pixels
_CELLS = 2  # number of codes per 32 pixels
MAX_ASPECT = 4  # largest ratio of the longer side to the shorter side
HEADER = 3  # the authors' script also samples the 3 tokens before the first code: begin of image, height and width


def _recognises(config: dict, names: Collection[str]) -> bool:
    """Return whether a config.json names Lumina-mGPT's class, or has a field that Chameleon's config.json lacks."""
    has_own_field = "z_loss_weight" in config or "mask_image_logits" in config
    return "XLLMX" in str(config.get("architectures")) or (is_chameleon(config) and has_own_field)


def size_token(steps: int) -> str:
    """Return the name of the token for a side of ``steps`` times 32 pixels."""
    return f"<reserved{8800 + steps:05}>"


class LuminaPrompter(ChameleonPrompter):
    """Prompter with rows ``<s> request <reserved08706> <racm3:break> height width``.

    The request is a sentence that contains the image size and the prompt. Unconditional rows consist of only the
    last three tokens: ``<racm3:break> height width``.
    """

    CELLS: ClassVar[int] = _CELLS

    def format_text(self, text: str, grid: tuple[int, int]) -> str:
        height, width = (side // self.CELLS * PIXELS for side in grid)
        return f"Generate an image of {width}x{height} according to the following prompt:\n{text}"

    def suffix_tokens(self, grid: tuple[int, int]) -> tuple[str, ...]:
        return SEPARATOR, *self._header(grid)

    def unconditional(self, prompt: EncodedPrompt, grid: tuple[int, int]) -> EncodedPrompt:
        return EncodedPrompt(self.ids(*self._header(grid)))

    def _header(self, grid: tuple[int, int]) -> tuple[str, ...]:
        """Return the names of the three tokens before the first code: begin of image, height and width."""
        return BEGIN_IMAGE, *(size_token(side // self.CELLS) for side in grid)

    def check_grid(self, grid: tuple[int, int], usual: tuple[int, int]) -> str:
        rows, columns = grid
        if rows % self.CELLS or columns % self.CELLS or not min(grid):
            return message("limit.multiples", side=PIXELS)
        if rows * columns > usual[0] * usual[1]:
            height, width = (side // self.CELLS * PIXELS for side in usual)
            return message("limit.too_many_pixels", width=width, height=height)
        if max(grid) > MAX_ASPECT * min(grid):
            return message("limit.aspect", most=MAX_ASPECT)
        return ""


def skeleton(checkpoint: Checkpoint) -> Target:
    """Return an empty target for a Lumina-mGPT checkpoint.

    The default size of its images is in the folder's name, because the files do not contain the size.
    """
    sizes = re.findall(r"(?<!\d)(?:512|768|1024)(?!\d)", checkpoint.name)
    if len(set(sizes)) != 1:
        raise AdtError("lumina.no_size", path=checkpoint.path)
    steps = int(sizes[0]) // PIXELS
    fields = section({"vq_config": {}, **checkpoint.config}, "vq_config", checkpoint.path)
    codec = VQModel(vq_config(fields, checkpoint.path))
    target = build(checkpoint, FAMILY.name, codec, steps * _CELLS, (END_OF_ROW, size_token(steps)))
    target.script_header = HEADER
    return target


def prompter(target: Target, checkpoint: Checkpoint) -> TokenPrompter:
    """Return the prompter of a target, or raise an AdtError without a tokenizer.json, which most repositories lack."""
    if not has_tokenizer(checkpoint.folder):
        command = _tokenizer(checkpoint.folder.name).command(checkpoint.folder.parent)
        raise AdtError("lumina.no_tokenizer", folder=checkpoint.folder, command=command)
    return LuminaPrompter.of(target, checkpoint)


def _download(version: str) -> Download:
    """Return the download of a 7B model. ``version`` is the end of its name, such as "768" or "768-Omni"."""
    name = f"Lumina-mGPT-7B-{version}"
    commit = "9624463a82ea5ce814af9b561dcd08a31082c3af" if version == "768" else ""
    licence = "not stated; it builds on Chameleon, which is for research"
    return Download(f"Alpha-VLLM/{name}", 14, licence, name, commit=commit)


def _tokenizer(folder: str) -> Download:
    """Return the download of the tokenizer to a model's folder. All versions use the tokenizer of one repository."""
    return _download("768")._replace(gigabytes=0.006, folder=folder, files=("tokenizer.json",))


def _published(version: str, memory: tuple[float, float, float], drafter: Download | None = None) -> Published:
    """Return a published model. Its downloads include the codec, and the tokenizer if its repository lacks one."""
    own = _download(version)
    tokenizer = () if version == "768" else (_tokenizer(own.folder),)
    pixels = f"{version.removesuffix('-Omni')}, or as many in another shape"
    return Published(own.folder, (own, *tokenizer, CHAMELEON_CODEC), pixels, memory, drafter)


_DRAFTER = "LANTERN-Lumina-mGPT-7B-768"
FAMILY = Family(
    name="lumina-mgpt",
    title="Lumina-mGPT",
    recognises=_recognises,
    skeleton=skeleton,
    entries=entries,
    prompter=prompter,
    unneeded=chameleon.FAMILY.unneeded,
    remedies=chameleon.FAMILY.remedies,
    sampling=PublishedSampling(guidance_scale=4.0, top_k=2000, source="github.com/Alpha-VLLM/Lumina-mGPT"),
    trained=(1, 1),  # only sizes with as many pixels as the default square were trained
    search=("lumina",),
    published=(
        _published("512", (15.8, 9.8, 7.3)),
        _published("768", (18.4, 12.4, 9.9), Download(f"sihwanpark/{_DRAFTER}", 1, "Apache 2.0", _DRAFTER)),
        _published("768-Omni", (18.4, 12.4, 9.9)),
        _published("1024", (22.1, 16.1, 13.6)),
    ),
)
