"""What a decoding asks of the device's memory, in bytes."""

from __future__ import annotations

from collections.abc import Sequence

from ..drafters import Drafter
from ..models.cache import KVCache
from ..models.graphs import wanted
from ..models.target import Target


def caches_and_noise(
    target: Target, groups: int, at_once: int, held: int, slots: int, drafters: Sequence[Drafter]
) -> int:
    """KV caches, what the hungriest of the drafters keeps, and noise.

    groups: rows of an image. at_once: images at work. held: images whose state exists at the same time. slots: of a cache.
    """
    itemsize = target.decoder.embedding.element_size()
    own = KVCache.num_bytes(target.decoder.config, groups * at_once, slots, itemsize)
    drafting = max((drafter.cache_bytes(groups * held, slots, itemsize) for drafter in drafters), default=0)
    return own + drafting + held * target.length * target.num_tokens * 4


def forward_bytes(target: Target, rows: int, tokens: int, slots: int) -> int:
    """The largest activations of a forward over so many tokens of each row, widened weights, and the codec at work."""
    decoder = target.decoder
    config, itemsize = decoder.config, decoder.embedding.element_size()
    numbers = 2 * config.intermediate_size + 8 * config.hidden_size + slots + target.num_codes
    activations = 4 * rows * tokens * numbers
    widened_head = 4 * decoder.head.numel() * (itemsize < 4)
    widened_matrix = 6 * decoder.layers[0].gate_up.numel() * (decoder.weights is not None)
    working = activations + widened_head + widened_matrix
    if wanted(decoder.embedding.device):
        working *= 2  # graphs have activations of their own
    pixels = target.grid[0] * target.grid[1] * target.downsample**2
    return working + target.codec.working_bytes(pixels)
