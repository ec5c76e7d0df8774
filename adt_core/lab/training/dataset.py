"""What a drafter is trained on: captions, and the codes of their pictures, drawn by the target or encoded from files.

Codes are kept in ``codes.npy``, int32 [pictures, tokens], -1 where a picture is not made yet, so that making them can
be interrupted at any time.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ...app.args import TrainingDataArgs
from ...app.continuation import open_rgb, to_pixels
from ...app.jobs import new_decoding
from ...app.prompts import read_prompts, sample
from ...engine.decoding import Decoding
from ...engine.job import Job
from ...errors import AdtError, Check
from ...files import is_regular, opened, read_text, reason, refuse_links, write_in
from ...models.target import Target
from ...policies import PLAIN, Drafting
from ...policies.recipe import Recipe
from ...rules.settings import Sampling

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp")
LARGEST_CAPTION = 1
"""MiB of a file that holds the caption of a picture."""


class TrainingImages:
    """Captions and codes. The file of codes at ``path`` is opened or begun, for pictures of ``length`` tokens, of which
    there are ``kinds``."""

    def __init__(self, path: Path, prompts: list[str], length: int, kinds: int):
        self.prompts = prompts
        if not path.exists():
            buffer = io.BytesIO()
            np.save(buffer, np.full((len(prompts), length), -1, np.int32))
            write_in(path.parent, path.name, buffer.getbuffer())
        refuse_links(path)  # it is written in its place
        try:
            opened(path).close()
            self._codes = np.lib.format.open_memmap(path, "r+")
        except (OSError, ValueError, SyntaxError) as error:
            raise AdtError(f"{path} can't be read ({reason(error)}); delete it, or choose another `output`.") from error
        if self._codes.shape != (len(prompts), length) or self._codes.dtype != np.int32:
            raise AdtError(
                f"{path} holds {self._codes.dtype} of shape {self._codes.shape}, but {len(prompts)} images of "
                f"{length} tokens in int32 are needed; delete it, or choose another `output`."
            )
        if self._codes.max(initial=-1) >= kinds:
            raise AdtError(f"{path} holds tokens that the model does not have; delete it, or choose another `output`.")

    @property
    def missing(self) -> list[int]:
        """Numbers of those that are not made yet."""
        return np.flatnonzero((self._codes < 0).any(1)).tolist()

    def make(self, codes_of: Callable[[list[int], int], Tensor], together: int) -> None:
        """Make the missing pictures, ``together`` at once.

        codes_of: their numbers, and how many pictures are done -> codes [len(numbers), tokens].
        """
        missing = self.missing
        for start in range(0, len(missing), together):
            numbers = missing[start : start + together]
            self.put(numbers, codes_of(numbers, len(self.prompts) - len(missing) + start))

    def put(self, numbers: list[int], codes: Tensor) -> None:
        """Enter the codes [len(numbers), tokens] of some pictures."""
        self._codes[numbers] = codes.numpy()
        self._codes.flush()

    def codes(self, numbers: list[int]) -> Tensor:
        """Codes [len(numbers), tokens] int64 of some pictures."""
        return torch.from_numpy(self._codes[numbers].astype(np.int64))


def find_training_images(
    lessons: TrainingDataArgs, batch: int, seed: int, texts: Sequence[str]
) -> tuple[list[str], list[Path] | None]:
    """Prompts of all pictures, held-out ones first, and paths of their files, None if the target draws them.

    batch: pictures of a step. texts: prompts, where ``lessons`` names no file. AdtError if there are too few.
    """
    held_out, paths = lessons.held_out, None
    if lessons.images:
        paths, prompts = find_captioned(lessons.images)
        order = np.random.default_rng(seed).permutation(len(paths))[: (lessons.pictures or len(paths)) + held_out]
        paths, prompts = [paths[i] for i in order], [prompts[i] for i in order]
    else:
        texts = read_prompts(lessons.prompts) if lessons.prompts else texts
        prompts = _spread(texts, lessons.pictures, held_out, seed)
    if len(prompts) >= held_out + batch:
        return prompts, paths
    named = lessons.images or lessons.prompts or "the list"
    source = f"`{'images' if lessons.images else 'prompts'}`: '{named}'"
    if not paths and len(prompts) > held_out:
        raise AdtError(
            f"{source} gives {len(prompts) - held_out} images to train on, but one step needs {batch} (`batch`); "
            "increase `pictures`."
        )
    raise AdtError(
        f"{source} has {len(prompts)} captions, but {held_out + batch} are needed: {held_out} for measuring "
        f"(`held_out`) and {batch} for one step (`batch`); add captions, or lower these."
    )


def _spread(prompts: Sequence[str], pictures: int | None, held_out: int, seed: int) -> list[str]:
    """One prompt per picture, in an order that ``seed`` fixes. The first ``held_out`` are used once, the others in turn
    for ``pictures`` pictures; None uses each once."""
    distinct = list(dict.fromkeys(prompts))
    distinct = sample(distinct, len(distinct), seed)
    rest = distinct[held_out:]
    return distinct[:held_out] + [rest[i % len(rest)] for i in range(pictures or len(rest)) if rest]


def find_captioned(folder: Path) -> tuple[list[Path], list[str]]:
    """The pictures of a folder, and their captions: ``NAME.txt`` beside ``NAME.jpg``. Raises AdtError."""
    if not folder.is_dir():
        raise AdtError(
            f"`images`: '{folder}' is not a folder; choose a folder of images with captions, such as 1.jpg and 1.txt."
        )
    paths = sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES and is_regular(path))
    if not paths:
        raise AdtError(
            f"`images`: '{folder}' contains no {', '.join(SUFFIXES)}; choose a folder of images with captions, "
            "such as 1.jpg and 1.txt."
        )
    return paths, [_caption(path) for path in paths]


def caption_file(path: Path) -> Path:
    """Where the caption of a picture is."""
    return path.with_suffix(".txt")


def _caption(path: Path) -> str:
    beside = caption_file(path)
    try:
        caption = read_text(beside, LARGEST_CAPTION).strip()
    except (OSError, UnicodeDecodeError):
        caption = ""
    if not caption:
        raise AdtError(f"`images`: '{path}' has no caption; write what it shows in {beside.name} next to it.")
    return caption


def plain_decoding(
    target: Target,
    prompts: list[str],
    numbers: list[int],
    sampling: Sampling,
    check: Check | None = None,
) -> Decoding:
    """The plain decoding of the prompts' pictures, whose codes are [B, T] int64; ``numbers`` are their image indices.

    Drafts would win nothing: with many pictures at once the target's forwards are full.
    """
    recipe = Recipe(sampling, Drafting(PLAIN))
    return new_decoding(Job(target, recipe), prompts, numbers, check=check)


def encode(target: Target, paths: list[Path]) -> Tensor:
    """Codes [B, T] of the pictures in files, cropped evenly to the shape of the target's images."""
    height, width = (side * target.downsample for side in target.grid)
    codes = []
    for path in paths:
        pixels = to_pixels(open_rgb(path, "images", "remove it or save it again"), height, width)
        with torch.inference_mode():
            cells = target.codec.encode(pixels).cpu()
            codes.append(target.beginning(cells, cells[0].numel()))
    return target.tokens(torch.cat(codes))
