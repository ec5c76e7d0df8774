"""Progress callbacks of a training run."""

from __future__ import annotations

import sys
from pathlib import Path

from tqdm import tqdm

from ...errors import AdtError, pip_install
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
        """Report finished images, including the finished part of those that are being generated or encoded."""

    def on_step(self, run: Run, log: list[dict]) -> None:
        """Report progress after a training step."""

    def on_stop(self, images: int, total: int, steps: int) -> None:
        """Report that an exception has stopped the training, with `images` of `total` and `steps` kept on the disk."""


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
            if self._bar is not None:
                self._bar.close()
            self._unit = unit
            self._bar = tqdm(total=total, initial=done, unit=f" {unit}", desc=unit, leave=False)
        self._bar.set_postfix_str(metrics, refresh=False)
        self._bar.update(done - self._bar.n)


class TensorBoardLogs(ProgressBars):
    """Progress bars, and logs that TensorBoard shows: one scalar for each column of the log.

    wandb records the same scalars after `wandb.init(sync_tensorboard=True)`.
    """

    def __init__(self, folder: Path):
        """Open the logs. Raise AdtError if TensorBoard is not installed."""
        super().__init__()
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise AdtError("logging_dir.no_library", command=pip_install("tensorboard")) from error
        self._writer = SummaryWriter(str(folder))
        self._log: list[dict] = []
        self._logged = -1  # number of rows that are logged; -1 before the first step

    def on_step(self, run: Run, log: list[dict]) -> None:
        super().on_step(run, log)
        if self._logged < 0:
            self._logged = sum(row["step"] < run.step for row in log)  # those of earlier runs
        self._log = log
        self._write()

    def close(self) -> None:
        self._write()  # the last row is made after the last step
        self._writer.close()
        super().close()

    def _write(self) -> None:
        for row in self._log[self._logged :]:
            for name, value in row.items():
                if name != "step":
                    self._writer.add_scalar(name, value, row["step"])
        self._logged = max(self._logged, len(self._log))
