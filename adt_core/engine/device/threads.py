"""CPU threads of the engine's own work, set for a while and set back."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def at_most(count: int) -> Iterator[None]:
    """Let torch use so many CPU threads at most within the block."""
    before = torch.get_num_threads()
    if count >= before:
        yield
        return
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
