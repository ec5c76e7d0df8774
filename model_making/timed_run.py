"""Training run with a time budget, for the scripts of this folder."""

from __future__ import annotations

from collections.abc import Callable
from tempfile import TemporaryDirectory

import torch
from torch import Tensor, distributed, multiprocessing

from adt_core.lab.training.run import Run


class TimedRun(Run):
    """:class:`Run` with progress output, periodic checkpoints and optional data parallelism.

    In a process group, each process computes the gradients of a part of the batch. The gradients are averaged, and all
    processes take the same optimisation step. The elapsed time is averaged, too, because it determines the learning
    rate, which must be equal in all processes.
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
            warmup: Share of the time budget during which the learning rate rises from 0 to its maximum.
        """
        self._saved = self._saved or self.elapsed
        self.backward(loss)
        if distributed.is_initialized():
            self._all_reduce()
        with torch.autocast("cpu", torch.bfloat16):  # enough precision for Muon's matrix iteration
            self.apply(warmup)
        if self.step % 25 == 0 and is_main_process():
            print(f"step {self.step} {self.fraction:.3f} loss {loss.item():.4f}", flush=True)

    def _all_reduce(self) -> None:
        """Average the gradients and the elapsed time over all processes, in one all-reduce."""
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
        """Return whether to save: `seconds` have passed since the last checkpoint, or the time budget is used up."""
        return self.elapsed - self._saved > seconds or self.fraction >= 1

    def save(self, **more) -> None:
        """Write a checkpoint with the additional entries `more`. Only the main process writes."""
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
    """Call ``work(*args)`` in each process of a new process group. Each process uses one thread.

    Args:
        count: Number of processes. With 1, the function is called in this process, without a process group.
        work: Function to call; it must be picklable.
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
