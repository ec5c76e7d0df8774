"""What a decoding may take of the machine's own memory. A system that runs out of it kills the process, without a word.

A GPU says so itself: then fewer images are drawn at once (:mod:`..decoding`). Its free memory is looked at beforehand
only for work that may be skipped, such as measuring.
"""

from __future__ import annotations

import math

import psutil
import torch

from ...errors import AdtError
from .. import pool
from ..request import Request

MEMORY_SHARE = 0.8
"""Share of the machine's memory for weights, caches, trees and noise together."""


def check_memory(request: Request, at_once: int) -> None:
    """AdtError if so many images at once would take too much."""
    if said := cpu_memory_shortage(request, at_once):
        raise AdtError(said)


def cpu_memory_shortage(request: Request, at_once: int) -> str:
    """What is wrong if the weights are on the CPU, and so many images at once take too much beside them; else ""."""
    decoder = request.target.decoder
    if decoder.embedding.device.type != "cpu":
        return ""
    weights = sum(part.numel() * part.element_size() for part in decoder.parameters())
    work, total = request.memory_required(at_once), psutil.virtual_memory().total
    if weights + work <= MEMORY_SHARE * total:
        return ""
    images = f"{at_once} images at a time" if at_once > 1 else "one image"
    needed, beside, there = (f"{size / 2**30:.3g} GB" for size in (work, weights, total))
    return (
        f"{images} would need {needed} of memory in addition to the {beside} of {request.target.name}, but at most "
        f"{MEMORY_SHARE:.0%} of this machine's {there} may be used; use a smaller batch size, tree or model."
    )


def gpu_memory_shortage(request: Request, at_once: int) -> str:
    """What is wrong if the weights are on a GPU, and its free memory is too little for so many images; else ""."""
    decoder = request.target.decoder
    needed, free = request.slots_bytes(at_once), free_bytes(decoder.embedding.device) + pool.held_bytes(decoder)
    if needed <= free:
        return ""
    return f"it would need {needed / 2**30:.3g} GB of GPU memory, but only {free / 2**30:.3g} GB are free"


def free_bytes(device: torch.device) -> float:
    """Bytes of a GPU's memory that this process could still have; without a bound for other devices."""
    if device.type != "cuda":
        return math.inf
    free, _ = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
