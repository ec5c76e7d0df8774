"""Where a command says what it has to say. What can't be said costs no picture."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, suppress
from typing import Any

from .errors import AdtError


class _Patient(io.TextIOBase):
    """A standard error that may be closed, full, or None, as Python has it where it was closed from the beginning."""

    encoding = "utf-8"  # type: ignore[assignment]

    def __init__(self, stream: Any):
        self._stream = stream
        self.encoding = getattr(stream, "encoding", None) or self.encoding

    def write(self, text: str) -> int:
        with suppress(AttributeError, OSError, ValueError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(AttributeError, OSError, ValueError):
            self._stream.flush()

    def isatty(self) -> bool:
        with suppress(AttributeError, OSError, ValueError):
            return self._stream.isatty()
        return False

    def fileno(self) -> int:
        return 2 if self._stream is None else self._stream.fileno()


def show_everything() -> None:
    """Spell out characters that the console's encoding lacks, such as an emoji under cp1252, instead of failing.

    Standard streams that can't be reconfigured, as in a notebook, stay as they are.
    """
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]


@contextmanager
def patient() -> Iterator[None]:
    """In the block, progress bars and messages may go to a standard error that can't be written.

    Where a standard file is closed, nothing is opened in its place. Else the next file, a picture maybe, would get its
    number, and libraries in C would write what they say into that.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free
    with redirect_stderr(_Patient(sys.stderr)):
        yield


def say(text: str) -> None:
    """Print what a command found. A reader that has had enough, such as ``head``, is no error."""
    try:
        print(text, flush=True)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python would try again while it exits
        if not isinstance(error, BrokenPipeError):
            problem = f"its output can't be written ({error.strerror})"
            raise AdtError(f"The command finished, but {problem}; redirect the output elsewhere.") from error
