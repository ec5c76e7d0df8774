"""Faults at chosen moments of writing, from outside: the code that is tested knows nothing of them.

``python faults.py MOMENT NUMBER -m adt_core generate ...`` runs a command that is killed at its NUMBER-th such moment.
A script can stand in place of ``-m MODULE``.
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
"""Half a file or line is written; a whole file has not got its name yet; it has just got it."""
WATCHED = (".part", "runs.jsonl")
"""Ends of the names of files that count."""
CACHE = "ADT_TREE_CACHE"
"""Environment variable: the folder whose files do not count. Timing decides what is written there, and a command goes
on without it."""
Fault = Callable[[], NoReturn]


def kill() -> NoReturn:
    """End this process as a power cut would: nothing is tidied up."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("a killed process goes on")


def full_disk() -> NoReturn:
    """As the system says it where an open file is written: without a name."""
    raise OSError(errno.ENOSPC, "No space left on device")


class _Cut:
    """A file whose first write stops half-way with a fault."""

    def __init__(self, file, fault: Fault):
        self._file, self._fault = file, fault

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._file.close()

    def write(self, content: bytes) -> NoReturn:
        self._file.write(content[: len(content) // 2])
        self._file.flush()
        self._fault()


def at(moment: str, number: int, fault: Fault) -> tuple[object, str, Callable]:
    """What ``setattr`` needs, so that the ``number``-th such moment, counted from 1, meets a fault."""
    calls, open_as_usual, replace_as_usual = count(1), open, os.replace

    def is_due(path: object) -> bool:
        cached = os.path.dirname(str(path)) == os.environ.get(CACHE)
        return str(path).endswith(WATCHED) and not cached and next(calls) == number

    def open_cut(path, mode: str = "r", *args, **kwargs):
        file = open_as_usual(path, mode, *args, **kwargs)
        return _Cut(file, fault) if mode in ("wb", "ab") and is_due(path) else file

    def replace(source, destination) -> None:
        due = is_due(source)
        if due and moment == "rename":
            fault()
        replace_as_usual(source, destination)
        if due:
            fault()

    assert moment in MOMENTS
    return (builtins, "open", open_cut) if moment == "write" else (os, "replace", replace)


def main() -> None:
    """Run the command line's command with its fault."""
    moment, number, *command = sys.argv[1:]
    setattr(*at(moment, int(number), kill))
    is_module = command[0] == "-m"
    sys.argv = command[is_module:]
    sys.path[0] = os.getcwd() if is_module else str(Path(command[0]).parent)
    run = runpy.run_module if is_module else runpy.run_path
    run(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
