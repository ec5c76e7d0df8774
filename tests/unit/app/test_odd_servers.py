"""Tests of downloads from servers that misbehave, and of the messages about them; see tests/odd_answers.py."""

import gzip
import os
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub.utils
import pytest
from huggingface_hub import constants

from adt_core import AdtError
from adt_core.app import hub as requests
from tests.hub import COMMIT
from tests.odd_answers import (
    MOST,
    by_range,
    endless,
    in_turn,
    listing,
    page,
    plain,
    silent,
    with_wrong_range,
    without_ranges,
)
from tests.raising import raises_key
from tests.small_download import COMPLETE, MODEL, WEIGHTS, state

ROOT = Path(__file__).resolve().parents[3]
FILE = "/resolve/" + COMMIT + "/model.safetensors"
LIST = "/api/models/someone/model/revision/main"
SIZE = len(WEIGHTS)


def written(downloads) -> int:
    """Return the number of bytes in all files of the folder, complete or not."""
    return sum(path.stat().st_size for path in downloads.home.rglob("*") if path.is_file())


def count(hub, end: str) -> int:
    """Return how many requests the server got for a path with this end."""
    return sum(path.endswith(end) for _, path in hub.requests)


# ---- files -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "answers",
    [
        [without_ranges(WEIGHTS, 400_000), without_ranges(WEIGHTS)],
        [by_range(WEIGHTS, 400_000), with_wrong_range(WEIGHTS), by_range(WEIGHTS)],
        [by_range(WEIGHTS[::-1]), by_range(WEIGHTS)],
        [by_range(WEIGHTS, 400_000), by_range(WEIGHTS, 400_000), by_range(WEIGHTS)],
        [by_range(WEIGHTS, 400_000), plain(416), by_range(WEIGHTS)],
        [plain(200, gzip.compress(WEIGHTS), Content_Encoding="gzip"), by_range(WEIGHTS)],
    ],
    ids=["ignores ranges", "wrong range", "damaged", "breaks off", "416", "compressed"],
)
def test_files_arrive_after_odd_answers(hub, downloads, answers):
    hub.odd = {FILE: in_turn(*answers)}
    reports = downloads.get()
    assert downloads.files() == COMPLETE and count(hub, FILE) == len(answers)
    assert [state(report) for report in reports].count("retrying") == len(answers) - 1


@pytest.mark.parametrize(
    "answer, key",
    [
        (without_ranges(WEIGHTS, 400_000), "hub.no_connection"),
        (with_wrong_range(WEIGHTS), "hub.other_answer"),
        (by_range(WEIGHTS[::-1]), "download.damaged"),
        (plain(206, WEIGHTS), "hub.other_answer"),
        (plain(200, WEIGHTS + b"more than announced"), "hub.other_answer"),
        (plain(200, WEIGHTS[1:]), "hub.other_answer"),
        (endless(), "download.damaged"),
        (endless(Content_Encoding="gzip"), "hub.other_answer"),
    ],
    ids=["ignores ranges", "wrong range", "damaged", "no range", "more", "less", "endless", "gzip bomb"],
)
def test_odd_answers_end_after_three_attempts(hub, downloads, answer, key):
    hub.odd = {FILE: answer}
    with raises_key(key, file="model.safetensors of someone/model"):
        downloads.get()
    assert 3 <= count(hub, FILE) <= 4 and "model/config.json" not in downloads.files()
    assert downloads.parts()["model.safetensors"].stat().st_size <= SIZE < MOST
    hub.odd = {}
    downloads.get()
    assert downloads.files() == COMPLETE, "the next download must succeed"


def test_bytes_after_the_announced_size_are_not_read(hub, downloads):
    hub.odd = {FILE: plain(200, WEIGHTS + bytes(10**6), Content_Length=None)}
    downloads.get()
    assert downloads.files() == COMPLETE


@pytest.mark.parametrize("status", [500, 502, 503, 504, 429, 408])
def test_errors_that_pass_are_retried(hub, downloads, status):
    def once(end):
        def answer(handler):
            del hub.odd[end]
            plain(status, Retry_After="1")(handler)

        return answer

    hub.odd = {end: once(end) for end in (LIST, FILE)}
    reports = downloads.get(MODEL)
    assert "model/model.safetensors" in downloads.files()
    waits = [report.message for report in reports if state(report) == "retrying"]
    assert waits == ["The Hub did not answer properly (1 of 3 attempts); next attempt in 1 s"] * 2


@pytest.mark.parametrize("end", [LIST, FILE])
def test_long_pauses_are_not_waited_for(hub, downloads, end):
    hub.odd = {end: plain(429, Retry_After="3600")}
    with raises_key("hub.limit", minutes="60", status=429):
        downloads.get()
    assert count(hub, end) == 1


