"""Requests to the Hugging Face Hub: the list of a repository's files, and the bytes of a file.

huggingface_hub provides the address, the token, and a session with the user's proxies and certificates. Its function
`hf_hub_download` is not used: it can't be cancelled before version 1.0 (no progress hook) or while a server is silent,
version 2.4 deletes what has arrived when it is cancelled, and all write more than the announced size. This module sends
one plain range request per file instead.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Generator, Mapping
from contextlib import closing, suppress
from pathlib import Path
from queue import Empty, Full, Queue
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

from ..errors import AdtError, Check, one_line, shown
from ..files import parse_json, read_text
from ..models.repositories import page_of

OFTEN = 0.1
"""Seconds between two calls of the cancellation callback."""
TIMEOUT = 10.0
"""Seconds without a byte after which a request fails."""
_LONGEST_WAIT = 60.0  # seconds to wait if the server asks for a pause
_LARGEST_LIST = 2**24  # bytes; the lists of published models have less than 1 % of this
_CHUNK = 2**17  # bytes per read; the bytes of an incomplete chunk are lost if the connection breaks
_QUEUED = 8  # chunks that wait to be written
_TRANSIENT = (408, 425, 429, 500, 502, 503, 504)


class Listed(NamedTuple):
    """File in the list of a repository, with its size in bytes.

    `digest` has 64 hexadecimal digits for the SHA-256 of the file, or 40 for the SHA-1 of the git blob.
    """

    path: str
    size: int
    digest: str


class FailedAttempt(Exception):
    """Failure that another attempt may avoid.

    Attributes:
        error: Error to raise after the last attempt.
        wait: Seconds that the server asks to wait before the next attempt.
        is_wrong: Whether the next attempt should start at the first byte.
    """

    def __init__(self, error: AdtError, wait: float = 0.0, is_wrong: bool = False):
        super().__init__(error)
        self.error = error
        self.wait = wait
        self.is_wrong = is_wrong


_MOST_FILES, _MOST_FOLDERS, _LONGEST_PATH = 10_000, 8, 300
"""Maximum number of files of a repository, of folders in a path, and of characters of a path."""


class UnknownCommit(AdtError):
    """Rejection because the repository does not have the requested commit."""


class _Head(NamedTuple):
    status: int
    headers: Mapping[str, str]
    urls: list[str]  # addresses of the redirects, and of the answer


def list_files(repository: str, commit: str, check: Check) -> tuple[str, list[Listed]]:
    """Request the commit hash and the files of a repository.

    Args:
        commit: Commit hash; "" for the newest commit.

    Raises:
        AdtError: If the server rejects the request, or sends no valid list.
        FailedAttempt: If another attempt may succeed.
    """
    url = f"{_address()}/api/models/{repository}/revision/{commit or 'main'}?blobs=true"
    _, *chunks = _limited(_request(url, {}, repository, repository, check), _LARGEST_LIST)
    try:
        info = parse_json(b"".join(chunks))
        if len(info["siblings"]) > _MOST_FILES:
            raise ValueError
        found = [_listed(entry) for entry in info["siblings"]]
        if not re.fullmatch("[0-9a-f]{40}", info["sha"]) or commit not in ("", info["sha"]):
            raise ValueError
    except (AttributeError, KeyError, TypeError, ValueError):
        raise AdtError("hub.no_list", endpoint=endpoint(), repository=repository) from None
    return info["sha"], found


def _listed(entry: dict[str, Any]) -> Listed:
    large = entry.get("lfs")
    size, digest = (large["size"], large["sha256"]) if large else (entry["size"], entry["blobId"])
    is_valid = type(size) is int and size >= 0 and re.fullmatch("[0-9a-f]{40}|[0-9a-f]{64}", digest)
    path = entry["rfilename"]
    if not is_valid or not isinstance(path, str) or len(path) > _LONGEST_PATH or path.count("/") > _MOST_FOLDERS:
        raise ValueError
    path.encode()  # raises a ValueError for half of a surrogate pair
    return Listed(path, size, digest)


def read_file(repository: str, commit: str, file: Listed, start: int, check: Check) -> Generator[Any, None, None]:
    """Request the bytes of a file from the position `start` on.

    Yields:
        At first the position of the first byte, which is 0 if the server always sends complete files. Then chunks of
        bytes. The file never gets more bytes than the list announces.

    Raises:
        AdtError: If the server rejects the request.
        FailedAttempt: If another attempt may succeed.
    """
    what = f"{file.path} of {repository}"
    url = f"{_address()}/{repository}/resolve/{commit}/{quote(file.path)}"
    answer = _request(url, {"Range": f"bytes={start}-"} if start else {}, what, repository, check)
    head = next(answer)
    length = head.headers.get("Content-Length", "")
    is_plain = head.headers.get("Content-Encoding", "identity") == "identity"
    ranges = [f"bytes {start}-{file.size - 1}/{size}" for size in (file.size, "*")]
    is_rest = head.status == 206 and head.headers.get("Content-Range") in ranges
    is_complete = head.status == 200 and length in ("", str(file.size))
    if not is_plain or not (is_rest or is_complete):
        problem = f"HTTP {head.status}, {length or 'unknown'} bytes, {file.size} expected"
        error = AdtError("hub.other_answer", endpoint=endpoint(), file=what, reason=problem)
        raise FailedAttempt(error, is_wrong=head.status in (206, 416))
    begins = start if is_rest else 0
    yield begins
    yield from _limited(answer, file.size - begins)


def _limited(chunks: Generator[Any, None, None], most: int) -> Generator[Any, None, None]:
    """Yield chunks up to a number of bytes, then close the connection."""
    for chunk in chunks:
        yield chunk[:most] if isinstance(chunk, bytes) else chunk
        most -= len(chunk) if isinstance(chunk, bytes) else 0
        if most <= 0:
            break
    chunks.close()


# ---- requests --------------------------------------------------------------------------------------------------------


def _request(url: str, headers: dict[str, str], what: str, repository: str, check: Check) -> Generator[Any, None, None]:
    """Send a request, and yield the head of the answer and then its content in chunks.

    A thread reads from the network, and the caller does everything else. So the caller can stop at any time, even while
    the server is silent. The thread then ends after the timeout at the latest.
    """
    from huggingface_hub import constants
    from huggingface_hub.utils import build_hf_headers

    if constants.HF_HUB_OFFLINE:
        raise AdtError("hub.offline", file=what)
    sent = {**build_hf_headers(), "Accept-Encoding": "identity", **headers}
    for item in _read_in_thread(_answer(url, sent), check):
        if isinstance(item, _Head):
            _refuse(item, what, repository, "authorization" in sent)
        elif isinstance(item, Exception):
            raise FailedAttempt(_connection_error(item, what)) from item
        yield item


def _answer(url: str, headers: dict[str, str]) -> Generator[Any, None, None]:
    """Yield the head of an answer, then its content in chunks, without decoding it."""
    from huggingface_hub.utils import get_session

    session: Any = get_session()
    is_httpx = callable(session.stream)  # from huggingface_hub 1.0 on; before, it is a session of requests
    if is_httpx:
        opened = session.stream("GET", url, headers=headers, timeout=TIMEOUT, follow_redirects=True)
    else:
        opened = session.get(url, headers=headers, timeout=TIMEOUT, stream=True)
    with opened as answer:
        yield _Head(answer.status_code, answer.headers, [str(one.url) for one in (*answer.history, answer)])
        yield from answer.iter_raw(_CHUNK) if is_httpx else answer.raw.stream(_CHUNK, decode_content=False)


def _read_in_thread(items: Generator[Any, None, None], check: Check) -> Generator[Any, None, None]:
    """Yield the items of a generator that runs in another thread. If it raises an exception, yield that too.

    At most `_QUEUED` items wait for the caller. The thread closes the generator at its end, or soon after the caller
    has closed this one.
    """
    queue: Queue[Any] = Queue(_QUEUED)
    is_stopped = threading.Event()

    def put(item: Any) -> bool:
        while not is_stopped.is_set():
            with suppress(Full):
                queue.put(item, timeout=OFTEN)
                return True
        return False

    def run() -> None:
        last = None
        try:
            with closing(items):
                all(map(put, items))  # until the caller has stopped
        except Exception as error:
            last = error
        put(last)
        put(None)

    threading.Thread(target=run, daemon=True).start()
    try:
        while True:
            check()
            with suppress(Empty):
                item = queue.get(timeout=OFTEN)
                if item is None:
                    return
                yield item
    finally:
        is_stopped.set()


# ---- answers that are errors -----------------------------------------------------------------------------------------


def _refuse(head: _Head, what: str, repository: str, has_token: bool) -> None:
    """Raise AdtError or FailedAttempt if an answer is an error or a web page."""
    status = head.status
    code = head.headers.get("X-Error-Code")
    pause = head.headers.get("Retry-After", "")
    wait = min(float(pause), 1e6) if pause.isdecimal() else 0.0
    if head.urls[0].startswith("https:") and any(url.startswith("http:") for url in head.urls):
        raise AdtError("hub.not_encrypted", endpoint=endpoint(), file=what)
    if status in _TRANSIENT and wait > _LONGEST_WAIT:
        raise AdtError("hub.limit", endpoint=endpoint(), file=what, minutes=f"{wait / 60:.0f}", status=status)
    if status in _TRANSIENT:
        raise FailedAttempt(AdtError("hub.busy", endpoint=endpoint(), status=status, file=what), wait)
    if code == "RevisionNotFound":
        raise UnknownCommit("hub.no_version", endpoint=endpoint(), file=what)
    if code == "GatedRepo":
        raise AdtError("hub.gated", file=what, page=page_of(repository))
    if status == 401 and has_token:
        raise _login_error(what)
    if status in (401, 403, 404):
        raise AdtError("hub.no_access", endpoint=endpoint(), file=what, status=status)
    if status >= 400 and status != 416:
        raise AdtError("hub.status", endpoint=endpoint(), status=status, file=what)
    if "text/html" in head.headers.get("Content-Type", ""):
        raise AdtError("hub.web_page", endpoint=endpoint(), file=what)


def _login_error(what: str) -> AdtError:
    """Return the error for a token that the server does not accept. It names where the token is stored."""
    from huggingface_hub import constants, get_token

    saved = Path(constants.HF_TOKEN_PATH)
    with suppress(OSError, UnicodeDecodeError):
        if read_text(saved, 1).strip() == get_token():
            return AdtError("hub.login_saved", endpoint=endpoint(), file=what, path=saved)
    return AdtError("hub.token", endpoint=endpoint(), file=what)


def _connection_error(cause: Exception, what: str) -> AdtError:
    """Return the error for an exception of the network. Tokens, passwords and signatures are removed."""
    problem = re.sub(r"hf_\w+|(?<=//)[^/@\s]+@|\?\S+", "", one_line(str(cause)))[:200] or type(cause).__name__
    return AdtError("hub.no_connection", endpoint=endpoint(), file=what, reason=problem)


def endpoint() -> str:
    """Return the address of the Hub without a password, for messages."""
    return _without_password(_address())


def _without_password(address: str) -> str:
    scheme, slashes, rest = address.partition("//")
    return scheme + slashes + rest.rpartition("@")[2]


def _address() -> str:
    """Return the address of the Hub. Raise AdtError if it is not an address."""
    from huggingface_hub import constants

    address = constants.ENDPOINT.rstrip("/")
    with suppress(ValueError):
        parts = urlsplit(address)
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
            return address
    raise AdtError("hub.no_address", value=shown(_without_password(address)))
