"""Tests of downloads of published models.

A download must be complete, verified and resumable, and must not replace existing files. The client is the real
huggingface_hub in a separate process. The server is a local stand-in for the Hub (tests/hub.py).
"""

import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from adt_core import AdtError
from adt_core.app.download import DownloadPart, DownloadProgress, download
from adt_core.app.hub import STAGING
from adt_core.models.downloads import Download

ROOT = Path(__file__).resolve().parents[2]
MODEL = Download("someone/model", 1, "MIT", "model")
CODEC = Download("someone/codecs", 0.1, "MIT", "", ("codec.pt",))
WEIGHTS = random.Random(1).randbytes(1_000_000)


@pytest.fixture
def hub(local_hub):
    local_hub.repositories = {
        "someone/model": {
            "config.json": b"{}",
            "model.safetensors": WEIGHTS,
            "second.safetensors": WEIGHTS[::-1],
            "pytorch_model.bin": b"a pickle of the same",
            ".gitattributes": b"",
            "tokenizer/vocab.json": b"[]",
        },
        "someone/codecs": {"codec.pt": WEIGHTS[:9000], "another.pt": b"not needed"},
    }
    return local_hub


@pytest.fixture
def get(tmp_path):
    """Return a function that downloads parts of a model to the folder `models` and returns the progress reports."""

    def run(*parts, check=lambda: None):
        states: list[DownloadProgress] = []
        home = tmp_path / "models"
        download([DownloadPart(part, home) for part in parts or (MODEL, CODEC)], states.append, check)
        return states

    return run


def files_of(folder):
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


WHOLE = {
    "model/config.json": b"{}",
    "model/model.safetensors": WEIGHTS,
    "model/second.safetensors": WEIGHTS[::-1],
    "model/tokenizer/vocab.json": b"[]",
    "codec.pt": WEIGHTS[:9000],
}


def models_of(tmp_path):
    """Return the content of each file that belongs to an installed model. Keys are paths."""
    found = files_of(tmp_path / "models")
    return {name: content for name, content in found.items() if not name.startswith(STAGING)}


def test_only_required_files_are_downloaded(hub, get, tmp_path):
    states = get()
    assert models_of(tmp_path) == WHOLE
    assert not any("pytorch_model.bin" in path or "another.pt" in path for path in hub.fetched())
    assert [path.name for path in (tmp_path / "models" / STAGING).iterdir()] == ["lock"], "no staged copy may be left"
    assert states[0].state == "listing" and states[-1].state == "downloading"
    assert states[-1].total == sum(map(len, WHOLE.values()))


def test_folders_are_created(hub, tmp_path):
    homes = tmp_path / "a" / "ar_image", tmp_path / "b" / "drafters"
    download([DownloadPart(MODEL, homes[0]), DownloadPart(CODEC, homes[1])], lambda progress: None, lambda: None)
    assert (homes[0] / "model" / "config.json").exists() and (homes[1] / "codec.pt").exists()


def test_existing_files_are_not_downloaded_again(hub, get, tmp_path):
    get()
    hub.requests.clear()
    states = get()
    assert hub.fetched() == [] and states[-1].state == "checking"
    (tmp_path / "models" / "codec.pt").unlink()
    get()
    assert len(hub.fetched()) == 1 and models_of(tmp_path) == WHOLE


def test_parallel_downloads_report_bytes_and_rate(hub, get):
    hub.rate = 500_000
    states = [state for state in get() if state.state == "downloading"]
    assert hub.most >= 2
    assert [s.done for s in states] == sorted(s.done for s in states) and 0 < states[-2].done < states[-1].total
    assert any(0.5 * hub.rate < s.rate < 8 * hub.rate for s in states)


def test_different_existing_files_are_not_replaced(hub, get, tmp_path):
    own = tmp_path / "models" / "model" / "config.json"
    own.parent.mkdir(parents=True)
    own.write_text('{"mine": 1}', encoding="utf-8")
    with pytest.raises(AdtError, match=r"config.json exists and differs from the published file .*move it"):
        get()
    assert own.read_text(encoding="utf-8") == '{"mine": 1}' and hub.fetched() == []


def test_broken_connections_are_resumed(hub, get, tmp_path):
    hub.cut = {"model.safetensors": 400_000}
    hub.cuts["model.safetensors"] = 2
    get()
    assert models_of(tmp_path) == WHOLE
    assert len(WEIGHTS) <= hub.sent["model.safetensors"] < len(WEIGHTS) + 2 * 2**18, (
        "less than one chunk per interruption may be downloaded twice"
    )


class DownloadCancelled(BaseException):
    """Exception that does not derive from Exception, as in newer versions of ComfyUI."""


def cancel_after(condition):
    began: list[float] = []

    def check():
        if condition():
            began.append(time.monotonic())
            raise DownloadCancelled

    return check, began


def test_cancel_works_at_once_and_the_next_run_resumes(hub, get, tmp_path):
    """Cancelling must also work while the network is silent. An incomplete model must not be listed."""
    hub.stalled = threading.Event()
    large = ("model.safetensors", "second.safetensors", "codec.pt")
    half = {name: len(WHOLE.get(f"model/{name}", WEIGHTS[:9000])) / 2 for name in large}

    def arrived():
        """Return the bytes on disk. Small files may be incomplete, too; they are not counted."""
        sizes = [part.stat().st_size for part in (tmp_path / "models" / STAGING).glob("*.part")]
        return sum(size for size in sizes if size > 1000)

    # On a busy machine, the bytes may be sent long before they are read and written.
    check, began = cancel_after(lambda: all(hub.sent[name] > half[name] for name in large) and arrived() >= 2**19)
    with pytest.raises(DownloadCancelled):
        get(check=check)
    assert time.monotonic() - began[0] < 1
    assert models_of(tmp_path) == {}
    hub.stalled.set()
    hub.stalled = None
    kept = arrived()
    get()
    assert models_of(tmp_path) == WHOLE
    assert sum(hub.starts[name] for name in large) == kept >= 2**19


