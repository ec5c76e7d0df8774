"""Noise: Gumbel(0, 1) numbers for every position and code of an image, made as images advance.

Our own is keyed: it depends on (seed, image index, position, code) alone. That of :mod:`.upstream` is the other kind.

The noise of a whole image can be large and slow to make: 1 GiB for 8,192 positions of 32,768 codes. So only the rows
around which an image is drawn are held, and those to come are made a few at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from ..errors import Check

Key = tuple[int, int]
"""What an image's noise depends on: its seed, and its number within its prompt's batch."""
Rows = Callable[[range], Tensor]
"""Makes an image's noise [n, V] at n positions. It is asked in raster order, for every position once."""
Kind = Callable[[Key], Rows]
"""A kind of noise: whose rows an image gets."""
NOISE_VERSION = 1
"""Format of the keyed noise; written into metadata, raised if the bits ever change."""
_NUMBERS_AT_ONCE = 2**15
"""Noise is made in chunks of about so many numbers: they stay in the processor's cache and take about 0.6 ms."""


def keyed_gumbel(seed: int, image_index: int, positions: range, vocabulary: int) -> np.ndarray:
    """Gumbel(0, 1) noise, float64 [len(positions), vocabulary].

    Counter-based (Philox 4x64): key (seed, image_index), counter word 1 = position. So any position can be made alone,
    and nothing depends on what was drawn before.
    """
    philox = np.random.Philox(key=np.array([seed, image_index], dtype=np.uint64))
    state = philox.state  # at the beginning; to set it again is faster than to make another generator
    bits = np.empty((len(positions), vocabulary), dtype=np.uint64)
    for row, position in zip(bits, positions):
        state["state"]["counter"][1] = position
        philox.state = state
        row[:] = philox.random_raw(vocabulary)
    bits >>= np.uint64(11)
    table = np.add(bits, 0.5)
    table *= 2.0**-53
    for _ in range(2):
        np.negative(np.log(table, out=table), out=table)
    return table


class Own:
    """The kind that is the same on every device, and of which any position can be made at once."""

    def __init__(self, vocabulary: int, like: Tensor):
        """like: gives dtype and device of the memory that rows are copied to."""
        self._vocabulary, self._like = vocabulary, like

    def __call__(self, key: Key) -> Rows:
        return partial(self._rows, key)

    def _rows(self, key: Key, positions: range) -> Tensor:
        """On the host. Pinned memory is not given to anybody else before the copy from it is done."""
        gumbel = torch.from_numpy(keyed_gumbel(*key, positions, self._vocabulary))
        return torch.empty(gumbel.shape, dtype=self._like.dtype, pin_memory=self._like.is_cuda).copy_(gumbel)


class Noise:
    """The noise of images that are being drawn: of each, the rows from its root on, in the device's memory.

    Position p of an image lies in row p % W of the image's ring. ``ring`` [B, W, V] keeps its memory until ``select``.
    """

    def __init__(
        self,
        keys: Sequence[Key],
        length: int,
        vocabulary: int,
        ahead: int,
        like: Tensor,
        check: Check | None = None,
        kind: Kind | None = None,
    ):
        """keys: one of each image. length: positions of an image. ahead: how far beyond an image's root any reader may
        ask, in positions.

        like: gives dtype and device. check: called before every chunk that is made. kind: our own unless given.
        """
        self.length, self.ahead, self._check = length, ahead, check
        self._chunk, width = _sizes(length, vocabulary, ahead)
        self._rows = list(map(kind or Own(vocabulary, like), keys))
        self._made = [0] * len(keys)  # of each image, the position before which nothing is left to make
        self.ring = like.new_zeros(len(keys), width, vocabulary)
        self._number_slots()

    def _number_slots(self) -> None:
        self._slots = torch.arange(len(self.ring), device=self.ring.device)[:, None]

    @staticmethod
    def num_bytes(images: int, length: int, vocabulary: int, ahead: int, itemsize: int = 4) -> int:
        """Bytes on the device for so many images. itemsize: bytes of a number."""
        return images * Noise.held(length, vocabulary, ahead) * vocabulary * itemsize

    @staticmethod
    def held(length: int, vocabulary: int, ahead: int) -> int:
        """Rows of an image that are held."""
        return _sizes(length, vocabulary, ahead)[1]

    def prepare(self, positions: Sequence[int], ahead: int | None = None) -> None:
        """Make what is missing of the rows from each image's root, at ``positions``, to ``ahead`` positions beyond it.

        positions: of the images' roots, on the host; none lies before the last it was given. ahead: that of the
        constructor unless told, and never more. Rows before a root may be overwritten. The device is not waited for.
        """
        ahead = self.ahead if ahead is None else ahead
        for slot, position in enumerate(positions):
            first = max(self._made[slot], position // self._chunk * self._chunk)
            for start in range(first, min(position + ahead + 1, self.length), self._chunk):
                self._make(slot, range(start, min(start + self._chunk, self.length)))

    def _make(self, slot: int, positions: range) -> None:
        """Make one chunk. It never wraps, since the ring is a whole number of chunks, or as long as an image."""
        if self._check is not None:
            self._check()
        first = positions.start % self.ring.shape[1]
        # Nobody has to wait for a copy to a GPU.
        self.ring[slot, first : first + len(positions)].copy_(self._rows[slot](positions), non_blocking=True)
        self._made[slot] = positions.stop

    def at(self, positions: Tensor) -> Tensor:
        """Noise [B, n, V] of the raster positions [B, n] int64; beyond the image's last position, that of the last.

        What was not prepared is finite and means nothing. The device is not waited for.
        """
        return self.ring[self._slots, positions.clamp_max(self.length - 1) % self.ring.shape[1]]

    def select(self, slots: Tensor) -> None:
        """Go on with the images of these slots alone."""
        self.ring = self.ring[slots]
        kept = slots.tolist()
        self._rows, self._made = [self._rows[slot] for slot in kept], [self._made[slot] for slot in kept]
        self._number_slots()

    def admit(self, slots: Tensor, others: Noise) -> None:
        """Put the images of ``others``, of the same sizes, in these slots. The ring's memory stays.

        ``check`` is that of ``others`` from now on.
        """
        self.ring.index_copy_(0, slots, others.ring)
        for number, slot in enumerate(slots.tolist()):
            self._rows[slot], self._made[slot] = others._rows[number], others._made[number]
        self._check = others._check


def _sizes(length: int, vocabulary: int, ahead: int) -> tuple[int, int]:
    """Rows of a chunk, and of an image's ring: those that may be asked for, in whole chunks, and no more than exist."""
    chunk = max(_NUMBERS_AT_ONCE // vocabulary, 1)
    return chunk, min(-(-ahead // chunk) * chunk + chunk, length)
