"""Number of CPU threads that torch uses."""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import psutil
import torch

from ...runtime import get_runtime

MAX_THREADS = 4
"""Maximum number of threads of a small model. More threads wait for each other longer than they save."""
SAMPLE_SECONDS = 0.05
"""Minimum time over which the use of the CPU is measured. Systems count it in steps of 10 ms or 16 ms."""
LOOK_SECONDS = 0.2
"""Minimum time between two choices of the number of threads in a decoding. A choice takes 0.1 ms."""
CALM_LOOKS = 3
"""Number of successive looks with more idle cores after which a decoding uses more threads."""
NEEDED = 0.8
"""Share of a core that must be available for a thread. All threads wait for a thread that shares its core."""
RECENT_SECONDS = 1.0
"""Maximum time over which the use of the CPU is measured. After a longer break, other programs may have started."""


class CpuSample(NamedTuple):
    """Use of the CPU since the system started.

    Attributes:
        at: Time in seconds.
        available: Seconds in which cores were idle or worked for this process, summed over all cores.
    """

    at: float
    available: float


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


def use_one_thread_after_fork() -> None:
    """Let torch use one CPU thread in a forked process, because the other threads of OpenMP do not survive a fork.

    torch would wait for them without end. Programs should start processes with the method "spawn".
    """
    runtime = get_runtime()
    if os.getpid() != runtime.process:
        runtime.process = os.getpid()
        if torch.get_num_threads() > 1:
            torch.set_num_threads(1)
            logging.getLogger(__name__).warning(
                "This process was forked after its parent had used PyTorch, so it uses one CPU thread; start processes "
                "with the method 'spawn' to use more."
            )


class ThreadChoice:
    """Choice of the number of threads of a decoding: one for each core that other processes leave idle.

    The bits of all results must be the same for these numbers (:mod:`.products`). Otherwise the image of a seed would
    depend on other processes.

    Attributes:
        first: Number of threads of the first round.
        count: Current number of threads.
    """

    def __init__(self, least: int, most: int):
        """Choose the first number, between `least` and `most`."""
        self._least = least
        self._most = most
        self.first = least if most <= least else self._idle_cores()
        self.count = self.first
        self._looked = time.monotonic()
        self._calm_looks = 0

    def update(self) -> None:
        """Choose again, at most every `LOOK_SECONDS`. Call this method between rounds.

        If other processes have started, the number falls at once, because a round can take many times as long while a
        thread waits for its core. It rises only after several looks, because many programs pause for a moment.
        """
        if self._most <= self._least or time.monotonic() - self._looked < LOOK_SECONDS:
            return
        idle = self._idle_cores()
        self._looked = time.monotonic()
        self._calm_looks = self._calm_looks + 1 if idle > self.count else 0
        if idle < self.count or self._calm_looks == CALM_LOOKS:
            self.count = idle
            self._calm_looks = 0

    def _idle_cores(self) -> int:
        return min(max(math.floor(available_cores() + 1 - NEEDED), self._least), self._most)


def available_cores() -> float:
    """Return the number of physical cores that other processes do not use.

    The use is measured since the last call. For the first call, and after a break of `RECENT_SECONDS`, it is measured
    for `SAMPLE_SECONDS`. Two threads of a core count as two busy cores, because they slow each other down.
    """
    runtime = get_runtime()
    before = runtime.cpu_sample
    now = _sample()
    if before is None or now.at - before.at > RECENT_SECONDS:
        before = now
    if now.at - before.at < SAMPLE_SECONDS:
        time.sleep(SAMPLE_SECONDS)
        now = _sample()
    runtime.cpu_sample = now
    logical, physical = _cores()
    if now.at == before.at:
        return physical
    used = logical - (now.available - before.available) / (now.at - before.at)
    return physical - used


def _cores() -> tuple[int, int]:
    """Return the numbers of logical and of physical cores."""
    try:
        logical = psutil.cpu_count() or 1
        return logical, psutil.cpu_count(logical=False) or logical
    except (OSError, NotImplementedError):  # the files of the system can't be read
        logical = os.cpu_count() or 1
        return logical, logical


def _sample() -> CpuSample:
    """Return the use of the CPU. If the system does not tell it, as in Termux, all cores count as idle."""
    try:
        system = psutil.cpu_times()
        own = psutil.Process().cpu_times()
    except (OSError, psutil.Error, NotImplementedError):
        now = time.monotonic()
        return CpuSample(now, now * _cores()[0])
    waiting = getattr(system, "iowait", 0.0)  # only on Linux
    return CpuSample(time.monotonic(), system.idle + waiting + own.user + own.system)
