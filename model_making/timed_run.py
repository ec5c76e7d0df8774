"""Training run with a time budget, progress output, periodic checkpoints and optional data parallelism."""

from __future__ import annotations

from collections.abc import Callable
from tempfile import TemporaryDirectory

import torch
from torch import Tensor, distributed, multiprocessing

from adt_core.lab.training.run import Run


class TimedRun(Run):
    """:class:`Run` for the scripts of this folder.

    In a process group each process contributes a part of the batch, and all take the same step with the averaged
    gradients. Elapsed time is averaged, too, because it determines the learning rate.
    """

    _saved = 0.0
    _averaged_elapsed: float | None = None

    @property
    def elapsed(self) -> float:
        """Seconds of training, including time before a restart."""
        return super().elapsed if self._averaged_elapsed is None else self._averaged_elapsed

    def advance(self, loss: Tensor, warmup: float = 0.02) -> None:
        """Take one optimisation step and print the loss every 25 steps.

        Args:
            loss: Loss of this process's part of the batch, a scalar.
            warmup: Share of the budget in which the learning rate rises.
        """
        self._saved = self._saved or self.elapsed
        self.backward(loss)
        if distributed.is_initialized():
            self._all_reduce()
        with torch.autocast("cpu", torch.bfloat16):  # sufficient precision for Muon's iteration
            self.apply(warmup)
        if self.step % 25 == 0 and is_main_process():
            print(f"step {self.step} {self.fraction:.3f} loss {loss.item():.4f}", flush=True)

    def _all_reduce(self) -> None:
        """Average gradients and elapsed time over all processes, in one message."""
        clock = torch.tensor([super().elapsed])
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        flat = torch.cat([clock, *(gradient.flatten() for gradient in gradients)])
        distributed.all_reduce(flat)
        flat /= distributed.get_world_size()
        self._averaged_elapsed = flat[0].item()
        parts = flat[1:].split([gradient.numel() for gradient in gradients])
        for gradient, part in zip(gradients, parts):
            gradient.copy_(part.view_as(gradient))

    def checkpoint_due(self, seconds: float = 200) -> bool:
        """Return whether `seconds` have passed since the last checkpoint, or the budget is used up."""
        return self.elapsed - self._saved > seconds or self.fraction >= 1

    def save(self, **more) -> None:
        """Write a checkpoint with `more` entries, in the main process only."""
        self._saved = self.elapsed
        if is_main_process():
            super().save(**more)


def rank() -> int:
    """Return the rank of this process, 0 without a process group."""
    return distributed.get_rank() if distributed.is_initialized() else 0


def is_main_process() -> bool:
    """Return whether this process prints and saves."""
    return rank() == 0


def run_in_processes(count: int, work: Callable, *args) -> None:
    """Call ``work(*args)`` in a process group of single-threaded processes.

    Args:
        count: Number of processes; with 1 the function is called in this process.
        work: Function to call; it must be picklable.
        *args: Arguments of the function.
    """
    if count == 1:
        work(*args)
        return
    with TemporaryDirectory() as folder:
        arguments = (count, f"{folder}/store", work, args)
        multiprocessing.start_processes(_run_worker, arguments, count, start_method="spawn")


def _run_worker(number: int, count: int, store_path: str, work: Callable, args: tuple) -> None:
    torch.set_num_threads(1)
    store = distributed.FileStore(store_path, count)
    distributed.init_process_group("gloo", store=store, rank=number, world_size=count)
    work(*args)
