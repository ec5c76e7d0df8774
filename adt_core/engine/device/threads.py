"""Limit of the CPU threads that torch uses."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def limit_threads(count: int) -> Iterator[None]:
    """Let torch use at most `count` CPU threads inside a `with` block. After the block, restore the earlier number."""
    before = torch.get_num_threads()
    if count >= before:
        yield
        return
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
