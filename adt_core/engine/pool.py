"""Pool of slots that stay in a GPU's memory between decodings: KV caches, state and captured graphs.

A decoding reuses the slots of an earlier one with the same plan (:func:`plan_of`). Methods that
alternate, as in a comparison, each find their own. The pool is an attribute of the decoder whose weights the graphs
read, so it is freed together with them.
"""

from __future__ import annotations

import math
from collections.abc import Hashable

import torch
from torch import nn

from ..drafters import Drafter
from .request import Request
from .slots import Slots

MAX_POOLED = 16
"""Maximum number of sets of slots; the oldest are dropped."""
MEMORY_SHARE = 1 / 4
"""Maximum share of the device's memory for the pool, if it holds more than one set."""


def plan_of(request: Request, count: int, drafter: Drafter | None) -> Hashable:
    """Return what the memory of slots and their captured graphs depend on.

    Args:
        request: Batch to decode.
        count: Number of slots.
        drafter: Drafter in use, or None.
    """
    target = request.target
    weights = [target.decoder, *([drafter.network] if drafter is not None and drafter.network else [])]
    addresses = tuple(part.data_ptr() for module in weights for part in (*module.parameters(), *module.buffers()))
    rows = count, request.groups, target.grid, request.largest
    lengths = request.padded, request.start, request.cache_length
    return rows, lengths, target.decoder.fallback, request.recipe.memory_key(), drafter and drafter.kind, addresses


def put(decoder: nn.Module, slots: Slots) -> None:
    """Keep slots for the next decoding with the same plan, and drop the oldest sets beyond the limits."""
    sets = _sets(decoder)
    device = slots.rows.device
    sets.pop(slots.plan, None)
    sets[slots.plan] = slots
    memory = torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else math.inf
    while len(sets) > MAX_POOLED or len(sets) > 1 and held_bytes(decoder) > MEMORY_SHARE * memory:
        del sets[next(iter(sets))]


def take(decoder: nn.Module, plan: Hashable) -> Slots | None:
    """Remove and return the slots of a plan; None if there are none."""
    return _sets(decoder).pop(plan, None)


def release(decoder: nn.Module) -> None:
    """Free the pool, for example before the weights are moved."""
    _sets(decoder).clear()


def held_bytes(decoder: nn.Module) -> int:
    """Return the bytes of device memory that `release` would free."""
    return sum(slots.num_bytes for slots in pooled(decoder))


def pooled(decoder: nn.Module) -> list[Slots]:
    """Return the slots in the pool, oldest first."""
    return list(_sets(decoder).values())


def _sets(decoder: nn.Module) -> dict[Hashable, Slots]:
    """Return the pooled slots by plan, oldest first."""
    return decoder.__dict__.setdefault("pooled_slots", {})
