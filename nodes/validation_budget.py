"""Limit on the time that the validation of one queued prompt takes in the nodes of this pack.

ComfyUI validates a prompt in the thread of the server, which answers no other request in the meantime. A prompt may
have any number of nodes that read a file.
"""

import time
from collections.abc import Callable, Hashable

from ..adt_core import AdtError


class Budget:
    """Verdicts on files, for which the validation of a prompt may take a limited time.

    Args:
        seconds: Time per prompt. Files for which no time is left are checked when their node runs.
    """

    _MOST = 256  # verdicts that are kept

    def __init__(self, seconds: float):
        self._seconds = seconds
        self._left = seconds
        self._verdicts: dict[Hashable, AdtError | None] = {}

    def renew(self, request: dict) -> dict:
        """Give a new prompt the complete time. ComfyUI calls this handler before the validation of every prompt.

        Args:
            request: Body of `POST /prompt`.

        Returns:
            The request, unchanged.
        """
        self._left = self._seconds
        return request

    def verdict(self, key: Hashable, check: Callable[[], AdtError | None]) -> AdtError | None:
        """Return the result of a check, or None if no time is left for it.

        Args:
            key: Value that the result depends on, such as a file with its size and time.
            check: Function that returns an error, or None.
        """
        if key not in self._verdicts and self._left > 0:
            began = time.monotonic()
            if len(self._verdicts) >= self._MOST:
                self._verdicts.clear()
            self._verdicts[key] = check()
            self._left -= time.monotonic() - began
        return self._verdicts.get(key)
