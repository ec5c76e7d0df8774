"""WebSocket client that collects the messages that ComfyUI sends to a browser. It uses websocket-client from PyPI."""

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
    """Message from ComfyUI.

    Attributes:
        at: Time of arrival, from ``time.monotonic()``.
        type: Name of a JSON message, or number of a binary message.
        data: Content of the message: a dict for JSON, or the bytes after the number for a binary message.
    """

    at: float
    type: str | int
    data: dict | bytes


PREVIEWS = (1, 4)  # numbers of binary messages that contain a preview
TEXT = 3  # number of binary messages that contain a line of text for display under a node


def lines_under(messages: list[Message], node: str) -> list[str]:
    """Return the lines of text that are shown under a node.

    Each message starts with the length of the node's id, followed by the id and the text.
    """
    begins = len(node).to_bytes(4, "big") + node.encode()
    contents = (message.data for message in messages if message.type == TEXT)
    return [line.removeprefix(begins).decode() for line in contents if line.startswith(begins)]


class Listener:
    """Connected client that stores every message. A background thread receives the messages.

    Args:
        client: Id of the client. Requests that queue a prompt need the same id.
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
        self._socket.abort()  # ends the receiving thread
        self._socket.shutdown()

    def wait_for(self, wanted: Callable[[Message], bool], timeout: float = 120) -> Message:
        """Return the first message for which ``wanted`` is true. Wait for new messages if no stored one matches."""
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
        except (OSError, websocket.WebSocketException):  # the client or the server has closed the connection
            return

    def _keep(self, message: Message) -> None:
        with self._news:
            self.messages.append(message)
            self._news.notify_all()
