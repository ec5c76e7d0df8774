"""What stays in a GPU's memory from one decoding to the next, with the weights: caches, state and captured rounds."""

from __future__ import annotations

from torch import nn

from .lanes import Lanes


def keep(decoder: nn.Module, lanes: Lanes) -> None:
    """Keep these lanes for the next decoding."""
    decoder.kept = lanes  # type: ignore[assignment]


def take(decoder: nn.Module) -> Lanes | None:
    """The lanes that were kept. They are kept no more."""
    lanes = getattr(decoder, "kept", None)
    release(decoder)
    return lanes


def release(decoder: nn.Module) -> None:
    """Free what is kept, because the weights are to be moved or the memory is wanted."""
    decoder.kept = None  # type: ignore[assignment]


def held_bytes(decoder: nn.Module) -> int:
    """Bytes of the device's memory that are kept."""
    lanes = getattr(decoder, "kept", None)
    return 0 if lanes is None else lanes.num_bytes
