"""Answers of servers that misbehave, for the local Hub server of tests/hub.py. Each has a limit in bytes or seconds."""

from __future__ import annotations

import gzip
import json
import re
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler

MOST = 30_000_000  # maximum number of bytes that an endless answer sends
Answer = Callable[[BaseHTTPRequestHandler], None]


def plain(status: int, content: bytes = b"", **headers: str | None) -> Answer:
    """Return an answer with these headers. It has a Content-Length, too, unless this is given as None."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        for name, value in {"Content_Length": str(len(content)), **headers}.items():
            if value is not None:
                handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()
        handler.wfile.write(content)

    return answer


def in_turn(*answers: Answer) -> Answer:
    """Return an answer that gives one of the answers after another, and then the last one again and again."""
    left = list(answers)
    return lambda handler: (left.pop(0) if len(left) > 1 else left[0])(handler)


def without_ranges(content: bytes, cut: int | None = None) -> Answer:
    """Return an answer that always sends a file from its first byte, and breaks off after `cut` bytes."""
    return plain(200, content[:cut], Content_Length=str(len(content)))


def with_wrong_range(content: bytes) -> Answer:
    """Return an answer that sends a part of a file, but begins at another byte than the requested one."""
    size = len(content)
    return plain(206, content[7:], Content_Range=f"bytes 7-{size - 1}/{size}")


def by_range(content: bytes, cut: int | None = None) -> Answer:
    """Return an answer that obeys ranges, and breaks off after `cut` bytes."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        start = int((re.fullmatch(r"bytes=(\d+)-", handler.headers.get("Range", "")) or [0, 0])[1])
        size = len(content)
        if start >= size:
            plain(416, Content_Range=f"bytes */{size}")(handler)
        else:
            status, headers = (206, {"Content_Range": f"bytes {start}-{size - 1}/{size}"}) if start else (200, {})
            plain(status, content[start:][:cut], Content_Length=str(size - start), **headers)(handler)

    return answer


def endless(**headers: str) -> Answer:
    """Return an answer without a length that sends zeros until the client closes the connection."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()
        block = gzip.compress(bytes(2**24)) if headers else bytes(2**16)
        for _ in range(MOST // len(block)):
            handler.wfile.write(block)

    return answer


def silent(heard: threading.Event, until: threading.Event) -> Answer:
    """Return an answer that never comes. It sets `heard`, and waits until the other event is set, at most 30 s."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        heard.set()
        until.wait(30)

    return answer


def page(status: int = 200) -> Answer:
    """Return the page on which a network asks for a login."""
    return plain(status, b"<!doctype html><title>Log in</title>", Content_Type="text/html; charset=utf-8")


def listing(**info: object) -> Answer:
    """Return an answer with these fields instead of a list of files."""
    return plain(200, json.dumps(info).encode(), Content_Type="application/json")
