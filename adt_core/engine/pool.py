"""What stays in a GPU's memory from one decoding to the next, with the weights: caches, state and captured rounds.

A decoding with the same plan (:meth:`.request.Request.plan`) goes on in the same memory. Methods that take turns, as in a
comparison, each find their own.
"""

from __future__ import annotations

import math
from collections.abc import Hashable

import torch
from torch import nn

from .slots import Slots

MAX_POOLED = 16
"""Sets of slots in the pool at most; the latest stay."""
MEMORY_SHARE = 1 / 4
"""Share of the device's memory that they may take together, if there are several."""


def put(decoder: nn.Module, slots: Slots) -> None:
    """Keep these slots for the next decoding that has their plan."""
    sets, device = _sets(decoder), slots.rows.device
    sets.pop(slots.plan, None)
    sets[slots.plan] = slots
    memory = torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else math.inf
    while len(sets) > MAX_POOLED or len(sets) > 1 and held_bytes(decoder) > MEMORY_SHARE * memory:
        del sets[next(iter(sets))]


def take(decoder: nn.Module, plan: Hashable) -> Slots | None:
    """Take the slots of this plan out of the pool; None if there are none."""
    return _sets(decoder).pop(plan, None)


def release(decoder: nn.Module) -> None:
    """Free the pool, because the weights are to be moved or the memory is wanted."""
    _sets(decoder).clear()


def held_bytes(decoder: nn.Module) -> int:
    """Bytes of the device's memory that the pool takes, and that would be free after :func:`release`."""
    return sum(slots.num_bytes for slots in kept(decoder))


def kept(decoder: nn.Module) -> list[Slots]:
    """The slots in the pool, the latest last."""
    return list(_sets(decoder).values())


def _sets(decoder: nn.Module) -> dict[Hashable, Slots]:
    """The pool's slots with these weights, by their plan, the latest last."""
    return decoder.__dict__.setdefault("pooled_slots", {})
