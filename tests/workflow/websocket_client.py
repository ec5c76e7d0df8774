"""The receiving half of a WebSocket (RFC 6455), enough to listen to ComfyUI without another dependency."""

from __future__ import annotations

import base64
import json
import os
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Message:
    """One message: JSON (``type`` a name, ``data`` a dict) or binary (``type`` ComfyUI's event number, ``data`` bytes).

    at: when it arrived."""

    at: float
    type: str | int
    data: dict | bytes


PREVIEWS, TEXT = (1, 4), 3
"""ComfyUI's numbers for a preview, and for a line of text under a node."""


def lines_under(messages: list[Message], node: str) -> list[str]:
    """The lines of text that were shown under a node; before each come the length of the node's id and the id."""
    begins = len(node).to_bytes(4, "big") + node.encode()
    said = (message.data for message in messages if message.type == TEXT)
    return [line.removeprefix(begins).decode() for line in said if line.startswith(begins)]


class WebSocket:
    """Listens in a thread and keeps every message with the ``time.monotonic()`` of its arrival."""

    def __init__(self, address: str, path: str, client: str):
        self.id, self.messages = client, []
        self._news = threading.Condition()
        host, port = address.split(":")
        self._socket = socket.create_connection((host, int(port)), timeout=60)
        key = base64.b64encode(os.urandom(16)).decode()
        self._socket.sendall(
            f"GET {path} HTTP/1.1\r\nHost: {address}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        self._stream = self._socket.makefile("rb")
        status = self._stream.readline()
        assert b" 101 " in status, status
        while self._stream.readline().strip():
            pass
        self._socket.settimeout(None)
        threading.Thread(target=self._listen, daemon=True).start()

    def __enter__(self) -> WebSocket:
        return self

    def __exit__(self, *_) -> None:
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self._socket.close()

    def wait_for(self, wanted: Callable[[Message], bool], timeout: float = 120) -> Message:
        """The first message, past or to come, for which ``wanted`` is true."""
        deadline, seen = time.monotonic() + timeout, 0
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
        parts, kind = [], 0
        try:
            while True:
                first, second = self._stream.read(2)
                length = second & 0x7F
                if length >= 126:
                    length = int.from_bytes(self._stream.read(2 if length == 126 else 8), "big")
                body, code = self._stream.read(length), first & 0x0F
                if code == 8:
                    return
                if code == 9:  # answer a ping; what a client sends is masked, here with zeros
                    self._socket.sendall(bytes([0x8A, 0x80 | len(body)]) + bytes(4) + body)
                if code > 8:
                    continue
                kind = code or kind
                parts.append(body)
                if first & 0x80:
                    self._keep(kind, b"".join(parts))
                    parts = []
        except (OSError, ValueError):
            return

    def _keep(self, kind: int, body: bytes) -> None:
        if kind == 1:
            decoded = json.loads(body)
            message = Message(time.monotonic(), decoded["type"], decoded["data"])
        else:
            message = Message(time.monotonic(), struct.unpack(">I", body[:4])[0], body[4:])
        with self._news:
            self.messages.append(message)
            self._news.notify_all()
