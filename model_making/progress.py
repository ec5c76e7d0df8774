"""A training run that says how it gets on, and is saved every few minutes. Several processes may share the work."""

from __future__ import annotations

from collections.abc import Callable
from tempfile import TemporaryDirectory

import torch
from torch import Tensor, distributed, multiprocessing

from adt_core.lab.training.run import Run


class TimedRun(Run):
    """A :class:`Run` for the scripts of this folder.

    In a process group every process gives its share of a batch, and all go the same step with the mean of their
    gradients. They also go by one clock, which sets the learning rate.
    """

    _saved = 0.0
    _agreed: float | None = None

    @property
    def elapsed(self) -> float:
        return super().elapsed if self._agreed is None else self._agreed

    def advance(self, loss: Tensor, warmup: float = 0.02) -> None:
        """One optimisation step on ``loss``; prints it now and then."""
        self._saved = self._saved or self.elapsed
        self.backward(loss)
        if distributed.is_initialized():
            self._share()
        with torch.autocast("cpu", torch.bfloat16):  # Muon's iteration needs no more
            self.apply(warmup)
        if self.step % 25 == 0 and is_first():
            print(f"step {self.step} {self.fraction:.3f} loss {loss.item():.4f}", flush=True)

    def _share(self) -> None:
        """Put the mean of all processes in the place of the gradients and of the time."""
        clock = torch.tensor([super().elapsed])
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        flat = torch.cat([clock, *(gradient.flatten() for gradient in gradients)])
        distributed.all_reduce(flat)
        flat /= distributed.get_world_size()
        self._agreed = flat[0].item()
        parts = flat[1:].split([gradient.numel() for gradient in gradients])
        for gradient, part in zip(gradients, parts):
            gradient.copy_(part.view_as(gradient))

    def due(self, seconds: float = 200) -> bool:
        """Is it time for a checkpoint? Every ``seconds``, and at the end."""
        return self.elapsed - self._saved > seconds or self.fraction >= 1

    def save(self, **more) -> None:
        self._saved = self.elapsed
        if is_first():
            super().save(**more)


def rank() -> int:
    """The number of this process."""
    return distributed.get_rank() if distributed.is_initialized() else 0


def is_first() -> bool:
    """Is this the process that prints and saves?"""
    return rank() == 0


def in_processes(count: int, work: Callable, *args) -> None:
    """Call ``work(*args)`` in ``count`` processes of one thread each, which share a process group."""
    if count == 1:
        work(*args)
        return
    with TemporaryDirectory() as folder:
        multiprocessing.start_processes(_member, (count, f"{folder}/meeting", work, args), count, start_method="spawn")


def _member(number: int, count: int, meeting: str, work: Callable, args: tuple) -> None:
    torch.set_num_threads(1)
    store = distributed.FileStore(meeting, count)
    distributed.init_process_group("gloo", store=store, rank=number, world_size=count)
    work(*args)
