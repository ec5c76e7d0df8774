"""Target features on disk, so that a picture costs one target forward however often it is trained on.

A drafter is a small part of its target: with the features at hand a step takes half the time on the bundled model, and less on larger ones.
Float16, twice the width times the tokens in both guidance rows: 0.3 MB a picture of the bundled model, 18 MB of Anole.
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file, save
from torch import Tensor

from ..app.images import write


class Features:
    """One file per picture in ``folder``, up to ``room`` bytes in all; what finds no room is made again every time.

    Features are rounded to float16 whether they are kept or not, so that a run doesn't depend on it.
    """

    def __init__(self, folder: Path, room: float):
        self.folder, self._room = folder, room
        self._used = sum(path.stat().st_size for path in folder.glob("*.safetensors"))

    def _path(self, number: int) -> Path:
        return self.folder / f"{number}.safetensors"

    def get(self, numbers: list[int], pads: list[int], like: Tensor) -> Tensor | None:
        """Features [R, n, h] of some pictures in rows that begin with ``pads`` free slots, as float32 on ``like``'s device; None if one is unknown."""
        paths = [self._path(number) for number in numbers]
        if not all(path.exists() for path in paths):
            return None
        files = [load_file(path) for path in paths]
        rows = [file[str(row)] for row in range(len(pads) // len(numbers)) for file in files]
        out = torch.zeros(len(rows), pads[0] + len(rows[0]), rows[0].shape[1], dtype=rows[0].dtype)
        for into, row, pad in zip(out, rows, pads):
            into[pad:] = row
        return out.to(like.device).float()

    def put(self, numbers: list[int], pads: list[int], features: Tensor) -> Tensor:
        """Keep the features [R, n, h] of some pictures, if there is room; returns them as they will be read."""
        rounded = features.half()
        for i, number in enumerate(numbers):
            rows = range(i, len(features), len(numbers))
            content = save({str(k): rounded[row, pads[row] :].cpu().contiguous() for k, row in enumerate(rows)})
            if self._used + len(content) <= self._room and not self._path(number).exists():
                write(self._path(number), content)
                self._used += len(content)
        for row, pad in zip(rounded, pads):
            row[:pad] = 0
        return rounded.float()
