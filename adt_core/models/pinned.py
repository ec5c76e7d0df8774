"""Page-locked ("pinned") main memory, from which a GPU copies while it computes."""

from __future__ import annotations

import logging
from collections.abc import Collection
from contextlib import suppress
from typing import Protocol

import torch
from torch import Tensor

PAGE = 4096  # bytes of a page of main memory; memory is pinned in complete pages
_log = logging.getLogger(__name__)


class Pinner(Protocol):
    """Pins and unpins memory that :func:`pages` has allocated."""

    def pin(self, memory: Tensor) -> bool:
        """Pin memory. Return False if the system refuses."""

    def unpin(self, memory: Tensor) -> None:
        """Make pinned memory pageable again."""


class CudaPinner:
    """Pinner that registers memory with CUDA. It is not allocated by torch, which rounds sizes up to powers of two."""

    def pin(self, memory: Tensor) -> bool:
        try:
            code = int(torch.cuda.cudart().cudaHostRegister(memory.data_ptr(), _complete_pages(memory.numel()), 0))
        except (RuntimeError, AttributeError, AssertionError) as error:
            _log.info("Main memory can't be pinned: %s", error)
            return False
        if code:
            _log.info("Main memory can't be pinned: CUDA error %s", code)
            _clear_error()
        return not code

    def unpin(self, memory: Tensor) -> None:
        with suppress(RuntimeError, AttributeError, AssertionError):
            if int(torch.cuda.cudart().cudaHostUnregister(memory.data_ptr())):
                _clear_error()


def pages(size: int) -> Tensor:
    """Return uninitialised main memory [size] uint8 that begins at a page and shares its pages with nothing else."""
    memory = torch.empty(_complete_pages(size) + PAGE, dtype=torch.uint8)
    first = -memory.data_ptr() % PAGE
    return memory[first : first + size]


def pin_all(pinner: Pinner, memories: Collection[Tensor], device: torch.device) -> bool:
    """Pin all memories. If the system refuses one of them, pin none and return False."""
    pinned: list[Tensor] = []
    for memory in memories:
        if not pinner.pin(memory):
            unpin_all(pinner, pinned, device)
            return False
        pinned.append(memory)
    return True


def unpin_all(pinner: Pinner, memories: Collection[Tensor], device: torch.device) -> None:
    """Make pinned memories pageable again, after all copies from them to a GPU."""
    with suppress(RuntimeError, AssertionError):
        torch.cuda.synchronize(device)
    for memory in memories:
        pinner.unpin(memory)


def _complete_pages(size: int) -> int:
    return -(-size // PAGE) * PAGE


def _clear_error() -> None:
    """Clear CUDA's last error, which the next launch would raise."""
    with suppress(RuntimeError, AssertionError):
        torch.zeros(1, device="cuda").add_(1)
