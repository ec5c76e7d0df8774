"""Previews of images that are being generated: their content, and when they are made.

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
"""Number of rows below the complete rows, which a preview decodes but does not show. They mirror the last complete
rows: a codec darkens the border of the area that it decodes, and its group norms depend on the complete area. With two
rows, the error of the bundled model's colours is up to a third smaller."""


class PreviewSchedule:
    """Decides when a run makes its next preview, and how many images of a batch this preview decodes.

    A preview is made if all three conditions hold:

    - Row: more rows of image tokens are complete than at the last preview.
    - Second: at least one second has passed since the last preview.
    - Budget: the previews so far have used at most 4 % of the time so far. With one more image, they will have used at
      most 4 % of the time that the run takes at its current rate. The time of an image is estimated from the last
      preview: it grows with the number of rows, and an eighth of a complete image is a fixed cost. Previews may use 5 %
      of the time of a run. The limit is lower, because estimates are inexact.

    In a batch, a preview decodes as many images as the rest of the budget allows, but at least one. The last preview of
    a run is always made, because ComfyUI and the map keep it.

    The time of the first preview is unknown, so its budget is not checked. It decodes one image after its first row,
    which is a small part of a pass through the codec. If it was expensive, the next previews wait until the run has
    compensated for it.

    Args:
        clock: Returns the time in seconds.
    """

    SECONDS = 1.0
    SHARE = 0.04
    FIXED_SHARE = 1 / 8

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._began = clock()
        self._last = -math.inf  # end of the last preview
        self._done = 0.0  # complete share of the rows at the last preview
        self._cost = 0.0  # seconds for one image of the last preview
        self._spent = 0.0  # seconds of all previews

    def images(self, done: float, is_over: bool = False) -> int:
        """Return how many images to decode now for a preview; 0 if no preview is due.

        Args:
            done: Complete share of the rows of all images of the run, 0 to 1.
            is_over: Whether the run is finished. Then the result is at least 1.
        """
        now = self._clock()
        if not is_over and (done <= self._done or now - self._last < self.SECONDS):
            return 0
        budget = self.SHARE * (now - self._began)
        expected = self._cost * (done + self.FIXED_SHARE) / (self._done + self.FIXED_SHARE)
        is_affordable = self._spent <= budget and (self._spent + expected) * done <= budget
        if not is_over and not is_affordable:
            return 0
        return max(1, int((budget - self._spent) / expected)) if expected else 1

    @contextmanager
    def measured(self, done: float, images: int = 1) -> Iterator[None]:
        """Measure the `with` block, which decodes some images for a preview. For `done`, see `images`."""
        began = self._clock()
        yield
        self._last = self._clock()
        self._cost = (self._last - began) / images
        self._spent += self._last - began
        self._done = done


class Previews:
    """Previews of all images of decodings that run side by side.

    Args:
        decodings: Decodings of the same target.
        side: Maximum length of a preview's longer side in pixels.
        check: Called before every layer of the codec. It may raise an exception to cancel.
    """

    def __init__(self, decodings: Sequence[Decoding], side: int, check: Check | None = None):
        self._decodings = decodings
        self._side = side
        self._check = check
        self._images = [(decoding, image) for decoding in decodings for image in range(decoding.images)]
        self._pictures: dict[int, Image.Image] = {}  # by position in `_images`
        self._shown = [0] * len(self._images)  # number of rows that each picture shows

    def done(self) -> float:
        """Return the complete share of the rows of all images together, 0 to 1."""
        target = self._decodings[0].target
        return sum(self._rows()) / (len(self._images) * (target.lead[0] + target.grid[0]))

    def stale(self) -> list[int]:
        """Return the positions of the images with new rows: the first image, then those that show the fewest rows."""
        rows = self._rows()
        new = [position for position in range(len(rows)) if rows[position] != self._shown[position]]
        return sorted(new, key=lambda position: (position > 0, self._shown[position]))

    def picture(self, position: int) -> Image.Image:
        """Return the preview of one image, decoded again only if it has new rows."""
        rows = self._rows()[position]
        if position not in self._pictures or rows != self._shown[position]:
            picture = preview(*self._images[position], self._check)
            picture.thumbnail((self._side, self._side))
            self._pictures[position] = picture
            self._shown[position] = rows
        return self._pictures[position]

    def sheet(self, count: int) -> Image.Image:
        """Return the previews of all images, of which at most `count` are decoded again.

        Several images are a sheet of equal tiles in `columns_of` columns, which js/images.js divides.
        """
        for position in self.stale()[:count]:
            self.picture(position)
        if len(self._images) == 1:
            return self.picture(0)
        columns = columns_of(len(self._images))
        width, height = max(picture.size for picture in self._pictures.values())
        scale = min(1.0, self._side / (columns * max(width, height)))
        tile = max(1, round(scale * width)), max(1, round(scale * height))
        sheet = Image.new("RGB", (columns * tile[0], math.ceil(len(self._images) / columns) * tile[1]), BLANK)
        for position, picture in self._pictures.items():
            place = position % columns * tile[0], position // columns * tile[1]
            sheet.paste(picture.resize(tile, reducing_gap=2.0), place)
        return sheet

    def _rows(self) -> list[int]:
        """Return the number of complete rows of each image, with the rows of the small image that precedes it."""
        rows: list[int] = []
        for decoding in self._decodings:
            complete = [_complete_rows(codes) for codes in _grids(decoding)]
            rows += torch.stack(complete).sum(0).tolist()
        return rows


def columns_of(count: int) -> int:
    """Return the number of columns of a sheet of `count` images, as many as rows or one more."""
    return math.ceil(math.sqrt(count))


def preview(decoding: Decoding, image: int, check: Check | None = None) -> Image.Image:
    """Decode the complete rows of an image, or of the small image that precedes it. Other rows are `BLANK`."""
    grids = [codes[image] for codes in _grids(decoding)]
    started = [codes for codes in grids if _complete_rows(codes)]
    codes = started[-1] if started else grids[-1]
    rows = int(_complete_rows(codes))
    side = decoding.target.downsample
    whole = Image.new("RGB", (codes.shape[1] * side, codes.shape[0] * side), BLANK)
    if rows:
        shown = codes[:rows]
        decoded = torch.cat([shown, shown[-_MIRRORED:].flip(0)])[: len(codes)]
        with torch.inference_mode(), limit_threads(decoding.threads.count):
            pixels = decoding.target.pixels(decoded[None], check)[0, :, : rows * side]
        whole.paste(Image.fromarray(to_uint8(pixels)))
    return whole


def _complete_rows(codes: Tensor) -> Tensor:
    """Return the number of complete rows of codes [..., rows, columns] before the first incomplete one, [...].

    Rows after it can also be complete, if a mask keeps them.
    """
    return (codes >= 0).all(-1).long().cumprod(-1).sum(-1)


def _grids(decoding: Decoding) -> list[Tensor]:
    """Return the codes [B, rows, columns] of the small images that precede the images, if any, and of the images."""
    target = decoding.target
    small = [target.small(decoding.codes)] if decoding.trace.lead_length else []
    return [*small, target.cells(decoding.codes)]
