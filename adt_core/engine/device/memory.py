"""Checks of free memory before a decoding.

A system that runs out of RAM kills the process without an error message, so RAM is checked before a decoding starts.
A GPU raises an error instead, and the decoding goes on with a smaller batch (:mod:`..decoding`); its free memory is
checked only for work that may be skipped, such as measuring.
"""

from __future__ import annotations

import math

import psutil
import torch

from ...errors import AdtError
from .. import pool
from ..request import Request

MEMORY_SHARE = 0.8
"""Maximum share of the machine's RAM for weights, caches, trees and noise together."""


def check_memory(request: Request, batch_size: int) -> None:
    """Raise AdtError if decoding on the CPU would need too much RAM.

    Args:
        request: Batch to decode.
        batch_size: Number of images that are decoded together.

    Raises:
        AdtError: If it would need more than `MEMORY_SHARE` of the RAM.
    """
    if shortage := cpu_memory_shortage(request, batch_size):
        raise AdtError(shortage)


def cpu_memory_shortage(request: Request, batch_size: int) -> str:
    """Return an error message if the weights are on the CPU and RAM is too small, else "".

    Args:
        request: Batch to decode.
        batch_size: Number of images that are decoded together.
    """
    decoder = request.target.decoder
    if decoder.embedding.device.type != "cpu":
        return ""
    weights = sum(part.numel() * part.element_size() for part in decoder.parameters())
    work = request.memory_required(batch_size)
    total = psutil.virtual_memory().total
    if weights + work <= MEMORY_SHARE * total:
        return ""
    images = f"{batch_size} images at a time" if batch_size > 1 else "one image"
    needed, loaded, installed = (f"{size / 2**30:.3g} GB" for size in (work, weights, total))
    return (
        f"{images} would need {needed} of memory in addition to the {loaded} of {request.target.name}, but at most "
        f"{MEMORY_SHARE:.0%} of this machine's {installed} may be used; use a smaller batch size, tree or model."
    )


def gpu_memory_shortage(request: Request, batch_size: int) -> str:
    """Return an error message if the weights are on a GPU and its free memory is too small, else "".

    Args:
        request: Batch to decode.
        batch_size: Number of images that are decoded together.
    """
    decoder = request.target.decoder
    needed = request.slots_bytes(batch_size)
    free = free_bytes(decoder.embedding.device) + pool.held_bytes(decoder)
    if needed <= free:
        return ""
    return f"it would need {needed / 2**30:.3g} GB of GPU memory, but only {free / 2**30:.3g} GB are free"


def free_bytes(device: torch.device) -> float:
    """Return the bytes of GPU memory that this process can still allocate; infinity for other devices."""
    if device.type != "cuda":
        return math.inf
    free, _ = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
