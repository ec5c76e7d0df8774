"""Gumbel(0, 1) noise for every position and token of an image, made while the image is decoded.

The sampled token is `argmax(logits + noise)`; see :mod:`.sampling`. This module makes keyed noise: each number depends
only on the seed, the image index, the position and the token. :mod:`.script_noise` makes the noise of the model
authors' scripts.

The noise of an entire image can be large and slow to make: 1 GiB for 8,192 positions of 32,768 tokens. So memory holds
only the rows near the current position, and new rows are made a few at a time.

Terms and dimensions:

- Position: index of a token in its image, in raster order (row by row, from left to right).
- Slot: index of an image in the batch.
- B images in the batch, n positions, V tokens in the vocabulary, W rows that are stored for each image.
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
"""Function that makes the noise [n, V] of one image at n successive positions. The caller requests positions in raster
order, and each position at most once."""
NoiseKind = Callable[[Key], NoiseRows]
"""Function from the key of an image to its `NoiseRows`."""
_CHUNK_NUMBERS = 2**15
"""Approximate number of random numbers in a chunk: the noise at a few successive positions, made by one call. This many
numbers fit into the CPU's cache, and making them takes about 0.6 ms on one core."""


def keyed_gumbel(seed: int, image_index: int, positions: range, vocabulary: int) -> np.ndarray:
    """Return keyed Gumbel(0, 1) noise, [n, V] float64.

    The random generator is Philox 4x64. It computes each number from a key and a counter. Here the key is (seed,
    image_index), and word 1 of the counter is the position. So the row of a position can be made without the rows
    before it.

    Args:
        image_index: Index of the image among the images of its prompt.
    """
    philox = np.random.Philox(key=np.array([seed, image_index], dtype=np.uint64))
    state = philox.state  # setting the initial state again is faster than making another generator
    bits = np.empty((len(positions), vocabulary), dtype=np.uint64)
    for row, position in zip(bits, positions):
        state["state"]["counter"][1] = position
        philox.state = state
        row[:] = philox.random_raw(vocabulary)
    # The upper 53 bits give uniform numbers u in (0, 1). Gumbel noise is -log(-log(u)).
    bits >>= np.uint64(11)
    table = np.add(bits, 0.5)
    table *= 2.0**-53
    for _ in range(2):
        np.negative(np.log(table, out=table), out=table)
    return table


class KeyedNoise:
    """Keyed noise, as a `NoiseKind`. The noise values are the same on every device."""

    def __init__(self, vocabulary: int, like: Tensor):
        """Prepare the noise. `like` has its dtype, on the device to which the caller will copy it."""
        self._vocabulary = vocabulary
        self._like = like

    def __call__(self, key: Key) -> NoiseRows:
        return partial(self._rows, key)

    def _rows(self, key: Key, positions: range) -> Tensor:
        """Return noise [n, V] in host memory, which is pinned if the device is a GPU.

        The caller may start an asynchronous copy to the GPU and drop the result at once: torch does not reuse pinned
        memory before such a copy has finished.
        """
        gumbel = torch.from_numpy(keyed_gumbel(*key, positions, self._vocabulary))
        return torch.empty(gumbel.shape, dtype=self._like.dtype, pin_memory=self._like.is_cuda).copy_(gumbel)


