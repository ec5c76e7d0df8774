"""Memory for the weights of a target: how many layers are streamed, and whether the memory is large enough."""

from __future__ import annotations

import logging
import math

import torch
from torch import nn

from ..errors import AdtError
from ..memory_limit import free_address_space, memory_limit, usable_bytes
from ..messages import message
from ..settings import DISK, RAM
from .cache import KVCache
from .streamed import device_bytes, layer_bytes, least_bytes, move, place, spread, streamed_count
from .target import Target

WORK_BYTES = 2**29
"""Memory of a GPU for activations, captured rounds and workspaces, in bytes. It is an assumption."""
PROMPT_TOKENS = 512  # number of tokens of a prompt for which memory is kept beside streamed layers
_log = logging.getLogger(__name__)


def check_main_memory(name: str, streamed_bytes: int, usable: int) -> None:
    """Raise an AdtError if the streamed layers of a model need more bytes of main memory than are usable."""
    if streamed_bytes > usable:
        needed, there = (f"{size / 2**30:.1f} GiB" for size in (streamed_bytes, usable))
        raise AdtError("memory.main_too_small", model=name, needed=needed, there=there, owner=memory_limit().owner)


def check_address_space(target: Target, largest_file: int) -> None:
    """Raise an AdtError if the limit of `ulimit -v` is too small to read the weights.

    A file of weights is mapped while it is read, so it takes address space in addition to the weights.
    """
    free = free_address_space()
    weights = device_bytes(target.decoder, 0) + companion_bytes(target)
    if free is not None and weights + largest_file > free:
        needed, file, left = (f"{size / 2**30:.1f} GiB" for size in (weights, largest_file, free))
        raise AdtError("memory.address_space", model=target.name, needed=needed, file=file, left=left)


def allocate(target: Target, device: torch.device, device_memory: float | None = None, memory: str = RAM) -> None:
    """Allocate the weights of a target that is on the device "meta", except for layers that are read from files.

    It has the arguments of :func:`.load.load_target`.

    Raises:
        AdtError: If the device or the main memory is too small.
    """
    others = _companions(target)
    for module in (target.decoder, *others):
        module.requires_grad_(False).eval()
    if device.type != "cuda" and device_memory is not None and device_memory < math.inf:
        raise AdtError("device_memory.no_gpu", size=f"{device_memory / 2**30:g}", device=device)
    count = _checked_count(target, device, device_memory, memory)
    for module in others:
        module.to_empty(device=device)
    if memory == DISK:
        move(target.decoder, device, spread(len(target.decoder.layers), count) if count else ())
        return
    place(target.decoder, device, count)
    stream = target.decoder.stream
    if stream is not None and not stream.pinned:
        _log.warning("%s", message("weights.pageable"))


def _checked_count(target: Target, device: torch.device, device_memory: float | None, memory: str) -> int:
    """Return how many layers must be streamed, after checking the memory."""
    limit = memory_limit()
    usable = usable_bytes(limit)
    if device.type == "cuda":
        count = needed_count(target, free_bytes(device, device_memory))
        if memory == RAM:
            check_main_memory(target.name, count * layer_bytes(target.decoder), usable)
        return count
    if device.type != "cpu":
        return 0
    if memory == DISK:
        return needed_count(target, usable, on_cpu=True)
    is_moved = device_memory == math.inf  # ComfyUI moves the weights to a GPU
    weights = device_bytes(target.decoder, 0) + companion_bytes(target)
    there = limit.bytes if is_moved else usable
    if weights > there:
        needed, most, total = (f"{size / 2**30:.1f} GiB" for size in (weights, there, limit.bytes))
        key = "memory.weights_too_large" if is_moved else "memory.weights_need_disk"
        raise AdtError(key, model=target.name, needed=needed, most=most, total=total, owner=limit.owner)
    return 0


def free_bytes(device: torch.device, limit: float | None = None) -> float:
    """Return the bytes that this process can still allocate on a GPU, at most `limit` in total; else infinity."""
    if device.type != "cuda" or limit == math.inf:
        return math.inf
    allocated = torch.cuda.memory_allocated(device)
    free = torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device) - allocated
    return free if limit is None else min(free, limit - allocated)


def needed_count(target: Target, memory: float, on_cpu: bool = False) -> int:
    """Return how many layers must be streamed to leave memory for the work on one image.

    Args:
        memory: Bytes of the device's memory for the weights and the work.

    Raises:
        AdtError: If the memory is too small even for two buffers and the weights outside the layers.
    """
    decoder = target.decoder
    work = image_bytes(target, on_cpu) + beside_bytes(target)
    count = streamed_count(decoder, memory - work)
    if count is None:
        needed, there = (f"{size / 2**30:.1f} GiB" for size in (least_bytes(decoder) + work, memory))
        raise AdtError("memory.device_too_small", model=target.name, needed=needed, there=there)
    return count


def image_bytes(target: Target, on_cpu: bool = False) -> int:
    """Return an estimate of the bytes of device memory for decoding one image, without weights.

    On a CPU, layers are read from files, so there is memory to convert one of them.
    """
    decoder = target.decoder
    pixels = target.grid[0] * target.grid[1] * target.downsample**2
    length = min(target.length + PROMPT_TOKENS, decoder.config.max_positions)
    cache = KVCache.num_bytes(decoder.config, 2, length, decoder.embedding.element_size())
    work = layer_bytes(decoder) if on_cpu else WORK_BYTES
    return work + cache + target.codec.working_bytes(pixels)


def companion_bytes(target: Target) -> int:
    """Return the bytes of codec and text encoder."""
    return sum(part.nbytes for module in _companions(target) for part in (*module.parameters(), *module.buffers()))


def _companions(target: Target) -> list[nn.Module]:
    return [module for module in (target.codec, target.text_encoder) if module is not None]


def beside_bytes(target: Target) -> int:
    """Return the bytes of the weights that run with a decoder: codec, text encoder and, as an estimate, a drafter."""
    return companion_bytes(target) + 2 * layer_bytes(target.decoder)
