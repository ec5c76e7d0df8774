"""What the engine keeps on the device between decodings: ``decoder.kept``, or nothing.

It belongs to where the weights are. Whoever moves them releases it first.
"""

from __future__ import annotations

from torch import nn


def held_bytes(decoder: nn.Module) -> int:
    """Bytes that are kept on the device for the next decoding."""
    kept = getattr(decoder, "kept", None)
    return kept.num_bytes if kept is not None else 0


def release(decoder: nn.Module) -> None:
    """Free what is kept. The next decoding makes it anew."""
    if getattr(decoder, "kept", None) is not None:
        del decoder.kept
