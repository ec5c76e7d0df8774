"""Local server that imitates the Hugging Face Hub. It answers only the requests that a download needs.

The server redirects requests for large files to another path, as the real Hub redirects to its storage. The attributes
of :class:`Hub` simulate network failures.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LARGE = 4096
"""Minimum size in bytes of a large ("LFS") file. The server redirects large files and publishes their SHA-256 hash."""


def blob_id(content: bytes) -> str:
    """Return the git blob id (a SHA-1 hash) of a file."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def content_of(folder: Path) -> dict[str, bytes]:
    """Return the content of each file below a folder. Keys are paths relative to the folder."""
    return {f.relative_to(folder).as_posix(): f.read_bytes() for f in sorted(folder.rglob("*")) if f.is_file()}


class Hub:
    """Server of repositories. Paths and numbers of bytes are those of files."""

    def __init__(self) -> None:
        self.repositories: dict[str, dict[str, bytes]] = {}  # "owner/name" -> path -> content
        self.private: set[str] = set()  # repositories that need a token
        self.gated: set[str] = set()  # repositories that need a token, and whose terms the user must accept
        self.token = "hf_secret"
        self.cut: dict[str, int] = {}  # path -> number of bytes after which the connection breaks
        self.cuts: Counter[str] = Counter()  # path -> number of further downloads whose connection breaks
        self.damaged: set[str] = set()  # paths whose content does not match the published hash
        self.rate: float | None = None  # maximum bytes per second of each connection; None means no limit
        self.stalled: threading.Event | None = None  # large files stop after half of their bytes until it is set
        self.requests: list[tuple[str, str]] = []  # (method, path) of every request
        self.sent: Counter[str] = Counter()  # path -> number of content bytes that the server has sent
        self.starts: dict[str, int] = {}  # path -> first byte that the latest request asked for
        self.now = 0  # number of large files that are being sent
        self.commit = COMMIT  # of the repositories that are not in `commits`
        self.commits: dict[str, str] = {}  # repository -> its only commit
        self.odd: dict[str, Callable[[BaseHTTPRequestHandler], None]] = {}  # end of a URL path -> tests/odd_answers.py
        self.lock = threading.Lock()

    def __enter__(self) -> Hub:
        hub = self

        class Handler(_Handler):
            owner = hub

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_) -> None:
        if self.stalled:
            self.stalled.set()
        self.server.shutdown()
        self.server.server_close()

    @property
    def address(self) -> str:
        """URL of the server, for the environment variable ``HF_ENDPOINT``."""
        return f"http://127.0.0.1:{self.server.server_port}"

    def fetched(self) -> list[str]:
        """Return the URL paths of the files whose content was requested."""
        return sorted({path for method, path in self.requests if method == "GET" and "/resolve/" in path})


class _Handler(BaseHTTPRequestHandler):
    owner: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.owner.requests.append((self.command, path))
        odd = next((answer for end, answer in self.owner.odd.items() if path.endswith(end)), None)
        if odd:
            self.close_connection = True
            with suppress(OSError):  # the client has closed the connection
                odd(self)
        elif match := re.fullmatch(r"/api/models/([^/]+/[^/]+?)(/revision/.*)?", path):
            self._info(match[1], (match[2] or "").removeprefix("/revision/"))
        elif match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/[^/]+/(.*)", path):
            self._file(match[1], match[2])
        elif match := re.fullmatch(r"/storage/([^/]+/[^/]+)/(.*)", path):
            self._content(match[1], match[2])
        else:
            self._answer(404)

    def _answer(self, status: int, content: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def _refused(self, repository: str) -> bool:
        """Return whether the request may not read the repository. If so, send the error to the client."""
        hub = self.owner
        authorized = self.headers.get("Authorization") == f"Bearer {hub.token}"
        if repository in hub.gated and not authorized:
            self._answer(403, X_Error_Code="GatedRepo", X_Error_Message="accept the terms")
        elif repository in hub.private and not authorized:
            self._answer(401, X_Error_Code="RepoNotFound")
        elif repository not in hub.repositories:
            self._answer(404, X_Error_Code="RepoNotFound")
        else:
            return False
        return True

    def _info(self, repository: str, revision: str) -> None:
        if self._refused(repository):
            return
        commit = self.owner.commits.get(repository, self.owner.commit)
        if revision not in ("", "main", commit):
            return self._answer(404, X_Error_Code="RevisionNotFound")
        siblings = []
        for name, content in self.owner.repositories[repository].items():
            one = {"rfilename": name, "size": len(content), "blobId": blob_id(content)}
            if len(content) >= LARGE:
                one["lfs"] = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 130}
            siblings.append(one)
        info = {"id": repository, "modelId": repository, "sha": commit, "siblings": siblings, "tags": []}
        self._answer(200, json.dumps(info).encode(), Content_Type="application/json")

    def _file(self, repository: str, name: str) -> None:
        if self._refused(repository):
            return
        content = self.owner.repositories[repository].get(name)
        if content is None:
            self._answer(404, X_Error_Code="EntryNotFound")
        elif len(content) >= LARGE:
            self._answer(302, Location=f"{self.owner.address}/storage/{repository}/{name}", X_Repo_Commit=COMMIT)
        else:
            self._content(repository, name)

    def _content(self, repository: str, name: str) -> None:
        hub = self.owner
        content = self.owner.repositories[repository][name]
        if name in hub.damaged:
            content = bytes([content[0] ^ 1]) + content[1:]
        start = int((re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", "")) or [0, 0])[1])
        rest = content[start:]
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(rest)))
        self.send_header("X-Repo-Commit", COMMIT)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.end_headers()
        if self.command == "GET":
            hub.starts[name] = start
            with hub.lock:
                hub.now += len(content) >= LARGE
            try:
                self._send(name, rest)
            except OSError:  # the client has closed the connection
                self.close_connection = True
            with hub.lock:
                hub.now -= len(content) >= LARGE

    def _send(self, name: str, content: bytes) -> None:
        hub = self.owner
        breaks = hub.cuts[name] > 0
        if breaks:
            hub.cuts[name] -= 1
            content = content[: hub.cut[name]]
        step = len(content) if hub.rate is None and hub.stalled is None else 2**14
        for place in range(0, len(content), max(step, 1)):
            part = content[place : place + step]
            self.wfile.write(part)
            hub.sent[name] += len(part)
            if hub.rate is not None:
                time.sleep(len(part) / hub.rate)
            if hub.stalled is not None and len(content) >= LARGE and place >= len(content) / 2:
                hub.stalled.wait()
        if breaks:
            self.close_connection = True
