"""Watches what an input leads to: files outside the folder, the network, processes, code out of pickles, and time."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LONGEST = 10.0
"""Seconds after which an input counts as one that hangs."""
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CHANGES = {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.truncate", "os.chmod"}
_NEVER = {"socket.connect", "subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "pickle.find_class"}
_USUAL = "('127.0.0.1', ", "('git', ['git', '-C',", "('uname', ['uname', '-p']"
"""The server of the nodes; and a benchmark notes by which commit and on which machine it was made."""
_HARMLESS = ("/dev/null", "/dev/shm", "/proc")
_OURS = f"{os.sep}.hypothesis"  # what hypothesis remembers


class Hung(BaseException):
    """An input took longer than LONGEST. No Exception, so that no code under test takes it for one of its own."""


class Watch:
    """Notes in ``seen`` what is done outside of ``folder`` while it is on. Python tells of it through audit events.

    What libraries do in other languages goes unseen: they only read here, what they are given. Python itself writes the
    bytecode of a module at its first import; while the watch is on it does not, so nobody takes that for an input's.
    """

    def __init__(self, folder: Path):
        self.folder, self.seen, self._on = os.path.realpath(folder), set[str](), False
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple) -> None:
        if not self._on or threading.current_thread() is not threading.main_thread():
            return
        if event in _NEVER and not any(usual in str(arguments) for usual in _USUAL):
            self.seen.add(f"{event} {arguments}")
        elif event == "open":
            path, _, flags = arguments
            if isinstance(flags, int) and flags & _WRITING:
                self._check(event, path)
        elif event in _CHANGES:
            for path in arguments[: 2 if event in ("os.rename", "os.link") else 1]:
                self._check(event, path)

    def _check(self, event: str, path: object) -> None:
        if not isinstance(path, str | bytes | os.PathLike):
            return
        place = os.path.realpath(os.fsdecode(path))
        if not f"{place}{os.sep}".startswith((self.folder + os.sep, *_HARMLESS)) and _OURS not in place:
            self.seen.add(f"{event} {place}")

    @contextmanager
    def on(self) -> Iterator[None]:
        """Watch, and raise Hung if it takes too long."""
        signal.signal(signal.SIGALRM, _hang)
        signal.setitimer(signal.ITIMER_REAL, LONGEST)
        bytecode, sys.dont_write_bytecode = sys.dont_write_bytecode, True
        self._on = True
        try:
            yield
        finally:
            self._on, sys.dont_write_bytecode = False, bytecode
            signal.setitimer(signal.ITIMER_REAL, 0)


def _hang(*_) -> None:
    raise Hung
