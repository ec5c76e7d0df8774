"""Fault injection at chosen moments of writing. It patches built-in functions, so the tested code is unchanged.

``python faults.py MOMENT NUMBER -m adt_core generate ...`` runs a command and kills it at the NUMBER-th moment of this
kind. Instead of ``-m MODULE``, the path of a script is also accepted.
"""

from __future__ import annotations

import builtins
import errno
import os
import runpy
import signal
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import NoReturn

MOMENTS = ("write", "rename", "renamed")
"""Kinds of moments of a kill: after half of a write, before a complete file is renamed to its final name, and directly
after it was renamed."""
WATCHED_SUFFIXES = (".part", ".jsonl")  # writes and renames of other files are no moments
CACHE_VARIABLE = "ADT_TREE_CACHE"  # files in this folder don't count: timing decides when they are written
Fault = Callable[[], NoReturn]


def kill() -> NoReturn:
    """Kill this process without any cleanup, like a power failure."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("SIGKILL did not end the process")


def full_disk() -> NoReturn:
    """Raise the error that a write to a full disk causes. This error has no file name."""
    raise OSError(errno.ENOSPC, "No space left on device")


class _FaultyFile:
    """File that writes half of the first write, and then calls the fault."""

    def __init__(self, file, fault: Fault):
        self._file = file
        self._fault = fault

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._file.close()

    def __getattr__(self, name: str):
        return getattr(self._file, name)

    def write(self, content: bytes) -> NoReturn:
        self._file.write(content[: len(content) // 2])
        self._file.flush()
        self._fault()


def fault_patch(moment: str, number: int, fault: Fault) -> tuple[object, str, Callable]:
    """Return arguments of ``setattr`` that inject a fault.

    Args:
        moment: One of ``MOMENTS``.
        number: Which moment of this kind has the fault, counted from 1.
        fault: Function to call; it must not return.
    """
    calls = count(1)
    original_open = open
    original_replace = os.replace

    def is_due(path: object) -> bool:
        is_cached = os.path.dirname(str(path)) == os.environ.get(CACHE_VARIABLE)
        return str(path).endswith(WATCHED_SUFFIXES) and not is_cached and next(calls) == number

    def faulty_open(path, mode: str = "r", *args, **kwargs):
        file = original_open(path, mode, *args, **kwargs)
        return _FaultyFile(file, fault) if mode in ("wb", "ab") and is_due(path) else file

    def faulty_replace(source, destination) -> None:
        due = is_due(source)
        if due and moment == "rename":
            fault()
        original_replace(source, destination)
        if due:
            fault()

    assert moment in MOMENTS
    return (builtins, "open", faulty_open) if moment == "write" else (os, "replace", faulty_replace)


def main() -> None:
    """Run the command in the arguments, with its fault."""
    moment, number, *command = sys.argv[1:]
    setattr(*fault_patch(moment, int(number), kill))
    is_module = command[0] == "-m"
    sys.argv = command[is_module:]
    sys.path[0] = os.getcwd() if is_module else str(Path(command[0]).parent)
    run = runpy.run_module if is_module else runpy.run_path
    run(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
