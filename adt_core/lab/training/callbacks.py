"""Who is told how a training goes: a terminal, or a program that has a page of its own."""

from __future__ import annotations

import sys

from tqdm import tqdm

from .estimate import TrainingEstimate
from .run import Run


class TrainingCallback:
    """Is told, and says nothing of it."""

    def check(self) -> None:
        """Called often. May raise to stop the training, which goes on from there the next time."""

    def expects(self, needs: TrainingEstimate) -> None:
        """Called before anything is made: what it will take."""

    def draws(self, done: float, total: int) -> None:
        """Called while pictures are made: so many are done, a part of one included."""

    def learns(self, run: Run, log: list[dict]) -> None:
        """Called after every step. log: rows of the table, see :mod:`.log`."""


class ProgressBars(TrainingCallback):
    """Shows bars in the terminal."""

    def __init__(self) -> None:
        self._bar: tqdm | None = None
        self._unit = ""

    def expects(self, needs: TrainingEstimate) -> None:
        tqdm.write(needs.message, file=sys.stderr)

    def draws(self, done: float, total: int) -> None:
        self._show("images", int(done), total)

    def learns(self, run: Run, log: list[dict]) -> None:
        news = f"loss {log[-1]['loss']:.3f}, tau {log[-1]['tau']:.3f}" if log else ""
        self._show("steps", run.step, run.steps, news)

    def close(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.close()

    def _show(self, unit: str, done: int, total: int | None, news: str = "") -> None:
        if self._bar is None or self._unit != unit:
            self.close()
            self._unit = unit
            self._bar = tqdm(total=total, initial=done, unit=f" {unit}", desc=unit, leave=False)
        self._bar.set_postfix_str(news, refresh=False)
        self._bar.update(done - self._bar.n)