def test_a_file_with_another_hash_is_an_error_and_is_fetched_again(hub, get, tmp_path):
    hub.damaged = {"model.safetensors"}
    with pytest.raises(AdtError, match="model.safetensors of someone/model arrived damaged.*run it again"):
        get()
    assert models_of(tmp_path) == {}
    hub.damaged = set()
    get()
    assert models_of(tmp_path) == WHOLE


def test_two_downloads_of_one_model_are_one(hub, get, tmp_path):
    hub.rate = 1_000_000
    states: dict[int, list[DownloadProgress]] = {}
    runs = [threading.Thread(target=lambda n=n: states.update({n: get()})) for n in range(2)]
    for run in runs:
        run.start()
    for run in runs:
        run.join()
    assert models_of(tmp_path) == WHOLE and hub.sent["model.safetensors"] == len(WEIGHTS)
    assert sorted(any(s.state == "waiting" for s in of) for of in states.values()) == [False, True]


@pytest.mark.parametrize(
    "prepare, words",
    [
        (lambda hub: hub.gated.add("someone/model"), "someone/model is gated: accept its terms .*set HF_TOKEN"),
        (lambda hub: hub.private.add("someone/model"), r"has no someone/model that you may read \(HTTP 401\)"),
        (lambda hub: hub.repositories.pop("someone/model"), r"has no someone/model that you may read \(HTTP 404\)"),
        (lambda hub: hub.repositories["someone/codecs"].pop("codec.pt"), "someone/codecs has no codec.pt on http"),
        (lambda hub: hub.server.server_close() or hub.server.shutdown(), "The connection to http.* failed"),
    ],
    ids=["gated", "401", "404", "no file", "no server"],
)
def test_messages_for_rejected_requests(hub, get, tmp_path, prepare, words):
    prepare(hub)
    with pytest.raises(AdtError, match=words) as raised:
        get()
    assert "\n" not in str(raised.value) and models_of(tmp_path) == {}


def test_gated_repository_with_a_token(hub, get, tmp_path, monkeypatch):
    hub.gated.add("someone/model")
    monkeypatch.setenv("HF_TOKEN", hub.token)
    get()
    assert models_of(tmp_path) == WHOLE


def test_offline_mode(hub, get, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(AdtError, match="HF_HUB_OFFLINE is set; unset it"):
        get()
    assert hub.requests == []


def test_proxies_are_used(hub, get, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://hub.example")
    monkeypatch.setenv("HTTP_PROXY", hub.address)
    monkeypatch.setenv("http_proxy", hub.address)
    get()
    assert any(path == "/api/models/someone/model" for _, path in hub.requests)


@pytest.mark.skipif(not hasattr(os, "mkfifo") or not Path("/dev/shm").is_dir(), reason="needs Linux")
def test_too_little_disk_space_is_reported_before_the_download(hub, get, tmp_path):
    """The Hub of this test publishes a file size that exceeds the size of any disk."""
    real = hub.repositories["someone/model"]["model.safetensors"]

    class Endless(bytes):
        def __len__(self):
            return 2**60

    hub.repositories["someone/model"]["model.safetensors"] = Endless(real)
    with pytest.raises(AdtError, match=r"The download needs \d+.* GB in .*models, where .* GB are free; delete files"):
        get()
    assert hub.fetched() == []


@pytest.mark.skipif(os.name == "nt", reason="needs a limit of the size of files")
def test_write_errors_keep_the_downloaded_part(hub, get, tmp_path):
    import resource

    usual = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, usual[1]))
    try:
        with pytest.raises(AdtError, match="of someone/model can't be written .*what has arrived is kept"):
            get()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)
    assert sum(part.stat().st_size for part in (tmp_path / "models" / STAGING).glob("*.part")) >= 600_000
    get()
    assert models_of(tmp_path) == WHOLE and max(hub.starts.values()) >= 2**19


@pytest.mark.parametrize("name", ["../outside.json", "/etc/x", "a/../../b", "a\\b", "c:x", "nul.json", "a//b"])
def test_paths_outside_of_the_folder_are_rejected(hub, get, tmp_path, name):
    hub.repositories["someone/model"][name] = b"{}"
    with pytest.raises(AdtError, match="has a file called .*, which can't be a file in a folder of models"):
        get()
    assert models_of(tmp_path) == {} and hub.fetched() == []


def test_links_in_the_folder_are_rejected(hub, get, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "model").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(AdtError, match="is a link"):
        get()
    assert files_of(tmp_path / "elsewhere") == {}


@pytest.mark.skipif(os.name == "nt", reason="kill has no signal 0 there")
def test_the_process_ends_with_its_parent(hub, tmp_path):
    hub.stalled = threading.Event()
    code = (
        "from adt_core.app import download as d; from adt_core.models.downloads import Download\n"
        "from pathlib import Path; import sys\n"
        "part = d.DownloadPart(Download('someone/model', 1, 'MIT', 'model'), Path(sys.argv[1]))\n"
        "d.download([part], print, lambda: None)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE)
    while not hub.sent["model.safetensors"]:
        time.sleep(0.05)
    parent.kill()
    parent.wait()
    hub.stalled.set()
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and hub.now:
        time.sleep(0.05)
    assert hub.now == 0 and not (tmp_path / "model").exists()
