"""Conversion of input images to codebook indices ("codes").

There are two kinds of input images: an image to continue, of which a part is kept, and source images to edit.
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
from .args import ImageToImageArgs
from .images import FORMATS, IMAGE_ERRORS, open_image, to_rgb
from .masks import check_not_empty, generated_cells, upper_part_kept

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
        AdtError: If an image cannot be read, `keep`, `keep_left` or `mask` is set without an image to continue, or a
            mask is set together with a share to keep.
    """
    for path in args.source:
        open_rgb(path, "source")
    if args.continue_from is not None:
        open_rgb(args.continue_from, "continue_from")
    elif args.mask is not None or args.keep is not None or args.keep_left is not None:
        raise AdtError("`keep`, `keep_left` and `mask` need an image to continue; give it with `continue_from`.")
    if args.mask is not None:
        open_rgb(args.mask, "mask")
        if args.keep is not None or args.keep_left is not None:
            raise AdtError("`mask` says which part is kept; leave out `keep` and `keep_left`.")


def kept_codes(args: ImageToImageArgs, target: Target) -> tuple[int, ...]:
    """Return the codes that every generated image keeps, in the form of `Recipe.kept`.

    Args:
        args: Path of the image to continue, and its mask or the shares to keep. Without an image, the result is ().

    Raises:
        AdtError: If an image cannot be read, or if the complete image is kept.
    """
    if args.continue_from is None:
        return ()
    image = open_rgb(args.continue_from, "continue_from")
    if args.mask is not None:
        return kept_of(image, read_mask(args.mask, target), target)
    rows, columns = target.grid
    keep = DEFAULT_KEEP if args.keep is None else args.keep
    count = prefix_length(target.grid, keep, args.keep_left or 0.0)
    if count == rows * columns:
        raise AdtError(f"`keep` is {keep:g}, which keeps all {rows} rows of tokens; choose a smaller number.")
    return kept_of(image, upper_part_kept(target.grid, count), target)


def kept_of(image: Image.Image, generated: Tensor, target: Target) -> tuple[int, ...]:
    """Return the codes of an image that are kept, in the form of `Recipe.kept`: -1 for cells to generate.

    Args:
        image: Image in RGB. If it has another size than the model's images, it is cropped and resized.
        generated: [1, rows, columns] bool, whether each cell is generated.
    """
    side = target.downsample
    small: Tensor | None = None
    with torch.inference_mode():
        if all(target.lead):
            small = target.codec.encode(to_pixels(image, *(side * cells for cells in target.lead))).cpu()
        cells = target.codec.encode(to_pixels(image, *(side * cells for cells in target.grid))).cpu()
        codes = target.kept(cells, generated, small)[0].tolist()
    while codes and codes[-1] < 0:
        codes.pop()
    return tuple(codes)


def read_mask(path: Path, target: Target) -> Tensor:
    """Return the cells that a mask file generates, bool [1, rows, columns]. White generates, black keeps.

    The mask is cropped and resized as the image is, so a mask of the image's size covers the same parts.

    Raises:
        AdtError: If the file cannot be read as an image, or the mask is empty.
    """
    rows, columns = target.grid
    pixels = to_pixels(open_rgb(path, "mask"), rows * target.downsample, columns * target.downsample)
    generated = generated_cells((pixels.mean(1) + 1) / 2, target.grid, "mask")
    check_not_empty(generated, "mask")
    return generated


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


def with_sources(target: Target, flat: tuple[int, ...]) -> Target:
    """Return the target with source images as part of its prompts.

    Args:
        flat: Source images as `source_codes` returns them; () for none.

    Raises:
        AdtError: If the numbers are not valid images, or the target does not support source images.
    """
    images = []
    while flat:
        rows, columns, *rest = (*flat, 0, 0)[: max(len(flat), 2)]
        codes = rest[: rows * columns]
        if not codes or len(codes) < rows * columns or max(codes) >= target.num_codes:
            raise AdtError("`sources` has no images of this model's tokens; use the original PNG.")
        images.append(torch.tensor(codes).view(rows, columns))
        flat = tuple(rest[len(codes) :])
    return target.with_sources(images) if images else target


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