@pytest.mark.parametrize("end", [LIST, FILE])
def test_errors_that_stay_end_after_three_attempts(hub, downloads, end):
    hub.odd = {end: plain(503)}
    with raises_key("hub.busy", status=503, file="someone/model"):
        downloads.get()
    assert count(hub, end) == 3


# ---- silent servers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", [LIST, FILE])
def test_silent_servers_are_left_after_three_attempts(hub, downloads, monkeypatch, end):
    monkeypatch.setattr(requests, "TIMEOUT", 0.3)
    until = threading.Event()
    hub.odd = {end: silent(threading.Event(), until)}
    with raises_key("hub.no_connection", file="someone/model", reason="timed out"):
        downloads.get()
    until.set()
    assert count(hub, end) == 3


@pytest.mark.parametrize("end", [LIST, FILE])
def test_downloads_from_silent_servers_are_cancelled(hub, downloads, end):
    heard, until = threading.Event(), threading.Event()
    hub.odd = {end: silent(heard, until)}
    assert downloads.seconds_to_cancel(heard) < 1
    until.set()
    hub.odd = {}
    downloads.get()
    assert downloads.files() == COMPLETE, "the folder must not stay locked"


@pytest.mark.parametrize("answer", [plain(503), plain(503, Retry_After="50")], ids=["short", "long"])
def test_waits_between_attempts_are_cancelled(hub, downloads, answer):
    heard = threading.Event()
    hub.odd = {FILE: lambda handler: (answer(handler), heard.set())}
    assert downloads.seconds_to_cancel(heard) < 1


# ---- messages --------------------------------------------------------------------------------------------------------


def test_pages_of_networks_are_recognised_at_once(hub, downloads):
    """Data that arrived before the network asks for a login is kept."""
    hub.odd = {FILE: in_turn(by_range(WEIGHTS, 400_000), page())}
    with raises_key("hub.web_page", file="model.safetensors"):
        downloads.get()
    assert count(hub, FILE) == 2 and downloads.parts()["model.safetensors"].stat().st_size >= 2**18
    hub.odd = {LIST.replace("main", COMMIT): page()}
    with raises_key("hub.web_page", file="someone/model"):
        downloads.get()


ENTRY = {"rfilename": "config.json", "size": 2, "blobId": "a" * 40}
"""Valid entry in the list of a repository."""
ODD_ENTRIES = [
    *(ENTRY | {"rfilename": name} for name in (3, "a" * 10**6, f"{'a' * 10**6}-00001-of-99999.safetensors")),
    *(ENTRY | {"rfilename": name} for name in ("a/" * 3000 + "config.json", "\ud800.json")),
    *(ENTRY | change for change in ({"size": -2}, {"size": True}, {"blobId": "x"}, {"lfs": "yes"})),
    *(1, {"rfilename": "config.json"}),
]


@pytest.mark.parametrize(
    "answer",
    [
        *(plain(200, content) for content in (b"", b"{", b"[" * 10**5, b"[]", b"null", b"\xff")),
        listing(),
        listing(sha=COMMIT, siblings=None),
        listing(sha=COMMIT, siblings={"a": 1}),
        listing(sha="main", siblings=[]),
        listing(sha=None, siblings=[]),
        listing(sha=COMMIT, siblings=[ENTRY | {"rfilename": str(number)} for number in range(10_001)]),
        *(listing(sha=COMMIT, siblings=[entry]) for entry in ODD_ENTRIES),
        endless(),
    ],
)
def test_odd_lists_are_refused(hub, downloads, answer):
    hub.odd = {LIST: answer}
    with raises_key("hub.no_list", repository="someone/model"):
        downloads.get()
    assert downloads.files() == {} and written(downloads) == 0


@pytest.mark.parametrize(
    "prepare, key, values",
    [
        (lambda hub: hub.gated.add("someone/model"), "hub.gated", {"page": "https://huggingface.co/someone/model"}),
        (lambda hub: hub.private.add("someone/model"), "hub.no_access", {"status": 401}),
        (lambda hub: hub.repositories.pop("someone/model"), "hub.no_access", {"status": 404}),
        (lambda hub: hub.repositories["someone/codecs"].pop("codec.pt"), "download.missing_file", {"file": "codec.pt"}),
        (lambda hub: hub.odd.update({FILE: plain(451)}), "hub.status", {"status": 451}),
        (lambda hub: hub.server.server_close() or hub.server.shutdown(), "hub.no_connection", {}),
    ],
    ids=["gated", "401", "404", "no file", "451", "no server"],
)
def test_messages_for_rejected_requests(hub, downloads, prepare, key, values):
    prepare(hub)
    with raises_key(key, **values) as raised:
        downloads.get()
    assert "\n" not in str(raised.value) and downloads.files() == {}


def test_gated_repository_with_a_token(hub, downloads, monkeypatch):
    hub.gated.add("someone/model")
    monkeypatch.setenv("HF_TOKEN", hub.token)
    downloads.get()
    assert downloads.files() == COMPLETE


