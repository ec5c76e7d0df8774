"""Progress of a run: a bar in a terminal, and a line per minute in a log file."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from tqdm import tqdm

LINE_INTERVAL = 60.0
"""Seconds between two lines if the output is not a terminal."""


class RunProgress:
    """Progress of the images of a run, on standard error."""

    def __init__(self, images: int, tokens_per_image: int, is_list: bool, present: int = 0):
        """Start the clock.

        Args:
            is_list: Whether to show the number of images and their rate, as for a list of prompts.
        """
        self.done = 0
        self.left_out = 0
        self._images = images
        self._tokens_per_image = tokens_per_image
        self._present = present
        self._is_list = is_list
        self._began = self._written = time.monotonic()
        is_log = is_list and not sys.stderr.isatty()
        total = images * tokens_per_image
        self._bar = tqdm(total=total, unit=" tokens", mininterval=0.5, leave=False, disable=is_log)

    def __enter__(self) -> RunProgress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.close()

    def update(self, tokens: int, images: int, left_out: int) -> None:
        """Add the outcome of a round."""
        self.done += images
        self.left_out += left_out
        self._bar.update(tokens + left_out * self._tokens_per_image)
        if self._is_list and (images or left_out):
            self._bar.set_postfix_str(self.line(), refresh=False)
        if self._bar.disable and time.monotonic() >= self._written + LINE_INTERVAL:
            self._written = time.monotonic()
            tqdm.write(self.line(), file=sys.stderr)

    def line(self) -> str:
        """Return the progress as text, such as "120 of 500 images, 31.5 images per minute, 0:12:04 left"."""
        minutes = (time.monotonic() - self._began) / 60
        rate = self.done / minutes if minutes else 0.0
        waiting = self._images - self.done - self.left_out
        left = tqdm.format_interval(60 * waiting / rate) + " left" if rate else ""
        failures = f"{self.left_out} left out" if self.left_out else ""
        done = f"{self._present + self.done} of {self._present + self._images} images"
        return ", ".join(filter(None, [done, f"{rate:.1f} images per minute", left, failures]))
