"""Messages that ComfyUI sends to a browser, collected by a WebSocket client (websocket-client, from PyPI)."""

from __future__ import annotations

import json
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import websocket


@dataclass(frozen=True)
class Message:
    """One message.

    Attributes:
        at: ``time.monotonic()`` of its arrival.
        type: ComfyUI's name of a JSON message, or its number of a binary one.
        data: The content: a dict of a JSON message, the bytes after the number of a binary one.
    """

    at: float
    type: str | int
    data: dict | bytes


PREVIEWS = (1, 4)
"""ComfyUI's numbers for previews in messages."""
TEXT = 3
"""ComfyUI's number for a line of text under a node."""


def lines_under(messages: list[Message], node: str) -> list[str]:
    """Return the lines of text shown under a node. Each message starts with the length of the node's id and the id."""
    begins = len(node).to_bytes(4, "big") + node.encode()
    contents = (message.data for message in messages if message.type == TEXT)
    return [line.removeprefix(begins).decode() for line in contents if line.startswith(begins)]


class Listener:
    """A connected client that keeps every message; a thread receives them.

    Args:
        url: Address of ComfyUI's WebSocket, with the client's id.
        client: The same id, to pass along when a prompt is queued.
    """

    def __init__(self, url: str, client: str):
        self.id = client
        self.messages: list[Message] = []
        self._news = threading.Condition()
        self._socket = websocket.create_connection(url, timeout=60)
        self._socket.settimeout(None)
        threading.Thread(target=self._listen, daemon=True).start()

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *_) -> None:
        self._socket.abort()  # wakes the thread
        self._socket.shutdown()

    def wait_for(self, wanted: Callable[[Message], bool], timeout: float = 120) -> Message:
        """Return the first message, past or future, for which ``wanted`` is true."""
        deadline = time.monotonic() + timeout
        seen = 0
        with self._news:
            while True:
                for message in self.messages[seen:]:
                    if wanted(message):
                        return message
                seen = len(self.messages)
                left = deadline - time.monotonic()
                assert left > 0, f"no such message in {timeout} s; there were {[m.type for m in self.messages][-40:]}"
                self._news.wait(left)

    def _listen(self) -> None:
        try:
            while True:
                kind, body = self._socket.recv_data()
                if kind == websocket.ABNF.OPCODE_TEXT:
                    decoded = json.loads(body)
                    self._keep(Message(time.monotonic(), decoded["type"], decoded["data"]))
                elif kind == websocket.ABNF.OPCODE_BINARY:
                    self._keep(Message(time.monotonic(), struct.unpack(">I", body[:4])[0], body[4:]))
                else:
                    return
        except (OSError, websocket.WebSocketException):  # closed, by either side
            return

    def _keep(self, message: Message) -> None:
        with self._news:
            self.messages.append(message)
            self._news.notify_all()