class Noise:
    """Ring buffer in device memory with the noise of the active images, from the position of each image's root on.

    Attributes:
        ring: [B, W, V]. Row p % W of an image has the noise of position p. The tensor is modified in place; only
            `select` replaces it.
        length: Number of positions of an image.
        ahead: Noise is read at the position of an image's root, and at most this many positions after it.
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
            like: Tensor with the dtype and the device of the ring.
            check: Cancellation callback, called before each chunk of rows is made. It may raise an exception.
            kind: Kind of noise (default: keyed noise).
        """
        self.length = length
        self.ahead = ahead
        self._check = check
        self._chunk, width = _sizes(length, vocabulary, ahead)
        self._rows = list(map(kind or KeyedNoise(vocabulary, like), keys))
        self._made = [0] * len(keys)  # for each image: its first position without noise
        self.ring = like.new_zeros(len(keys), width, vocabulary)
        self._number_slots()

    def _number_slots(self) -> None:
        self._slots = torch.arange(len(self.ring), device=self.ring.device)[:, None]

    @staticmethod
    def num_bytes(images: int, length: int, vocabulary: int, ahead: int, itemsize: int = 4) -> int:
        """Return the size of `ring` in bytes, with `itemsize` bytes per number."""
        return images * Noise.held(length, vocabulary, ahead) * vocabulary * itemsize

    @staticmethod
    def held(length: int, vocabulary: int, ahead: int) -> int:
        """Return the number W of rows that are stored for an image."""
        return _sizes(length, vocabulary, ahead)[1]

    def prepare(self, positions: Sequence[int], ahead: int | None = None) -> None:
        """Make the missing rows of each image, from its root to `ahead` positions after the root.

        The host does not wait for the device. New rows may overwrite the rows of positions before the root.

        Args:
            positions: Position of each image's root. The position of an image never decreases from call to call.
            ahead: Number of positions after the root (default and maximum: the attribute `ahead`).
        """
        ahead = self.ahead if ahead is None else ahead
        for slot, position in enumerate(positions):
            first = max(self._made[slot], position // self._chunk * self._chunk)
            for start in range(first, min(position + ahead + 1, self.length), self._chunk):
                self._make(slot, range(start, min(start + self._chunk, self.length)))

    def _make(self, slot: int, positions: range) -> None:
        """Make the rows of one chunk.

        The rows of a chunk are contiguous in the ring: W is a multiple of the chunk size, or equals `length`.
        """
        if self._check is not None:
            self._check()
        first = positions.start % self.ring.shape[1]
        self.ring[slot, first : first + len(positions)].copy_(self._rows[slot](positions), non_blocking=True)
        self._made[slot] = positions.stop

    def at(self, positions: Tensor) -> Tensor:
        """Return the noise [B, n, V] at n positions of each image, without waiting for the device.

        The values at a position that `prepare` has not made are arbitrary, but finite.

        Args:
            positions: [B, n] int64. A position after the end of the image gets the noise of the image's last position.
        """
        return self.ring[self._slots, positions.clamp_max(self.length - 1) % self.ring.shape[1]]

    def select(self, slots: Tensor) -> None:
        """Keep the images in the given slots [b] int64. They get the new slots 0 to b - 1 in this order."""
        self.ring = self.ring[slots]
        kept = slots.tolist()
        self._rows = [self._rows[slot] for slot in kept]
        self._made = [self._made[slot] for slot in kept]
        self._number_slots()

    def admit(self, slots: Tensor, others: Noise) -> None:
        """Replace the images in some slots by new images. `ring` is modified in place.

        Args:
            slots: [b] int64, slots of the new images.
            others: Noise of the b new images, with the same `length`, V and W. Its cancellation callback replaces this
                one's.
        """
        self.ring.index_copy_(0, slots, others.ring)
        for number, slot in enumerate(slots.tolist()):
            self._rows[slot] = others._rows[number]
            self._made[slot] = others._made[number]
        self._check = others._check


def _sizes(length: int, vocabulary: int, ahead: int) -> tuple[int, int]:
    """Return the number of rows in a chunk, and the number W of rows that the ring stores for an image.

    Example: V = 4,096 and ahead = 20. A chunk has 32,768 / 4,096 = 8 rows. 20 positions need 3 chunks (24 rows). The
    ring has one more chunk, because the root can be anywhere in its own chunk. So W is 24 + 8 = 32. W is never larger
    than the number of positions of an image.
    """
    chunk = max(_CHUNK_NUMBERS // vocabulary, 1)
    return chunk, min(-(-ahead // chunk) * chunk + chunk, length)
