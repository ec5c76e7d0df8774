"""Report timeouts and forbidden actions: writing outside a given folder, network, processes, code in pickles."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TIMEOUT = 10.0  # seconds after which an input counts as hung
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CHANGES = {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.truncate", "os.chmod"}
_NEVER = {"socket.connect", "subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "pickle.find_class"}
_EXPECTED = ("('127.0.0.1', ", "('git', ['git', '-C',", "('uname', ['uname', '-p']")
"""Permitted actions: connecting to the local ComfyUI server, and the commands with which a benchmark records its commit
and machine."""
_HARMLESS = ("/dev/null", "/dev/shm", "/proc")
_HYPOTHESIS = f"{os.sep}.hypothesis"  # database of hypothesis


class Hung(BaseException):
    """Timeout of an input. It isn't a subclass of Exception, so that tested code doesn't catch it."""


class Watch:
    """Recorder of forbidden actions. It uses Python's audit events.

    Native code of libraries causes no audit events, but the native code in these tests only reads its input. While the
    watch is on, Python writes no bytecode files. Otherwise, the first import of a module would be reported.
    """

    def __init__(self, folder: Path):
        self.folder = os.path.realpath(folder)  # writing is permitted in it
        self.violations: set[str] = set()  # forbidden actions so far
        self._is_on = False
        sys.addaudithook(self._audit)

    def _audit(self, event: str, arguments: tuple) -> None:
        if not self._is_on or threading.current_thread() is not threading.main_thread():
            return
        if event in _NEVER and not any(expected in str(arguments) for expected in _EXPECTED):
            self.violations.add(f"{event} {arguments}")
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
        target = os.path.realpath(os.fsdecode(path))
        if not f"{target}{os.sep}".startswith((self.folder + os.sep, *_HARMLESS)) and _HYPOTHESIS not in target:
            self.violations.add(f"{event} {target}")

    @contextmanager
    def on(self) -> Iterator[None]:
        """Watch a block of code; raise Hung after the timeout."""
        signal.signal(signal.SIGALRM, _hang)
        signal.setitimer(signal.ITIMER_REAL, TIMEOUT)
        bytecode = sys.dont_write_bytecode
        sys.dont_write_bytecode = True
        self._is_on = True
        try:
            yield
        finally:
            self._is_on = False
            sys.dont_write_bytecode = bytecode
            signal.setitimer(signal.ITIMER_REAL, 0)


def _hang(*_) -> None:
    raise Hung
