"""Copy of the output head in half precision, with which a GPU computes the logits of drafts.

A model in half precision has its head in float32, because verification needs precise logits. Drafts never change the
image, so their logits may be imprecise. A drafter network multiplies by the head once per call. In half precision, this
reads half the bytes and uses the matrix instructions of the GPU.

All proposers of a decoder share the copy. It is freed together with the last of them.
"""

from __future__ import annotations

from weakref import ref

import torch
from torch import Tensor

from ..models.layers import Decoder
from ..runtime import get_runtime


def has_half_head(decoder: Decoder, device: torch.device) -> bool:
    """Return whether drafts on a device need a copy of the head. On a CPU, it would be slower (docs/performance.md)."""
    return device.type == "cuda" and decoder.dtype.itemsize < decoder.head.element_size()


def half_head(decoder: Decoder) -> Tensor | None:
    """Return the copy of a decoder's head, [h, V] in the dtype of its layers; None if drafts need no copy."""
    if not has_half_head(decoder, decoder.head.device):
        return None
    copies = get_runtime().half_heads
    copy = copies[decoder]() if decoder in copies else None
    if copy is None or copy.device != decoder.head.device:
        copy = decoder.head.to(decoder.dtype)
        copies[decoder] = ref(copy)
    return copy


def half_head_bytes(decoder: Decoder, device: torch.device) -> int:
    """Return the bytes of the copy for drafts on a device; 0 if there is none."""
    return decoder.head.numel() * decoder.dtype.itemsize if has_half_head(decoder, device) else 0
