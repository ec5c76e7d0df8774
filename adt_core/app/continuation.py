"""Codebook indices ("codes") of input images: an image to continue, of which a part is kept, or images to edit."""

from __future__ import annotations

import math

import torch

from ..errors import AdtError
from ..models.target import Target
from ..run.masks import kept_of, mask_cells, open_rgb, to_pixels, upper_part_kept
from .args import ImageToImageArgs

DEFAULT_KEEP = 0.5
"""Default share of the rows to keep from an image to continue."""
_SOURCE_SIDES = 512, 2048
"""Minimum length of a source image's shorter side, and maximum length of its longer side, in pixels.

GLM-Image's processor uses the same values."""


def check_args(args: ImageToImageArgs) -> None:
    """Check that the arguments are consistent and that the images can be read.

    Raises:
        AdtError: If an image cannot be read, `keep`, `keep_left` or `mask` is set without an image to continue, or a
            mask is set together with a share to keep.
    """
    for path in args.source:
        open_rgb(path, "source")
    if args.continue_from is not None:
        open_rgb(args.continue_from, "continue_from")
    elif args.mask is not None or args.keep is not None or args.keep_left is not None:
        raise AdtError("keep.without_image")
    if args.mask is not None:
        open_rgb(args.mask, "mask")
        if args.keep is not None or args.keep_left is not None:
            raise AdtError("keep.with_mask")


def kept_codes(args: ImageToImageArgs, target: Target) -> tuple[int, ...]:
    """Return the codes that every generated image keeps, in the form of `Recipe.kept`; () without an image to continue.

    Raises:
        AdtError: If an image cannot be read, or if the complete image is kept.
    """
    if args.continue_from is None:
        return ()
    image = open_rgb(args.continue_from, "continue_from")
    if args.mask is not None:
        return kept_of(image, mask_cells(args.mask, target), target)
    rows, columns = target.grid
    keep = DEFAULT_KEEP if args.keep is None else args.keep
    count = prefix_length(target.grid, keep, args.keep_left or 0.0)
    if count == rows * columns:
        raise AdtError("keep.everything", keep=f"{keep:g}", rows=rows)
    return kept_of(image, upper_part_kept(target.grid, count), target)


def source_codes(args: ImageToImageArgs, target: Target) -> tuple[int, ...]:
    """Return the source images as one flat tuple. The settings of a PNG store the source images in this form.

    For each image, the tuple contains the number of rows, the number of columns, and the codes in raster order.
    For example, an image of 1 row and 2 columns with codes 7 and 9 is (1, 2, 7, 9).

    Raises:
        AdtError: If an image cannot be read.
    """
    numbers: list[int] = []
    side = target.downsample
    shortest, longest = _SOURCE_SIDES
    for path in args.source:
        image = open_rgb(path, "source")
        scale = max(1.0, shortest / min(image.size))
        scale = min(scale, longest / max(image.size))
        columns, rows = (max(1, round(length * scale / side)) for length in image.size)
        with torch.inference_mode():
            codes = target.codec.encode(to_pixels(image, rows * side, columns * side))
        numbers += [rows, columns, *codes.flatten().tolist()]
    return tuple(numbers)


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
            raise AdtError("keep.not_a_share", input=name, value=share)
    rows, columns = grid
    return min(math.floor(keep * rows + 0.5) * columns + math.floor(keep_left * columns + 0.5), rows * columns)
