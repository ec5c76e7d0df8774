"""Noise of the model authors' scripts. With this noise, a seed gives the same image as in the script.

The scripts sample with `torch.multinomial(p, 1)`, where p are probabilities. torch computes the result as
`argmax(p / q)`, where q are random numbers of `exponential_` in the shape of p. This equals `argmax(log p - log q)`. So
-log q is Gumbel noise (Gumbel-max trick).

q depends on the state of the generator and on the shape of p, but not on the values of p. So the noise of a position
can be made before p is known. The generator can make noise only in raster order, like the script. The noise depends on
the kind of device.

Below, a call is one call of `torch.multinomial` in the script. It samples one position of all images in the script's
batch.

Dimensions: n positions, V tokens of our vocabulary. The script's batch has `together` images.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .noise import Key, NoiseRows


def noise_device(device: torch.device) -> str:
    """Return a name for a device. Devices with the same name make the same noise.

    It is the GPU model, because the noise depends on how a GPU divides the work among its cores, or else the device
    type.
    """
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


@cache
def exponential_uses_uniform() -> bool:
    """Return whether this version of torch computes exponential numbers on a CPU as -log(1 - u), u uniform in float64.

    All known versions do. Then the logarithm has to be computed only for the tokens of our vocabulary.
    """
    numbers = torch.empty(1000, dtype=torch.float64).uniform_(generator=torch.Generator().manual_seed(0))
    expected = torch.empty(1000).exponential_(generator=torch.Generator().manual_seed(0))
    return torch.equal(numbers.neg_().log1p_().neg_().float(), expected)


class _Calls(NamedTuple):
    """Noise of n successive positions.

    Attributes:
        rows: [n, together, V], noise.
        state: State of the generator after the last of these positions.
    """

    rows: Tensor
    state: Tensor


class ScriptNoise:
    """Noise of the scripts, as a `NoiseKind`. Images with the same seed are different rows of the same calls.

    The noise of recent calls is cached for all images of the seed, because these images often need noise at nearby
    positions.
    """

    def __init__(self, width: int, columns: Tensor, together: int, start: int = 0, kept: int = 0, before: int = 0):
        """Prepare the generator.

        Args:
            width: Size of the vector that the script samples from.
            columns: [V] int64, index of each token of our vocabulary in that vector. The noise is made on the device of
                this tensor.
            together: Batch size of the script, which is the number of rows of a call.
            start: Raster position of the first token that we decode.
            kept: Maximum number of positions in the cache.
            before: Number of calls that the script makes before the call for `start`.
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
        """Return the noise of some positions. `state` is the generator's before them, or None before the first call."""
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
        """Make the next call, and return its exponential numbers for the tokens of our vocabulary, [together, V]."""
        if not self._uses_uniform:
            return self._row.exponential_(generator=self._generator).index_select(-1, self._columns)
        numbers = self._row.uniform_(generator=self._generator)
        if len(self._columns) < self._width:
            numbers = numbers.index_select(-1, self._columns)
        return numbers.neg_().log1p_().neg_()


class _Reader:
    """`NoiseRows` of one image. Noise of positions before the first call is 0."""

    _state: Tensor | None

    def __init__(self, kind: ScriptNoise, seed: int, index: int):
        self._kind = kind
        self._seed = seed
        self._index = index
        self._next = kind.start  # position of the next call
        self._state = None  # state of the generator before the next call

    def __call__(self, positions: range) -> Tensor:
        """Return noise [n, V]. Calls for skipped positions are made too, because each call changes the generator."""
        missing = range(self._next, max(self._next, positions.stop))
        made, self._state = self._kind.calls(self._seed, missing, self._state)
        self._next = missing.stop
        rows = made[-len(positions) :, self._index]
        return F.pad(rows, (0, 0, len(positions) - len(rows), 0))
