"""What a training takes of time, memory and disk space. It is measured before anything is made."""

from __future__ import annotations

import shutil
import time
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor

from ...app.jobs import rounds
from ...engine.decoding import Decoding
from ...errors import AdtError
from ...messages import Message, message

FIRST, TIMED = 3, 5
"""Rounds of drawing that are thrown away, because the first are slow, and those whose time is taken."""
GB = 2**30


@dataclass(frozen=True)
class TrainingEstimate:
    """What is still to be done takes. drawing, learning: seconds. memory, disk: bytes."""

    drawing: float
    learning: float
    memory: float
    disk: float

    @property
    def minutes(self) -> str:
        """Of both."""
        return _short((self.drawing + self.learning) / 60)

    @property
    def message(self) -> Message:
        """Sentence for users."""
        return message(
            "training.estimate",
            minutes=self.minutes,
            drawing=_short(self.drawing / 60),
            learning=_short(self.learning / 60),
            memory=_short(self.memory / GB),
            disk=_short(self.disk / GB),
        )


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{max(value, 0.1):.1f}"


def seconds_of_round(decoding: Decoding) -> float:
    """Of the first rounds, but for those that are slow because they are the first."""
    with closing(rounds(decoding)) as running:
        for _ in islice(running, FIRST):
            pass
        began = time.monotonic()
        count = sum(1 for _ in islice(running, TIMED))
        return (time.monotonic() - began) / max(1, count)


def num_bytes(*tensors: Tensor) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def check_disk(needs: TrainingEstimate, folder: Path) -> None:
    """AdtError if the disk of ``folder`` has no room for what is not there yet."""
    free, there = shutil.disk_usage(folder).free, sum(path.stat().st_size for path in folder.rglob("*"))
    if needs.disk > free + there:
        needed, left = (f"{size / 2**20:.0f} MB" for size in (needs.disk, free))
        raise AdtError(
            f"`output`: the training needs {needed} of disk space, but only {left} are free for '{folder}'; "
            "free some space, or lower `features_gb`."
        )


class SavedTensorCounter(torch.autograd.graph.saved_tensors_hooks):
    """Counts the ``bytes`` that are kept for gradients in the block. Tensors that share memory count once."""

    def __init__(self) -> None:
        self._sizes: dict[int, int] = {}
        super().__init__(self._count, lambda tensor: tensor)

    def _count(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        self._sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    @property
    def bytes(self) -> int:
        return sum(self._sizes.values())
