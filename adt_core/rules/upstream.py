"""Noise of the model authors' scripts, with which a seed gives the same image as the script.

The scripts sample with `torch.multinomial(p, 1)`. That is `argmax(p / q)`, where q is a row of `exponential_` numbers
as wide as p, so -log q is Gumbel noise for log p (source code of torch; Gumbel-max). The generator's state depends only
on the shape of p, so rows can be made before p is known. They can only be made in order, and they differ between kinds
of devices.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .noise import Key, NoiseRows


def noise_device(device: torch.device) -> str:
    """Return the name of the device on which noise depends: the model of a GPU, or the kind of another device.

    A GPU's noise depends on how it divides the work.
    """
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


@cache
def exponential_uses_uniform() -> bool:
    """Return whether this version of torch makes exponential numbers on a CPU from uniform ones.

    They are -log(1 - u) for u in float64, in all known versions. Then only the needed numbers have to be computed.
    """
    numbers = torch.empty(1000, dtype=torch.float64).uniform_(generator=torch.Generator().manual_seed(0))
    expected = torch.empty(1000).exponential_(generator=torch.Generator().manual_seed(0))
    return torch.equal(numbers.neg_().log1p_().neg_().float(), expected)


class _Calls(NamedTuple):
    """Noise of some successive positions.

    Attributes:
        rows: [n, together, V].
        state: State of the generator after them.
    """

    rows: Tensor
    state: Tensor


class UpstreamNoise:
    """Kind of noise in which images with the same seed are rows of the same calls.

    Noise is cached, because other images of the batch are often at similar positions.
    """

    def __init__(self, width: int, columns: Tensor, together: int, start: int = 0, kept: int = 0, before: int = 0):
        """Prepare the generator.

        Args:
            width: Size of the vector that the script samples from.
            columns: [V] int64, index of each of our tokens in that vector, on the device that makes the noise.
            together: Number of images that the script draws at once, the rows of a call.
            start: Raster position of our first call.
            kept: Number of positions to cache for other images.
            before: Number of calls that the script makes before our first one.
        """
        self.start = start
        self._before = before
        self._width = width
        self._columns = columns
        self._together = together
        self._max_kept = kept
        self._generator = torch.Generator(columns.device)
        self._uses_uniform = columns.device.type == "cpu" and exponential_uses_uniform()
        dtype = torch.float64 if self._uses_uniform else torch.float32
        self._row = torch.empty(together, width, dtype=dtype, device=columns.device)
        self._kept: dict[tuple[int, range], _Calls] = {}

    def __call__(self, key: Key) -> NoiseRows:
        return _Reader(self, *key)

    def calls(self, seed: int, positions: range, state: Tensor | None) -> _Calls:
        """Return the noise of some positions, from the cache if possible.

        Args:
            seed: Seed.
            positions: Successive raster positions.
            state: State of the generator before them; None before the first call of a seed.
        """
        calls = self._kept.get((seed, positions))
        if calls is None:
            calls = self._kept[seed, positions] = self._make(seed, positions, state)
            while len(self._kept) * len(positions) > self._max_kept:
                del self._kept[next(iter(self._kept))]
        return calls

    def _make(self, seed: int, positions: range, state: Tensor | None) -> _Calls:
        generator = self._generator
        if state is None:
            generator.manual_seed(seed)
            for _ in range(self._before):
                self._call()
        else:
            generator.set_state(state)
        noise = torch.empty(len(positions), self._together, len(self._columns), device=self._columns.device)
        for row in noise:
            row.copy_(self._call())
        return _Calls(noise.log_().neg_(), generator.get_state())

    def _call(self) -> Tensor:
        """Return the next exponential numbers of our tokens, [together, V]."""
        if not self._uses_uniform:
            return self._row.exponential_(generator=self._generator).index_select(-1, self._columns)
        numbers = self._row.uniform_(generator=self._generator)
        if len(self._columns) < self._width:
            numbers = numbers.index_select(-1, self._columns)
        return numbers.neg_().log1p_().neg_()


class _Reader:
    """Noise of one image. Rows before the first call are 0."""

    _state: Tensor | None

    def __init__(self, kind: UpstreamNoise, seed: int, index: int):
        self._kind = kind
        self._seed = seed
        self._index = index
        self._next = kind.start  # position of the next call
        self._state = None  # of the generator before that call

    def __call__(self, positions: range) -> Tensor:
        """Return rows [n, V]. Skipped positions are made too, because no call can be left out."""
        missing = range(self._next, max(self._next, positions.stop))
        made, self._state = self._kind.calls(self._seed, missing, self._state)
        self._next = missing.stop
        rows = made[-len(positions) :, self._index]
        return F.pad(rows, (0, 0, len(positions) - len(rows), 0))
