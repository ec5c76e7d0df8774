"""Training data of a drafter: captions and codes of images.

The target generates the images, or the target's codec encodes image files. The codes are stored in `codes.npy`, an
int32 array [images, tokens]. All codes of a missing image are -1. When an interrupted run is started again, only the
missing images are made.
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
from ...app.prompts import read_prompts, sample
from ...errors import AdtError, Check
from ...files import IMAGE_SUFFIXES, foreign_text, list_images, opened, read_text, reason, refuse_links, write_in
from ...models.target import Target
from ...policies import PLAIN, Drafting
from ...recipe import Recipe
from ...run.jobs import Job
from ...run.pipeline import Pipeline
from ...settings import Sampling

LARGEST_CAPTION = 1
"""Maximum size of a caption file in MiB."""


class TrainingImages:
    """Captions and codes of the training images. The codes are stored on the disk.

    Args:
        path: File of the codes. It is created if it does not exist.
        length: Number of tokens per image.

    Raises:
        AdtError: If the file cannot be read, or its content does not fit these images.
    """

    def __init__(self, path: Path, prompts: list[str], length: int, num_codes: int):
        self.prompts = prompts
        if not path.exists():
            buffer = io.BytesIO()
            np.save(buffer, np.full((len(prompts), length), -1, np.int32))
            write_in(path.parent, path.name, buffer.getbuffer())
        refuse_links(path)  # it is modified in place
        try:
            opened(path).close()
            self._codes = np.lib.format.open_memmap(path, "r+")
        except (OSError, ValueError, SyntaxError) as error:
            raise AdtError("tokens.unreadable", path=path, reason=reason(error)) from error
        if self._codes.shape != (len(prompts), length) or self._codes.dtype != np.int32:
            raise AdtError(
                "tokens.other_shape",
                path=path,
                dtype=self._codes.dtype,
                shape=self._codes.shape,
                count=len(prompts),
                length=length,
            )
        if self._codes.max(initial=-1) >= num_codes:
            raise AdtError("tokens.unknown", path=path)

    @property
    def missing(self) -> list[int]:
        """Indices of the missing images."""
        return np.flatnonzero((self._codes < 0).any(1)).tolist()

    def fill(self, codes_of: Callable[[list[int], int], Tensor], batch: int) -> None:
        """Make the missing images and store them.

        Args:
            codes_of: Function that makes images. Its arguments are the indices of the images to make, and the number of
                images that exist already. It returns their codes, [len(indices), tokens].
            batch: Maximum number of images per call of `codes_of`.
        """
        missing = self.missing
        for start in range(0, len(missing), batch):
            numbers = missing[start : start + batch]
            self.put(numbers, codes_of(numbers, len(self.prompts) - len(missing) + start))

    def put(self, numbers: list[int], codes: Tensor) -> None:
        """Store the codes [len(numbers), tokens] of some images."""
        self._codes[numbers] = codes.numpy()
        self._codes.flush()

    def codes(self, numbers: list[int]) -> Tensor:
        """Return the codes of some images, [len(numbers), tokens] int64."""
        return torch.from_numpy(self._codes[numbers].astype(np.int64))


def find_training_images(
    args: TrainingDataArgs, batch: int, seed: int, texts: Sequence[str]
) -> tuple[list[str], list[Path] | None]:
    """Select the training images.

    Args:
        batch: Number of images per forward pass.
        seed: Seed of the random selection and order.
        texts: Prompts to use if `args` names neither images nor a file of prompts.

    Returns:
        Prompts and image files, held-out images first. The files are None if the target generates the images.

    Raises:
        AdtError: If there are too few images.
    """
    held_out = args.validation_prompts
    paths = None
    if args.images:
        paths, prompts = find_captioned(args.images)
        order = np.random.default_rng(seed).permutation(len(paths))[: (args.training_images or len(paths)) + held_out]
        paths = [paths[i] for i in order]
        prompts = [prompts[i] for i in order]
    else:
        texts = read_prompts(args.prompts) if args.prompts else texts
        prompts = _assign(texts, args.training_images, held_out, seed)
    if len(prompts) >= held_out + batch:
        return prompts, paths
    named = args.images or args.prompts or "the list"
    source = f"`{'images' if args.images else 'prompts'}`: '{named}'"
    if not paths and len(prompts) > held_out:
        raise AdtError("training.too_few_pictures", source=source, count=len(prompts) - held_out, batch=batch)
    raise AdtError(
        "training.too_few_captions",
        source=source,
        count=len(prompts),
        needed=held_out + batch,
        held_out=held_out,
        batch=batch,
    )


def _assign(prompts: Sequence[str], images: int | None, held_out: int, seed: int) -> list[str]:
    """Return one prompt per image, in random order. Duplicates are used once.

    The first `held_out` images get different prompts, which no training image gets. The training images get the
    remaining prompts. If there are more training images than remaining prompts, the remaining prompts are repeated.

    Args:
        images: Number of training images; None for one image per remaining prompt.
    """
    distinct = list(dict.fromkeys(prompts))
    distinct = sample(distinct, len(distinct), seed)
    rest = distinct[held_out:]
    return distinct[:held_out] + [rest[i % len(rest)] for i in range(images or len(rest)) if rest]


def find_captioned(folder: Path) -> tuple[list[Path], list[str]]:
    """Return the image files in a folder and their captions. The caption of `1.jpg` is the content of `1.txt`.

    Raises:
        AdtError: If `folder` is not a folder, it has no images, or a caption is missing.
    """
    if not folder.is_dir():
        raise AdtError("images.no_folder", folder=folder)
    paths = list_images(folder, "*")
    if not paths:
        raise AdtError("images.none", folder=folder, suffixes=", ".join(IMAGE_SUFFIXES))
    return paths, [_caption(path) for path in paths]


def caption_file(path: Path) -> Path:
    """Return the path of the caption file of an image."""
    return path.with_suffix(".txt")


def _caption(path: Path) -> str:
    text_file = caption_file(path)
    try:
        caption = read_text(text_file, LARGEST_CAPTION).strip()
        if "\0" in caption:
            raise UnicodeError
    except FileNotFoundError:
        caption = ""
    except OSError as error:
        raise AdtError("caption.unreadable", path=text_file, reason=reason(error)) from error
    except UnicodeError as error:
        with opened(text_file) as file:
            kind = foreign_text(file.read(LARGEST_CAPTION * 2**20))
        raise AdtError("caption.not_text", path=text_file, kind=kind) from error
    if not caption:
        raise AdtError("caption.missing", path=path, file=text_file.name)
    return caption


def plain_pipeline(target: Target, sampling: Sampling) -> Pipeline:
    """Return the pipeline that generates training images.

    It has no drafts. Training images are generated in large batches, in which drafting is not faster.
    """
    return Pipeline(target, Recipe(sampling, Drafting(PLAIN)))


def generate(
    target: Target,
    prompts: Sequence[str],
    numbers: Sequence[int],
    sampling: Sampling,
    check: Check | None = None,
    on_images: Callable[[float], None] = lambda images: None,
) -> Tensor:
    """Generate training images in one batch.

    Args:
        numbers: Index of each image. The noise of an image depends on its index.
        on_images: Progress callback. It is called after each round with the number of images that are done; images in
            progress count in part.

    Returns:
        [B, T], the T codes of each of the B images.
    """
    jobs = [Job(number, text, sampling.seed, number, text=text) for number, text in zip(numbers, prompts, strict=True)]
    for progress in plain_pipeline(target, sampling).run(jobs, len(jobs), check, part_factor=1):
        on_images(progress.done / target.length)
    return progress.decoding.codes


def encode(target: Target, paths: list[Path]) -> Tensor:
    """Encode image files to tokens.

    Each image is first cropped around its centre, to the aspect ratio of the images that the target generates. Then it
    is resized to the size of these images.

    Returns:
        [B, T], the T tokens of each of the B images.
    """
    height, width = (side * target.downsample for side in target.grid)
    codes = []
    for path in paths:
        pixels = to_pixels(open_rgb(path, "images", "images.unreadable"), height, width)
        with torch.inference_mode():
            cells = target.codec.encode(pixels).cpu()
            codes.append(target.kept(cells, torch.zeros_like(cells, dtype=torch.bool)))
    return target.tokens(torch.cat(codes))
