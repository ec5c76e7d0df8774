"""Masks: which cells of an image are generated, and which are kept. Reading of the image and its mask."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageOps
from torch import Tensor

from ..errors import AdtError
from ..models.target import Target
from .images import FORMATS, IMAGE_ERRORS, open_image, to_rgb


def generated_cells(mask: Tensor, grid: tuple[int, int], name: str) -> Tensor:
    """Round masks to complete cells of an image. A cell is generated if the mean of the mask over it is at least 0.5.

    Args:
        mask: [height, width], [B, height, width] or [B, 1, height, width] in any size, limited to 0 (keep) to 1
            (generate).
        grid: Rows and columns of cells.
        name: Name of the input for error messages.

    Returns:
        [B, rows, columns] bool, on the CPU.

    Raises:
        AdtError: If the mask has another shape, has no values or values that are not finite.
    """
    shape = list(mask.shape)
    if mask.ndim == 2:
        mask = mask[None]
    elif mask.ndim == 4 and shape[1] == 1:
        mask = mask[:, 0]
    if mask.ndim != 3 or not mask.numel():
        raise AdtError("mask.shape", input=name, shape=shape)
    mask = mask.detach().float().cpu()
    if not mask.isfinite().all():
        raise AdtError("mask.not_finite", input=name)
    share = F.adaptive_avg_pool2d(mask.clamp(0, 1), grid)
    return share >= 0.5 - 1e-6  # half of a cell, whatever the rounding of the mean


def upper_part_kept(grid: tuple[int, int], count: int) -> Tensor:
    """Return the mask [1, rows, columns] that keeps the first `count` cells, row by row, and generates the others."""
    rows, columns = grid
    return (torch.arange(rows * columns) >= count).view(1, rows, columns)


def kept_of(image: Image.Image, generated: Tensor, target: Target) -> tuple[int, ...]:
    """Return the codes of an image that are kept, in the form of `Recipe.kept`: -1 for cells to generate.

    Args:
        image: RGB image, cropped and resized to the size of the model's images.
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


def mask_cells(mask: str | Path | Tensor, target: Target) -> Tensor:
    """Return the cells that one mask generates, bool [1, rows, columns].

    Args:
        mask: Tensor as for :func:`generated_cells`, or an image file: white generates, black keeps. It is cropped and
            resized as the image is, so a mask of the image's size covers the same parts.

    Raises:
        AdtError: If the file cannot be read as an image, or the mask is not valid or empty.
    """
    if not isinstance(mask, Tensor):
        rows, columns = target.grid
        pixels = to_pixels(open_rgb(Path(mask), "mask"), rows * target.downsample, columns * target.downsample)
        mask = (pixels.mean(1) + 1) / 2
    generated = generated_cells(mask, target.grid, "mask")
    if len(generated) != 1:
        raise AdtError("mask.several", count=len(generated))
    if not generated.any():
        raise AdtError("mask.empty_input")
    return generated


def open_rgb(path: Path, name: str, key: str = "image.unreadable") -> Image.Image:
    """Read an image in RGB, and rotate it as its EXIF data requires.

    Args:
        name: Option or node input that has this path, for the error message.
        key: Key of the error message.

    Raises:
        AdtError: If the file cannot be read as an image.
    """
    try:
        with open_image(path) as image:
            return to_rgb(ImageOps.exif_transpose(image))
    except IMAGE_ERRORS as error:
        reason = getattr(error, "strerror", None) or f"it is damaged, or not one of {', '.join(FORMATS)}"
        raise AdtError(key, input=name, path=path, reason=reason) from error


def to_pixels(image: Image.Image, height: int, width: int) -> Tensor:
    """Return an RGB image, cropped around its centre and resized, as [1, 3, height, width] float32 in [-1, 1]."""
    if image.size != (width, height):
        image = ImageOps.fit(image, (width, height), Image.Resampling.LANCZOS)
    return torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1)[None].float() / 127.5 - 1
