"""Gumbel(0, 1) noise for every position and token of an image, made while the image is decoded.

Our own noise is keyed: it depends only on (seed, image index, position, token). :mod:`.upstream` has the noise of the
model authors' scripts.

The noise of an entire image can be large and slow to make: 1 GiB for 8,192 positions of 32,768 tokens. So only the rows
near the current position are stored, and new rows are made a few at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from ..errors import Check

Key = tuple[int, int]
"""Seed of an image, and its index among the images of its prompt."""
NoiseRows = Callable[[range], Tensor]
"""Function that makes an image's noise [n, V] at n positions; called once per position, in raster order."""
NoiseKind = Callable[[Key], NoiseRows]
"""Function that returns the noise of an image."""
NOISE_VERSION = 1
"""Version of the keyed noise, saved in metadata; to be raised if its values ever change."""
_CHUNK_NUMBERS = 2**15
"""Numbers made in one call: they fit into the processor's cache and take about 0.6 ms on one core."""


def keyed_gumbel(seed: int, image_index: int, positions: range, vocabulary: int) -> np.ndarray:
    """Return keyed Gumbel(0, 1) noise.

    The generator is counter-based (Philox 4x64) with the key (seed, image_index) and the position as counter word 1.
    So each position can be made separately, and no number depends on earlier ones.

    Args:
        seed: Seed of the image.
        image_index: Index of the image among the images of its prompt.
        positions: Raster positions.
        vocabulary: Number of tokens V.

    Returns:
        [n, V] float64.
    """
    philox = np.random.Philox(key=np.array([seed, image_index], dtype=np.uint64))
    state = philox.state  # setting the initial state again is faster than making another generator
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


class KeyedNoise:
    """Noise that is the same on every device. Any position can be made on its own."""

    def __init__(self, vocabulary: int, like: Tensor):
        """Prepare the noise.

        Args:
            vocabulary: Number of tokens V.
            like: Tensor that sets the dtype of rows, and the device that they will be copied to.
        """
        self._vocabulary = vocabulary
        self._like = like

    def __call__(self, key: Key) -> NoiseRows:
        return partial(self._rows, key)

    def _rows(self, key: Key, positions: range) -> Tensor:
        """Return rows in host memory. torch does not reuse pinned memory before the copy from it has finished."""
        gumbel = torch.from_numpy(keyed_gumbel(*key, positions, self._vocabulary))
        return torch.empty(gumbel.shape, dtype=self._like.dtype, pin_memory=self._like.is_cuda).copy_(gumbel)


class Noise:
    """Noise of the active images, in device memory from each image's root on.

    Attributes:
        ring: [B, W, V]. Row p % W of an image has the noise of position p. Its memory stays the same until `select`.
        length: Positions of an image.
        ahead: Maximum distance from an image's root at which noise is read.
    """

    def __init__(
        self,
        keys: Sequence[Key],
        length: int,
        vocabulary: int,
        ahead: int,
        like: Tensor,
        check: Check | None = None,
        kind: NoiseKind | None = None,
    ):
        """Allocate the ring.

        Args:
            keys: Key of each image.
            length: Positions of an image.
            vocabulary: Number of tokens V.
            ahead: Maximum distance from an image's root at which noise is read, in positions.
            like: Tensor that sets dtype and device.
            check: Called before each chunk; may raise an exception to cancel.
            kind: Kind of noise (default: keyed).
        """
        self.length = length
        self.ahead = ahead
        self._check = check
        self._chunk, width = _sizes(length, vocabulary, ahead)
        self._rows = list(map(kind or KeyedNoise(vocabulary, like), keys))
        self._made = [0] * len(keys)  # all positions before this one are made, for each image
        self.ring = like.new_zeros(len(keys), width, vocabulary)
        self._number_slots()

    def _number_slots(self) -> None:
        self._slots = torch.arange(len(self.ring), device=self.ring.device)[:, None]

    @staticmethod
    def num_bytes(images: int, length: int, vocabulary: int, ahead: int, itemsize: int = 4) -> int:
        """Return the bytes of a ring.

        Args:
            images: Number of images.
            length: Positions of an image.
            vocabulary: Number of tokens.
            ahead: Maximum distance from an image's root at which noise is read.
            itemsize: Bytes of a number.
        """
        return images * Noise.held(length, vocabulary, ahead) * vocabulary * itemsize

    @staticmethod
    def held(length: int, vocabulary: int, ahead: int) -> int:
        """Return the number W of rows that are stored for an image.

        Args:
            length: Positions of an image.
            vocabulary: Number of tokens.
            ahead: Maximum distance from an image's root at which noise is read.
        """
        return _sizes(length, vocabulary, ahead)[1]

    def prepare(self, positions: Sequence[int], ahead: int | None = None) -> None:
        """Make the missing rows from each image's root on, without waiting for the device.

        Rows before a root may be overwritten.

        Args:
            positions: Position of each image's root, which never decreases.
            ahead: Number of positions after the root (default and maximum: the constructor's `ahead`).
        """
        ahead = self.ahead if ahead is None else ahead
        for slot, position in enumerate(positions):
            first = max(self._made[slot], position // self._chunk * self._chunk)
            for start in range(first, min(position + ahead + 1, self.length), self._chunk):
                self._make(slot, range(start, min(start + self._chunk, self.length)))

    def _make(self, slot: int, positions: range) -> None:
        """Make one chunk. It never wraps, because the ring consists of complete chunks or is as long as an image."""
        if self._check is not None:
            self._check()
        first = positions.start % self.ring.shape[1]
        self.ring[slot, first : first + len(positions)].copy_(self._rows[slot](positions), non_blocking=True)
        self._made[slot] = positions.stop

    def at(self, positions: Tensor) -> Tensor:
        """Return the noise at raster positions, without waiting for the device.

        Args:
            positions: [B, n] int64. Positions after the image's last one get the noise of the last one.

        Returns:
            [B, n, V]. Rows that were not prepared have arbitrary finite values.
        """
        return self.ring[self._slots, positions.clamp_max(self.length - 1) % self.ring.shape[1]]

    def select(self, slots: Tensor) -> None:
        """Drop the images of all other slots."""
        self.ring = self.ring[slots]
        kept = slots.tolist()
        self._rows = [self._rows[slot] for slot in kept]
        self._made = [self._made[slot] for slot in kept]
        self._number_slots()

    def admit(self, slots: Tensor, others: Noise) -> None:
        """Replace the images of some slots in place.

        Args:
            slots: [b], slots to fill.
            others: Noise of the new images, with the same sizes. Its `check` is used from now on.
        """
        self.ring.index_copy_(0, slots, others.ring)
        for number, slot in enumerate(slots.tolist()):
            self._rows[slot] = others._rows[number]
            self._made[slot] = others._made[number]
        self._check = others._check


def _sizes(length: int, vocabulary: int, ahead: int) -> tuple[int, int]:
    """Return the rows of a chunk and of an image's ring.

    Example: 4,096 tokens give chunks of 8 rows. For ahead = 20 the ring has 24 + 8 = 32 rows, because a root can be
    anywhere in its chunk. It never has more rows than an image has positions.
    """
    chunk = max(_CHUNK_NUMBERS // vocabulary, 1)
    return chunk, min(-(-ahead // chunk) * chunk + chunk, length)
