"""Pool of slots that stay in a GPU's memory between decodings: KV caches, state and captured graphs.

A *set of slots* is one :class:`Slots` object. The *layout* of a set (:func:`layout_of`) is a key: two sets with the
same layout use their memory in the same way. A decoding computes the layout that it needs. If the pool has a set with
this layout, the decoding reuses the set and its captured graphs. The pool holds several sets, because decodings with
different methods may alternate, for example when a user compares two methods.

Captured graphs read the weights of one decoder. Therefore the pool is an attribute of this decoder. When the decoder is
freed, its pool is freed too.
"""

from __future__ import annotations

import math
from collections.abc import Hashable

import torch

from ..drafters import Drafter
from ..kernels.choice import supports_kernels
from ..models.layers import Decoder
from ..models.torch_private import product_settings
from .request import Request
from .slots import Slots

MAX_POOLED = 16
"""Maximum number of sets of slots in a pool."""
MEMORY_SHARE = 1 / 4
"""Maximum share of the device's memory for the pool. A pool with only one set of slots may be larger."""


def layout_of(request: Request, count: int, drafter: Drafter | None) -> Hashable:
    """Return the layout of `count` slots. Sets with the same layout use memory in the same way and can share graphs."""
    target = request.target
    weights = [target.decoder, *([drafter.network] if drafter is not None and drafter.network else [])]
    addresses = tuple(part.data_ptr() for module in weights for part in (*module.parameters(), *module.buffers()))
    rows = count, request.groups, target.grid, request.largest
    kernels = supports_kernels(target.decoder.embedding.device)  # False after a kernel has failed
    lengths = request.padded, request.start, request.cache_length, request.kept.has_runs
    return (
        rows,
        lengths,
        kernels,
        tuple(product_settings()),  # a captured round multiplies as when it was captured
        target.decoder.fallback,
        request.loaded.memory_key(),
        drafter and drafter.kind,
        addresses,
    )


def put(decoder: Decoder, slots: Slots) -> None:
    """Put a set of slots into the pool. Beyond `MAX_POOLED` or `MEMORY_SHARE`, the oldest sets are dropped."""
    sets = decoder.pooled_slots
    device = slots.rows.device
    sets.pop(slots.layout, None)
    sets[slots.layout] = slots
    memory = torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else math.inf
    while len(sets) > MAX_POOLED or len(sets) > 1 and decoder.pool_bytes > MEMORY_SHARE * memory:
        del sets[next(iter(sets))]


def take(decoder: Decoder, layout: Hashable) -> Slots | None:
    """Remove the slots of a layout from the pool and return them, or None."""
    return decoder.pooled_slots.pop(layout, None)


def pooled(decoder: Decoder) -> list[Slots]:
    """Return the slots in the pool, oldest first."""
    return list(decoder.pooled_slots.values())
