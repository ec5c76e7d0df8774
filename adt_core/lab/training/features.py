"""Disk cache of the target's features, so that each training image needs one forward pass of the target.

The cache halves the time of a step with the bundled model, and saves more with larger ones. The features of an image
are float16 [tokens, width] per row: 0.3 MB for the bundled model, 18 MB for Anole.
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from ...errors import AdtError
from ...files import is_regular, reason, write_in


class Features:
    """Feature cache with one file per image. Images beyond its size are computed again at every use.

    All features are rounded to float16, so that the training does not depend on the size of the cache.

    Args:
        folder: Folder of the cache.
        max_bytes: Maximum size in bytes.
    """

    def __init__(self, folder: Path, max_bytes: float):
        self._folder = folder
        self._max_bytes = max_bytes
        self._used = sum(path.stat().st_size for path in folder.glob("*.safetensors"))

    def _path(self, number: int) -> Path:
        return self._folder / f"{number}.safetensors"

    def get(self, numbers: list[int], pads: list[int], device: torch.device) -> Tensor | None:
        """Return cached features, or None if an image is not cached.

        Args:
            numbers: Indices of the images.
            pads: Padding at the beginning of each of the R rows, where features are zero.
            device: Device of the result.

        Returns:
            [R, n, h] float32.

        Raises:
            AdtError: If a file is damaged.
        """
        paths = [self._path(number) for number in numbers]
        if not all(map(is_regular, paths)):
            return None
        try:
            files = [load_file(path) for path in paths]
            rows = [file[str(row)] for row in range(len(pads) // len(numbers)) for file in files]
        except (SafetensorError, KeyError) as error:
            raise AdtError(
                f"'{self._folder}' holds a damaged file ({reason(error)}); delete it, and start again."
            ) from error
        padded = [F.pad(row, (0, 0, pad, 0)) for row, pad in zip(rows, pads)]
        return torch.stack(padded).to(device).float()

    def put(self, numbers: list[int], pads: list[int], features: Tensor) -> Tensor:
        """Cache features, up to the maximum size.

        Args:
            numbers: Indices of the images.
            pads: Padding at the beginning of each row.
            features: [R, n, h].

        Returns:
            The features as `get` returns them, rounded to float16.
        """
        rounded = features.half()
        for row, pad in zip(rounded, pads):
            row[:pad] = 0
        for i, number in enumerate(numbers):
            rows = range(i, len(pads), len(numbers))
            content = save({str(k): rounded[row, pads[row] :].cpu().contiguous() for k, row in enumerate(rows)})
            if self._used + len(content) <= self._max_bytes and not self._path(number).exists():
                write_in(self._folder, self._path(number).name, content)
                self._used += len(content)
        return rounded.float()
