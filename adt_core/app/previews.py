"""Previews of images that are being generated: what they show, and when they are made.

A preview shows the complete rows of image tokens of an image. It costs a pass through the image codec.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from PIL import Image
from torch import Tensor

from ..engine.decoding import Decoding
from ..engine.device.threads import limit_threads
from ..errors import Check
from .images import to_uint8

BLANK = (22, 24, 29)
"""Colour of rows that are not complete. The acceptance map has the same background (js/map_view.js)."""
_MIRRORED = 2
"""Number of rows below the complete rows, which a preview decodes but does not show.

They mirror the last complete rows. A codec darkens the border of the area that it decodes. Its group norms also depend
on the complete area. In previews of the bundled model, the error of the colours is a third smaller with two rows.
"""


class PreviewSchedule:
    """Decides when a run makes its next preview.

    A preview is due if all three conditions hold:

    - Row: more rows of image tokens are complete than at the last preview.
    - Second: at least one second has passed since the last preview.
    - Budget: the previews so far have used at most 4 % of the time so far. With this preview, they will have used at
      most 4 % of the time that the run takes at its current rate. The time of a preview is estimated from the last
      one: it grows with the number of rows, and an eighth of a complete image is a fixed cost. These estimates are
      inexact. With 4 %, previews use less than 5 % of the time of a run.

    The time of the first preview is unknown, so its budget is not checked. It is made as soon as the first row is
    complete, and so costs only a small part of a pass through the codec. If it was expensive, it delays the others
    until the run has compensated for it, or the run has no others.

    Args:
        clock: Returns the time in seconds.
    """

    SECONDS = 1.0
    SHARE = 0.04
    FIXED = 1 / 8

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._began = clock()
        self._last = -math.inf  # end of the last preview
        self._done = 0.0  # complete share of the rows at the last preview
        self._cost = 0.0  # seconds of the last preview
        self._spent = 0.0  # seconds of all previews

    def is_due(self, done: float) -> bool:
        """Return whether to make a preview now.

        Args:
            done: Complete share of the rows of all images of the run, 0 to 1.
        """
        is_new = done > self._done and self._clock() - self._last >= self.SECONDS
        return is_new and self.is_affordable(done)

    def is_affordable(self, done: float) -> bool:
        """Return whether a preview is within the budget. For `done`, see `is_due`."""
        budget = self.SHARE * (self._clock() - self._began)
        expected = self._cost * (done + self.FIXED) / (self._done + self.FIXED)
        return self._spent <= budget and (self._spent + expected) * done <= budget

    @contextmanager
    def measured(self, done: float) -> Iterator[None]:
        """Measure the `with` block, which makes a preview. For `done`, see `is_due`."""
        began = self._clock()
        yield
        self._last = self._clock()
        self._cost = self._last - began
        self._spent += self._cost
        self._done = done


class Previews:
    """Previews of all images of decodings that run side by side.

    Attributes:
        side: Maximum length of a preview's longer side in pixels.

    Args:
        decodings: Decodings of the same target.
        check: Called before every layer of the codec. It may raise an exception to cancel.
    """

    def __init__(self, decodings: Sequence[Decoding], side: int, check: Check | None = None):
        self.side = side
        self._check = check
        self._images = [(decoding, image) for decoding in decodings for image in range(decoding.images)]
        self._made: dict[int, tuple[int, Image.Image]] = {}  # position in `_images` -> complete rows, image

    @property
    def is_single(self) -> bool:
        """Whether there is only one image."""
        return len(self._images) == 1

    def done(self) -> float:
        """Return the complete share of the rows of all images together, 0 to 1."""
        target = self._images[0][0].target
        return sum(complete_rows(*one) for one in self._images) / (
            len(self._images) * (target.lead[0] + target.grid[0])
        )

    def picture(self, position: int) -> Image.Image:
        """Return the preview of one image. It is decoded only if one more row is complete than at the last call."""
        decoding, image = self._images[position]
        rows = complete_rows(decoding, image)
        before, made = self._made.get(position, (-1, None))
        if made is None or before != rows:
            made = preview(decoding, image, self._check)
            made.thumbnail((self.side, self.side))
            self._made[position] = rows, made
        return made

    def sheet(self) -> Image.Image:
        """Return the previews of all images: one image, or a sheet of equal tiles in `columns_of` columns.

        js/images.js divides the sheet into its tiles.
        """
        if self.is_single:
            return self.picture(0)
        pictures = [self.picture(position) for position in range(len(self._images))]
        columns = columns_of(len(pictures))
        width, height = max(picture.size for picture in pictures)
        scale = min(1.0, self.side / (columns * max(width, height)))
        tile = max(1, round(scale * width)), max(1, round(scale * height))
        sheet = Image.new("RGB", (columns * tile[0], math.ceil(len(pictures) / columns) * tile[1]), BLANK)
        for position, picture in enumerate(pictures):
            place = position % columns * tile[0], position // columns * tile[1]
            sheet.paste(picture.resize(tile, reducing_gap=2.0), place)
        return sheet


def columns_of(count: int) -> int:
    """Return the number of columns of a sheet of `count` images, as many as rows or one more."""
    return math.ceil(math.sqrt(count))


def complete_rows(decoding: Decoding, image: int) -> int:
    """Return the number of complete rows of an image, with the rows of the small image that precedes it."""
    return sum(int((codes >= 0).all(1).sum()) for codes in _grids(decoding, image))


def preview(decoding: Decoding, image: int, check: Check | None = None) -> Image.Image:
    """Decode the complete rows of an image, or those of the small image that precedes it. Other rows are `BLANK`."""
    grids = _grids(decoding, image)
    started = [codes for codes in grids if (codes >= 0).all(1).any()]
    codes = started[-1] if started else grids[-1]
    rows = int((codes >= 0).all(1).sum())
    side = decoding.target.downsample
    whole = Image.new("RGB", (codes.shape[1] * side, codes.shape[0] * side), BLANK)
    if rows:
        shown = codes[:rows]
        decoded = torch.cat([shown, shown[-_MIRRORED:].flip(0)])[: len(codes)]
        with torch.inference_mode(), limit_threads(decoding.threads.count):
            pixels = decoding.target.pixels(decoded[None], check)[0, :, : rows * side]
        whole.paste(Image.fromarray(to_uint8(pixels)))
    return whole


def _grids(decoding: Decoding, image: int) -> list[Tensor]:
    """Return the codes [rows, columns] of the small image that precedes an image, if there is one, and of the image."""
    codes = decoding.codes[[image]]
    target = decoding.target
    return [*([target.small(codes)[0]] if decoding.trace.lead_length else []), target.cells(codes)[0]]
