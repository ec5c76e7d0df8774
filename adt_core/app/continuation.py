"""A picture as the beginning of an image: its first tokens in raster order are kept, and the rest is drawn."""

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

DEFAULT_KEEP = 0.5
"""Share of a picture's rows that is kept unless told otherwise."""
_SOURCE = 512, 2048
"""Pixels of a source picture's shorter side at least, and of its longer one at most, as in GLM-Image's processor."""


def check_args(order: ImageToImageArgs) -> None:
    """Raises AdtError for what does not go together, and for a picture that can't be read."""
    for path in order.source:
        open_rgb(path, "source")
    if order.continue_from is not None:
        open_rgb(order.continue_from, "continue_from")
    elif order.keep is not None or order.keep_left is not None:
        raise AdtError("`keep` and `keep_left` need an image to continue; give it with `continue_from`.")


def prefix_codes(order: ImageToImageArgs, target: Target) -> tuple[int, ...]:
    """The codes that every image starts from, of the picture to continue; () without one."""
    if order.continue_from is None:
        return ()
    rows, columns = target.grid
    picture, side = open_rgb(order.continue_from, "continue_from"), target.downsample
    pixels = to_pixels(picture, rows * side, columns * side)
    small: Tensor | None = None
    keep = DEFAULT_KEEP if order.keep is None else order.keep
    count = prefix_length(target.grid, keep, order.keep_left or 0.0)
    if count == rows * columns:
        raise AdtError(f"`keep` is {keep:g}, which keeps all {rows} rows of tokens; choose a smaller number.")
    with torch.inference_mode():
        if count and all(target.lead):
            small = target.codec.encode(to_pixels(picture, *(side * cells for cells in target.lead)))
        return tuple(target.beginning(target.codec.encode(pixels), count, small)[0].tolist())


def source_codes(order: ImageToImageArgs, target: Target) -> tuple[int, ...]:
    """Return the source pictures in the layout of a PNG's settings: rows, columns and codes of each, one after another.

    Args:
        order: Names the pictures.
        target: Encodes them.
    Raises:
        AdtError: If a picture can't be read.
    """
    return tuple(number for path in order.source for number in _source_codes(path, target))


def _source_codes(path: Path, target: Target) -> list[int]:
    """Return a picture's rows and columns of tokens, and its codes."""
    picture, side = open_rgb(path, "source"), target.downsample
    scale = max(1.0, _SOURCE[0] / min(picture.size))
    scale = min(scale, _SOURCE[1] / max(picture.size))
    columns, rows = (max(1, round(length * scale / side)) for length in picture.size)
    with torch.inference_mode():
        codes = target.codec.encode(to_pixels(picture, rows * side, columns * side))
    return [rows, columns, *codes.flatten().tolist()]


def with_sources(target: Target, flat: tuple[int, ...]) -> Target:
    """Return the target for images that are made of other pictures.

    Args:
        flat: The pictures as :func:`source_codes` returns them; () for none.
    Raises:
        AdtError: If the numbers are no such pictures, or the target draws from texts only.
    """
    pictures = []
    while flat:
        rows, columns, *rest = (*flat, 0, 0)[: max(len(flat), 2)]
        codes = rest[: rows * columns]
        if not codes or len(codes) < rows * columns or max(codes) >= target.num_codes:
            raise AdtError("`sources` has no images of this model's tokens; use the original PNG.")
        pictures.append(torch.tensor(codes).view(rows, columns))
        flat = tuple(rest[len(codes) :])
    return target.with_sources(pictures) if pictures else target


def prefix_length(grid: tuple[int, int], keep: float, keep_left: float = 0.0) -> int:
    """How many cells of a ``grid`` (rows, columns) are kept, in raster order.

    keep: share of the rows, from the top. keep_left: share of the first row below them, from the left. Both are from 0
    to 1, else AdtError, and are rounded to the nearest row or cell.
    """
    for name, share in (("keep", keep), ("keep_left", keep_left)):
        if not (math.isfinite(share) and 0 <= share <= 1):
            raise AdtError(f"`{name}` is {share}; it must be a number from 0 (nothing) to 1 (everything).")
    rows, columns = grid
    return min(math.floor(keep * rows + 0.5) * columns + math.floor(keep_left * columns + 0.5), rows * columns)


def open_rgb(path: Path, name: str, remedy: str = "") -> Image.Image:
    """The picture at ``path`` in RGB, upright. AdtError if it can't be read; it names the input and the ``remedy``."""
    try:
        with open_image(path) as image:
            return to_rgb(ImageOps.exif_transpose(image))
    except IMAGE_ERRORS as error:
        reason = getattr(error, "strerror", None) or f"it is damaged, or not one of {', '.join(FORMATS)}"
        raise AdtError(f"`{name}`: '{path}' can't be read as an image ({reason}){remedy and f'; {remedy}'}.") from error


def to_pixels(picture: Image.Image, height: int, width: int) -> Tensor:
    """Pixels [1, 3, height, width] in [-1, 1]. A picture of another size is cropped evenly, then resized."""
    if picture.size != (width, height):
        picture = ImageOps.fit(picture, (width, height), Image.Resampling.LANCZOS)
    return torch.from_numpy(np.asarray(picture).copy()).permute(2, 0, 1)[None].float() / 127.5 - 1
