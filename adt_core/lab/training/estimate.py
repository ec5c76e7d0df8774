"""Estimate of the time, memory and disk space of a training run. It is measured before the training starts."""

from __future__ import annotations

import shutil
import time
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor

from ...engine.decoding import Decoding
from ...errors import AdtError
from ...messages import Message, message

WARM_UP_ROUNDS = 3
TIMED_ROUNDS = 5
GIB = 2**30
_SHORT = 180  # seconds


@dataclass(frozen=True)
class TrainingEstimate:
    """Resources that the remaining part of a training run needs.

    Attributes:
        drawing: Seconds to generate or encode the missing images.
        learning: Seconds to train.
        memory: Bytes of memory on the training device.
        disk: Bytes of disk space.
    """

    drawing: float
    learning: float
    memory: float
    disk: float

    @property
    def message(self) -> Message:
        """Message for the user with all resources. Times are in seconds if the training takes less than `_SHORT`."""
        total = self.drawing + self.learning
        key, unit = ("training.estimate_seconds", 1) if total < _SHORT else ("training.estimate", 60)
        return message(
            key,
            total=_format(total / unit),
            drawing=_format(self.drawing / unit),
            learning=_format(self.learning / unit),
            memory=_format(self.memory / GIB),
            disk=_format(self.disk / GIB),
        )


def _format(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{max(value, 0.1):.1f}"


def seconds_of_round(decoding: Decoding) -> float:
    """Run a few rounds of a decoding, and return the mean time of a round in seconds. Warm-up rounds don't count."""
    with closing(iter(decoding)) as running:
        for _ in islice(running, WARM_UP_ROUNDS):
            pass
        began = time.monotonic()
        count = sum(1 for _ in islice(running, TIMED_ROUNDS))
        return (time.monotonic() - began) / max(1, count)


def num_bytes(*tensors: Tensor) -> int:
    """Return the total size of tensors in bytes."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def check_disk(estimate: TrainingEstimate, folder: Path) -> None:
    """Raise AdtError if the disk has too little space.

    The existing files in the folder of the run count as free space, because `estimate.disk` includes them.
    """
    free = shutil.disk_usage(folder).free
    existing = sum(path.stat().st_size for path in folder.rglob("*"))
    if estimate.disk > free + existing:
        needed, available = (f"{size / 2**20:.0f} MB" for size in (estimate.disk, free))
        raise AdtError("output.disk_full", needed=needed, available=available, folder=folder)


class SavedTensorCounter(torch.autograd.graph.saved_tensors_hooks):
    """Context manager that counts the bytes of tensors that autograd saves for the backward pass.

    If several tensors share one storage, the storage counts once.
    """

    def __init__(self) -> None:
        self._sizes: dict[int, int] = {}
        super().__init__(self._count, lambda tensor: tensor)

    def _count(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        self._sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    @property
    def bytes(self) -> int:
        """Total size in bytes."""
        return sum(self._sizes.values())
