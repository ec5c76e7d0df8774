"""Output to the terminal that does not fail, so that no finished result is lost, and that obeys no foreign text.

Output can fail because the terminal is closed, or the output is a broken pipe, or its encoding lacks some characters.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, suppress
from typing import Any

from .errors import AdtError, escape_controls

_MOVE_UP = "\x1b[A"
"""Control sequence that progress bars write, as a separate string, to get to the bar above."""


class _TolerantStream(io.TextIOBase):
    """Wrapper of standard error that ignores failed writes, and escapes control characters.

    The wrapped stream may be closed, on a full disk, or None. Progress bars may return to the start of the line.
    """

    encoding = "utf-8"  # type: ignore[assignment]

    def __init__(self, stream: Any):
        self._stream = stream
        self.encoding = getattr(stream, "encoding", None) or self.encoding

    def write(self, text: str) -> int:
        start = "\r" if text.startswith("\r") else ""
        is_move = not text.replace(_MOVE_UP, "").strip("\r\n")
        with suppress(AttributeError, OSError, ValueError):
            self._stream.write(text if is_move else start + escape_controls(text.removeprefix(start)))
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


def escape_unencodable() -> None:
    """Let the standard streams escape characters that they cannot encode, such as emoji in cp1252.

    Streams that cannot be reconfigured, as in a notebook, are not changed.
    """
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]


@contextmanager
def tolerant_stderr() -> Iterator[None]:
    """Ignore failed writes to standard error in the block.

    If a standard stream is closed, the null device is opened for its file descriptor (0, 1 or 2). Otherwise the next
    opened file, perhaps an image, would get this descriptor, and C libraries would write their messages into the file.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free descriptor
    with redirect_stderr(_TolerantStream(sys.stderr)):
        yield


def print_result(text: str) -> None:
    """Print the result of a command, with control characters escaped. A closed pipe, as with `head`, is not an error.

    Raises:
        AdtError: If the text cannot be written.
    """
    try:
        print(escape_controls(text), flush=True)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python fails again when it exits
        if not isinstance(error, BrokenPipeError):
            raise AdtError("output.closed", reason=error.strerror) from error
