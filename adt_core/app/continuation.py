"""From a picture to the tokens that an image starts from: raster order lets its beginning be kept and the rest be drawn."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from ..errors import AdtError

KEEP = 0.5
"""Share of a picture's rows that is kept unless told otherwise."""


def kept_tokens(grid: tuple[int, int], keep: float, keep_left: float = 0.0) -> int:
    """How many tokens of a ``grid`` (rows, columns) are kept, in raster order.

    keep: share of the rows, from the top. keep_left: share of the first row below them, from the left. Both to the nearest token; from 0 to 1,
    else AdtError.
    """
    for name, share in (("keep", keep), ("keep_left", keep_left)):
        if not (math.isfinite(share) and 0 <= share <= 1):
            raise AdtError(f"{name} is {share}; it must be a number from 0 (nothing) to 1 (everything).")
    rows, columns = grid
    return min(math.floor(keep * rows + 0.5) * columns + math.floor(keep_left * columns + 0.5), rows * columns)


def open_picture(path: Path, option: str, remedy: str = "") -> Image.Image:
    """The picture at ``path`` in RGB, upright; an AdtError that names ``option``, and says the ``remedy``, if it can't be read."""
    try:
        with Image.open(path) as image:
            return ImageOps.exif_transpose(image).convert("RGB")
    except (OSError, SyntaxError, ValueError) as error:  # Pillow's ways to say that it is no sound picture
        reason = getattr(error, "strerror", None) or "it is damaged or of an unknown format"
        raise AdtError(
            f"{option}: '{path}' can't be read as a picture ({reason}){remedy and f'; {remedy}'}."
        ) from error


def to_pixels(picture: Image.Image, height: int, width: int) -> Tensor:
    """Pixels [1, 3, height, width] in [-1, 1]: cropped evenly to that shape and resized, if it is of another size."""
    if picture.size != (width, height):
        picture = ImageOps.fit(picture, (width, height), Image.Resampling.LANCZOS)
    return torch.from_numpy(np.asarray(picture).copy()).permute(2, 0, 1)[None].float() / 127.5 - 1
