"""Limit of the CPU threads that torch uses."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def limit_threads(count: int) -> Iterator[None]:
    """Context manager that lets torch use at most `count` CPU threads. Afterwards the earlier number is set again."""
    before = torch.get_num_threads()
    if count >= before:
        yield
        return
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
