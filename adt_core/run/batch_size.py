"""Default number of images that are decoded at the same time, for a list of prompts."""

from __future__ import annotations

from collections.abc import Sequence

import psutil

from ..engine.device.memory import cpu_memory_shortage, required_bytes
from ..errors import AdtError
from ..memory_limit import MEMORY_SHARE, memory_limit
from ..models.allocation import free_bytes
from .runner import Runner

CPU_BATCH_SIZE = 8
"""Largest default on a CPU. docs/performance.md has the measured images per minute."""
GPU_BATCH_SIZE = 32
"""Largest default on a GPU."""


def default_batch_size(
    pipeline: Runner, prompts: Sequence[str], processes: int = 1, device_memory: float | None = None
) -> int:
    """Return the largest power of two that fits into the free memory, up to the largest default of the device.

    Args:
        prompts: Prompts of the list. The longest one that the model can read determines the memory per image.
        processes: Number of processes that share the memory.
        device_memory: Bytes of a GPU's memory that this process may use (default: the free memory).
    """
    prompt = _longest(pipeline, prompts)
    device = pipeline.target.decoder.embedding.device
    is_cpu = device.type == "cpu"
    free = MEMORY_SHARE * (_available_bytes() / processes if is_cpu else free_bytes(device, device_memory))
    size = CPU_BATCH_SIZE if is_cpu else GPU_BATCH_SIZE
    while size > 1 and prompt is not None:
        request = pipeline.decoding([prompt] * (2 * size)).request
        if required_bytes(request, size) <= free and not cpu_memory_shortage(request, size):
            break
        size //= 2
    return size


def _available_bytes() -> float:
    """Return the free main memory. In some containers it can't be read; then only the limit of the process counts."""
    try:
        return psutil.virtual_memory().available
    except (OSError, RuntimeError):
        return memory_limit().bytes


def _longest(pipeline: Runner, prompts: Sequence[str]) -> str | None:
    """Return the longest of the first prompts that the model can read, or None."""
    for prompt in sorted(prompts[:1000], key=len, reverse=True):
        try:
            pipeline.check_prompt(prompt)
        except AdtError:
            continue
        return prompt
    return None
