"""Lock of an output folder, for results that only one process at a time may write."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from filelock import FileLock, Timeout

from ..errors import AdtError
from ..files import refuse_links, writing


class FolderLock:
    """Lock file in an output folder. The operating system releases the lock of a killed process."""

    def __init__(self, folder: Path, name: str):
        """Make the lock, without taking it. Processes with different results in one folder use different names."""
        self._folder = folder
        self._path = folder / name
        self._lock = FileLock(self._path)

    def take(self) -> None:
        """Take the lock. A process that already holds it may take it again.

        Raises:
            AdtError: If another process holds the lock, or the folder cannot be written.
        """
        with writing(self._path):
            refuse_links(self._path)
            self._folder.mkdir(parents=True, exist_ok=True)
            try:
                self._lock.acquire(timeout=0)
            except Timeout as error:
                raise AdtError("folder.locked", folder=self._folder) from error

    def release(self) -> None:
        """Delete the lock file and release the lock, however often it was taken.

        The file is deleted first: after the release, it could be the lock of another process.
        """
        with suppress(OSError):  # Windows doesn't delete an open file
            self._path.unlink()
        self._lock.release(force=True)

    def __enter__(self) -> FolderLock:
        self.take()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
