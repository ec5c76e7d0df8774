"""Conversion of input images to codebook indices ("codes").

There are two kinds of input images: an image to continue, whose upper part is kept, and source images to edit.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from ..errors import AdtError
from ..models.target import Target
from ..run.images import FORMATS, IMAGE_ERRORS, open_image, to_rgb
from .args import ImageToImageArgs

DEFAULT_KEEP = 0.5
"""Default share of the rows to keep from an image to continue."""
_SOURCE_SIDES = 512, 2048
"""Minimum length of a source image's shorter side, and maximum length of its longer side, in pixels.

GLM-Image's processor uses the same values."""


def check_args(args: ImageToImageArgs) -> None:
    """Check that the arguments are consistent and that the images can be read.

    Args:
        args: Paths of the input images, and the shares to keep.

    Raises:
        AdtError: If an image cannot be read, or `keep` or `keep_left` is set without an image to continue.
    """
    for path in args.source:
        open_rgb(path, "source")
    if args.continue_from is not None:
        open_rgb(args.continue_from, "continue_from")
    elif args.keep is not None or args.keep_left is not None:
        raise AdtError("`keep` and `keep_left` need an image to continue; give it with `continue_from`.")


def prefix_codes(args: ImageToImageArgs, target: Target) -> tuple[int, ...]:
    """Return the codes that every generated image starts with, in raster order.

    Args:
        args: Path of the image to continue, and the shares to keep. Without an image to continue, the result is ().

    Raises:
        AdtError: If the image cannot be read, or if the shares keep the complete image.
    """
    if args.continue_from is None:
        return ()
    rows, columns = target.grid
    side = target.downsample
    image = open_rgb(args.continue_from, "continue_from")
    pixels = to_pixels(image, rows * side, columns * side)
    small: Tensor | None = None
    keep = DEFAULT_KEEP if args.keep is None else args.keep
    count = prefix_length(target.grid, keep, args.keep_left or 0.0)
    if count == rows * columns:
        raise AdtError(f"`keep` is {keep:g}, which keeps all {rows} rows of tokens; choose a smaller number.")
    with torch.inference_mode():
        if count and all(target.lead):
            small = target.codec.encode(to_pixels(image, *(side * cells for cells in target.lead)))
        return tuple(target.beginning(target.codec.encode(pixels), count, small)[0].tolist())


def source_codes(args: ImageToImageArgs, target: Target) -> tuple[int, ...]:
    """Return the source images as one flat tuple. The settings of a PNG store the source images in this form.

    For each image, the tuple contains the number of rows, the number of columns, and the codes in raster order.
    For example, an image of 1 row and 2 columns with codes 7 and 9 is (1, 2, 7, 9).

    Raises:
        AdtError: If an image cannot be read.
    """
    return tuple(number for path in args.source for number in _source_codes(path, target))


def _source_codes(path: Path, target: Target) -> list[int]:
    """Return the number of rows, the number of columns, and the codes of one source image as one list."""
    image = open_rgb(path, "source")
    side = target.downsample
    shortest, longest = _SOURCE_SIDES
    scale = max(1.0, shortest / min(image.size))
    scale = min(scale, longest / max(image.size))
    columns, rows = (max(1, round(length * scale / side)) for length in image.size)
    with torch.inference_mode():
        codes = target.codec.encode(to_pixels(image, rows * side, columns * side))
    return [rows, columns, *codes.flatten().tolist()]


def prefix_length(grid: tuple[int, int], keep: float, keep_left: float = 0.0) -> int:
    """Return the number of grid cells to keep, in raster order.

    Args:
        grid: Rows and columns.
        keep: Share of the rows to keep, from the top, 0 to 1. The number of rows is rounded.
        keep_left: Share of the next row to keep, from the left, 0 to 1. The number of cells is rounded.

    Raises:
        AdtError: If a share is outside of its range.
    """
    for name, share in (("keep", keep), ("keep_left", keep_left)):
        if not (math.isfinite(share) and 0 <= share <= 1):
            raise AdtError(f"`{name}` is {share}; it must be a number from 0 (nothing) to 1 (everything).")
    rows, columns = grid
    return min(math.floor(keep * rows + 0.5) * columns + math.floor(keep_left * columns + 0.5), rows * columns)


def open_rgb(path: Path, name: str, remedy: str = "") -> Image.Image:
    """Read an image in RGB, and rotate it as its EXIF data requires.

    Args:
        name: Name of the option or node input that has this path, for the error message.
        remedy: Text to append to the error message, or "".

    Raises:
        AdtError: If the file cannot be read as an image.
    """
    try:
        with open_image(path) as image:
            return to_rgb(ImageOps.exif_transpose(image))
    except IMAGE_ERRORS as error:
        reason = getattr(error, "strerror", None) or f"it is damaged, or not one of {', '.join(FORMATS)}"
        raise AdtError(f"`{name}`: '{path}' can't be read as an image ({reason}){remedy and f'; {remedy}'}.") from error


def to_pixels(image: Image.Image, height: int, width: int) -> Tensor:
    """Return an image as pixels [1, 3, height, width] float32 in [-1, 1].

    Args:
        image: Image in RGB. If it has another size, it is cropped around its centre and resized.
        height: Height in pixels.
        width: Width in pixels.
    """
    if image.size != (width, height):
        image = ImageOps.fit(image, (width, height), Image.Resampling.LANCZOS)
    return torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1)[None].float() / 127.5 - 1
