"""Upstream's noise: that with which the scripts of the models' authors draw, so that a seed gives their picture.

They draw with ``torch.multinomial(p, 1)``. That is ``argmax(p / q)``, with q from ``exponential_`` of a row as wide as
p, so -log q is Gumbel noise for log p (torch's source; Gumbel-max). A generator goes on by the shape of p alone,
so rows can be known before p is. They can be made in order only, and another kind of device makes others.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .noise import Key, Rows


def maker(device: torch.device) -> str:
    """Who makes the noise there: of graphics cards the model, since their noise depends on how they share the work."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


@cache
def exponential_is_of_uniform() -> bool:
    """Does this torch make a CPU's exponential number of a uniform one u in float64, as -log(1 - u)? All that are known
    do. Then only those that are kept have to be made, and all at once."""
    numbers = torch.empty(1000, dtype=torch.float64).uniform_(generator=torch.Generator().manual_seed(0))
    expected = torch.empty(1000).exponential_(generator=torch.Generator().manual_seed(0))
    return torch.equal(numbers.neg_().log1p_().neg_().float(), expected)


class _Drawn(NamedTuple):
    """Some positions. rows: [n, together, V]. state: of the generator behind them."""

    rows: Tensor
    state: Tensor


class Upstream:
    """The kind of noise. All images that have a seed in common are rows of the same calls.

    What was drawn for one image is kept for a while: others of its batch may be about as far.
    """

    def __init__(self, width: int, columns: Tensor, together: int, start: int = 0, kept: int = 0, before: int = 0):
        """width: of the vector that the script samples from. columns: [V] int64, where our tokens are in it, in order;
        on the device that makes the noise. together: images that the script draws at once, which is rows of a call.
        start: position of the first call that is ours; the script makes ``before`` others first. kept: positions that
        are kept for other images.
        """
        self.start, self._before = start, before
        self._width, self._columns, self._together, self._most = width, columns, together, kept
        self._generator = torch.Generator(columns.device)
        self._uniform = columns.device.type == "cpu" and exponential_is_of_uniform()
        numbers = torch.float64 if self._uniform else torch.float32
        self._row = torch.empty(together, width, dtype=numbers, device=columns.device)
        self._kept: dict[tuple[int, range], _Drawn] = {}

    def __call__(self, key: Key) -> Rows:
        return _Reader(self, *key)

    def drawn(self, seed: int, positions: range, state: Tensor | None) -> _Drawn:
        """The calls of these positions. state: of the generator before them; None for the first ones of a seed."""
        drawn = self._kept.get((seed, positions))
        if drawn is None:
            drawn = self._kept[seed, positions] = self._draw(seed, positions, state)
            while len(self._kept) * len(positions) > self._most:
                del self._kept[next(iter(self._kept))]
        return drawn

    def _draw(self, seed: int, positions: range, state: Tensor | None) -> _Drawn:
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
        return _Drawn(noise.log_().neg_(), generator.get_state())

    def _call(self) -> Tensor:
        """The next exponential numbers of our tokens, [together, V]."""
        if not self._uniform:
            return self._row.exponential_(generator=self._generator).index_select(-1, self._columns)
        numbers = self._row.uniform_(generator=self._generator)
        if len(self._columns) < self._width:
            numbers = numbers.index_select(-1, self._columns)
        return numbers.neg_().log1p_().neg_()


class _Reader:
    """The rows of one image. Those before the first call are 0."""

    _state: Tensor | None

    def __init__(self, kind: Upstream, seed: int, index: int):
        self._kind, self._seed, self._index = kind, seed, index
        self._next, self._state = kind.start, None  # position of the next call, and the generator before it

    def __call__(self, positions: range) -> Tensor:
        """Positions that were left out are drawn as well: no call can be skipped."""
        calls = range(self._next, max(self._next, positions.stop))
        drawn, self._state = self._kind.drawn(self._seed, calls, self._state)
        self._next = calls.stop
        rows = drawn[-len(positions) :, self._index]
        return F.pad(rows, (0, 0, len(positions) - len(rows), 0))
