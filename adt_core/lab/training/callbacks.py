"""Progress callbacks of a training run."""

from __future__ import annotations

import sys

from tqdm import tqdm

from .estimate import TrainingEstimate
from .run import Run


class TrainingCallback:
    """Base class of progress callbacks. Its methods do nothing."""

    def check(self) -> None:
        """Raise an exception to stop the training.

        The training calls this method often. After a stop, the next run resumes at the same step.
        """

    def on_estimate(self, estimate: TrainingEstimate) -> None:
        """Report the required resources before the training starts."""

    def on_images(self, done: float, total: int) -> None:
        """Report progress while images are generated or encoded.

        Args:
            done: Finished images, including the finished part of the current ones.
        """

    def on_step(self, run: Run, log: list[dict]) -> None:
        """Report progress after a training step."""

    def on_stop(self, images: int, total: int, steps: int) -> None:
        """Report what is kept when an exception has stopped the training.

        Args:
            images: Number of images that are stored.
            total: Number of images of the training.
            steps: Number of training steps in the checkpoint.
        """


class ProgressBars(TrainingCallback):
    """Progress bars in a terminal."""

    def __init__(self) -> None:
        self._bar: tqdm | None = None
        self._unit = ""

    def on_estimate(self, estimate: TrainingEstimate) -> None:
        tqdm.write(estimate.message, file=sys.stderr)

    def on_images(self, done: float, total: int) -> None:
        self._show("images", int(done), total)

    def on_step(self, run: Run, log: list[dict]) -> None:
        metrics = f"loss {log[-1]['loss']:.3f}, tau {log[-1]['tau']:.3f}" if log else ""
        self._show("steps", run.step, run.steps, metrics)

    def close(self) -> None:
        """Remove the current progress bar from the terminal."""
        if self._bar is not None:
            self._bar.close()

    def _show(self, unit: str, done: int, total: int | None, metrics: str = "") -> None:
        if self._bar is None or self._unit != unit:
            self.close()
            self._unit = unit
            self._bar = tqdm(total=total, initial=done, unit=f" {unit}", desc=unit, leave=False)
        self._bar.set_postfix_str(metrics, refresh=False)
        self._bar.update(done - self._bar.n)
