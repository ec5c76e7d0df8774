"""From a picture to the tokens that an image starts from: in raster order, its beginning is kept and the rest drawn."""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from ..errors import AdtError
from ..models.target import Target
from .images import FORMATS, UNSOUND, open_image

KEEP = 0.5
"""Share of a picture's rows that is kept unless told otherwise."""


def check(options: argparse.Namespace) -> None:
    """Raises AdtError for options of ``generate`` that don't go together, and for a picture that can't be read."""
    if options.continue_from is not None:
        prefix_length((1, 1), options.keep or 0.0, options.keep_left or 0.0)
        open_picture(options.continue_from, "--continue-from")
    elif options.keep is not None or options.keep_left is not None:
        raise AdtError("--keep and --keep-left say how much of a picture is kept; name it with --continue-from.")


def prefix_codes(options: argparse.Namespace, target: Target) -> list[int]:
    """The codes that every image starts from: of the picture to continue, else those that a PNG to make again names."""
    if options.continue_from is None:
        return options.kept or []
    rows, columns = target.grid
    picture = open_picture(options.continue_from, "--continue-from")
    pixels = to_pixels(picture, rows * target.downsample, columns * target.downsample)
    keep = KEEP if options.keep is None else options.keep
    count = prefix_length(target.grid, keep, options.keep_left or 0.0)
    if count == rows * columns:
        raise AdtError(f"--keep {keep:g} keeps all {rows} rows of tokens and leaves nothing to draw; choose less.")
    with torch.inference_mode():
        return target.codec.encode(pixels).flatten()[:count].tolist()


def prefix_length(grid: tuple[int, int], keep: float, keep_left: float = 0.0) -> int:
    """How many cells of a ``grid`` (rows, columns) are kept, in raster order.

    keep: share of the rows, from the top. keep_left: share of the first row below them, from the left. Both are from 0
    to 1, else AdtError, and are rounded to the nearest row or cell.
    """
    for name, share in (("keep", keep), ("keep_left", keep_left)):
        if not (math.isfinite(share) and 0 <= share <= 1):
            raise AdtError(f"{name} is {share}; it must be a number from 0 (nothing) to 1 (everything).")
    rows, columns = grid
    return min(math.floor(keep * rows + 0.5) * columns + math.floor(keep_left * columns + 0.5), rows * columns)


def open_picture(path: Path, option: str, remedy: str = "") -> Image.Image:
    """The picture at ``path`` in RGB, upright. AdtError if it can't be read; it names ``option`` and the ``remedy``."""
    try:
        with open_image(path) as image:
            return ImageOps.exif_transpose(image).convert("RGB")
    except UNSOUND as error:
        reason = getattr(error, "strerror", None) or f"it is damaged, or none of {', '.join(FORMATS)}"
        raise AdtError(
            f"{option}: '{path}' can't be read as a picture ({reason}){remedy and f'; {remedy}'}."
        ) from error


def to_pixels(picture: Image.Image, height: int, width: int) -> Tensor:
    """Pixels [1, 3, height, width] in [-1, 1]. A picture of another size is cropped evenly, then resized."""
    if picture.size != (width, height):
        picture = ImageOps.fit(picture, (width, height), Image.Resampling.LANCZOS)
    return torch.from_numpy(np.asarray(picture).copy()).permute(2, 0, 1)[None].float() / 127.5 - 1