def test_tokens_that_are_not_accepted_are_named(hub, downloads, monkeypatch, tmp_path):
    hub.odd = {LIST: plain(401)}
    saved = tmp_path / "token"
    saved.write_text("hf_stale\n", encoding="utf-8")
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(saved))
    with raises_key("hub.login_saved", path=saved):
        downloads.get()
    monkeypatch.setenv("HF_TOKEN", "hf_another")
    with raises_key("hub.token"):
        downloads.get()


def test_the_token_is_not_sent_to_another_host(hub, downloads, monkeypatch):
    """The storage of large files is another host. The server of this test is reached by two names."""
    monkeypatch.setenv("HF_TOKEN", hub.token)
    seen = {}

    def storage(handler):
        seen.update(host=handler.headers["Host"], token=handler.headers["Authorization"])
        by_range(WEIGHTS)(handler)

    other = hub.address.replace("127.0.0.1", "localhost")
    hub.odd = {FILE: plain(302, Location=f"{other}/elsewhere"), "/elsewhere": storage}
    downloads.get()
    assert downloads.files() == COMPLETE and seen == {"host": other.removeprefix("http://"), "token": None}


@pytest.mark.parametrize(
    "address", ["", "huggingface.co", "ftp://x", "http://", "https://x:y", "https://[x", "https://x:0"]
)
def test_malformed_addresses_are_named(hub, downloads, monkeypatch, address):
    monkeypatch.setattr(constants, "ENDPOINT", address)
    with raises_key("hub.no_address"):
        downloads.get()


@pytest.mark.parametrize("end", ["/x", ":99999/x", ""])
def test_passwords_in_addresses_are_not_shown(hub, downloads, monkeypatch, end):
    hub.odd = {LIST: plain(404)}
    monkeypatch.setattr(constants, "ENDPOINT", hub.address.replace("//", "//me:secret@") + end)
    with pytest.raises(AdtError) as raised:
        downloads.get()
    assert "secret" not in str(raised.value) and "127.0.0.1" in str(raised.value)


def test_offline_mode(hub, downloads, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with raises_key("hub.offline"):
        downloads.get()
    assert hub.requests == []


def test_redirects_without_encryption_are_refused(hub, downloads, monkeypatch):
    """The session of this test stands for a server with https whose list is at an address with http."""
    monkeypatch.setattr(constants, "ENDPOINT", "https://hub.example")
    answer = SimpleNamespace(
        status_code=200,
        headers={},
        url="http://hub.example/list",
        history=[SimpleNamespace(url="https://hub.example/api")],
        iter_raw=lambda size: iter([b"{}"]),
    )

    @contextmanager
    def stream(*_, **__):
        yield answer

    monkeypatch.setattr(huggingface_hub.utils, "get_session", lambda: SimpleNamespace(stream=stream))
    with raises_key("hub.not_encrypted", endpoint="https://hub.example", file="someone/model"):
        downloads.get()


@pytest.mark.parametrize("name", ["HTTP_PROXY", "TRANSFORMERS_OFFLINE", "HF_ENDPOINT"])
def test_environment_variables_work(hub, tmp_path, name):
    """huggingface_hub reads them when it is imported, so each needs a process."""
    value = {"HTTP_PROXY": hub.address, "TRANSFORMERS_OFFLINE": "1", "HF_ENDPOINT": hub.address}[name]
    clean = {key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")}
    code = "from tests.small_download import *; import sys; Downloads(Path(sys.argv[1])).get(MODEL)"
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "models")],
        cwd=ROOT,
        env={**clean, "HF_ENDPOINT": "http://hub.example", name: value},
        capture_output=True,
        encoding="utf-8",
    )
    is_offline = name == "TRANSFORMERS_OFFLINE"
    assert (done.returncode != 0) == is_offline, done.stderr
    assert "TRANSFORMERS_OFFLINE is set" in done.stderr if is_offline else hub.requests


def test_the_download_is_as_fast_as_the_disk_and_the_network(hub, downloads):
    """The limit is in seconds of processor time for 30 MB."""
    hub.repositories["someone/model"] = {"config.json": b"{}", "model.safetensors": bytes(30_000_000)}
    began = time.process_time()
    downloads.get(MODEL)
    assert time.process_time() - began < 1.5, "server and client together"


def test_one_thread_reads_each_list_and_each_file(hub, downloads, monkeypatch):
    """A thread for each chunk would be 107,000 threads for a model of 14 GB."""
    hub.repositories["someone/model"] = {"config.json": b"{}", "model.safetensors": bytes(40 * 2**17)}
    start = threading.Thread.start
    readers = []

    def record(thread: threading.Thread) -> None:
        if "process_request" not in thread.name:  # a thread of the server
            readers.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", record)
    downloads.get(MODEL)
    assert len(readers) == 3, "a list and two files"
    for thread in readers:
        thread.join(5)
        assert not thread.is_alive()
