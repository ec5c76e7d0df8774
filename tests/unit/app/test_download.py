"""Tests of downloads of published models with the real huggingface_hub, from the local server of tests/hub.py.

test_odd_servers.py has the tests with servers that misbehave.
"""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from adt_core.app.download import PART, STATE, DownloadPart, download_parts
from adt_core.models.repositories import Download
from tests.command import read_json
from tests.hub import COMMIT
from tests.odd_answers import listing
from tests.raising import raises_key
from tests.small_download import CODEC, COMPLETE, MODEL, REPOSITORIES, WEIGHTS, state

ROOT = Path(__file__).resolve().parents[3]
RECORD = f"{STATE}/someone--model.json"
OF_MODEL = {name.removeprefix("model/"): content for name, content in COMPLETE.items() if name != "codec.pt"}


def test_only_files_that_a_loader_reads_are_downloaded(hub, downloads):
    """Programs, notebooks, videos, texts, and pickles beside safetensors files are not downloaded."""
    reports = downloads.get()
    assert downloads.files() == COMPLETE
    assert len(hub.fetched()) == len(COMPLETE) < len(REPOSITORIES["someone/model"])
    assert state(reports[0]) == "listing" and state(reports[-1]) in ("progress", "rate")
    assert reports[-1].done == reports[-1].total == sum(map(len, COMPLETE.values()))


def test_pickles_are_downloaded_if_there_are_no_safetensors_files(hub, downloads):
    hub.repositories["someone/model"] = {"config.json": b"{}", "pytorch_model.bin": WEIGHTS}
    downloads.get(MODEL)
    assert downloads.files() == {"model/config.json": b"{}", "model/pytorch_model.bin": WEIGHTS}


def test_folders_are_created(hub, tmp_path):
    homes = tmp_path / "a" / "ar_image", tmp_path / "b" / "drafters"
    download_parts([DownloadPart(MODEL, homes[0]), DownloadPart(CODEC, homes[1])], lambda progress: None, lambda: None)
    assert (homes[0] / "model" / "config.json").exists() and (homes[1] / "codec.pt").exists()


def test_existing_files_are_not_downloaded_again(hub, downloads):
    downloads.get()
    hub.requests.clear()
    assert state(downloads.get()[-1]) == "checking" and hub.fetched() == []
    (downloads.home / "codec.pt").unlink()
    downloads.get()
    assert len(hub.fetched()) == 1 and downloads.files() == COMPLETE


def test_progress_reports_bytes_and_rate(hub, downloads):
    hub.rate = 1_000_000
    reports = [report for report in downloads.get() if report.total]
    done = [report.done for report in reports]
    assert done == sorted(done) and 0 < done[-2] < reports[-1].total
    rates = [float(part.parameters["rate"]) for part in (r.message.parts[0] for r in reports) if "rate" in part.key]
    assert any(0.5 < rate < 2 for rate in rates), "MB per second"


def test_different_existing_files_are_not_replaced(hub, downloads):
    own = downloads.home / "model" / "config.json"
    own.parent.mkdir(parents=True)
    own.write_text('{"mine": 1}', encoding="utf-8")
    with raises_key("download.file_exists", path="config.json"):
        downloads.get()
    assert own.read_text(encoding="utf-8") == '{"mine": 1}' and hub.fetched() == []


def test_no_process_is_started_and_no_variable_is_set(hub, downloads):
    """Python's audit events report new processes."""
    events = []
    is_watching = True
    sys.addaudithook(lambda event, _: is_watching and events.append(event))  # a hook can't be removed
    before = dict(os.environ)
    downloads.get()
    is_watching = False
    assert "socket.connect" in events and dict(os.environ) == before
    assert not [event for event in events if event.startswith(("subprocess", "os.exec", "os.fork", "os.posix_spawn"))]


# ---- interruptions ---------------------------------------------------------------------------------------------------


def test_cancelled_downloads_are_resumed(hub, downloads):
    """An incomplete model must not be listed, so it has no `config.json`."""
    half = threading.Event()
    hub.stalled = threading.Event()
    part = downloads.parts

    def watch():
        while not ("model.safetensors" in part() and part()["model.safetensors"].stat().st_size >= 2**18):
            time.sleep(0.05)
        half.set()

    threading.Thread(target=watch, daemon=True).start()
    assert downloads.seconds_to_cancel(half) < 1
    assert downloads.files() == {}
    kept = part()["model.safetensors"].stat().st_size
    hub.stalled.set()
    hub.stalled = None
    downloads.get()
    assert downloads.files() == COMPLETE and hub.starts["model.safetensors"] == kept >= 2**18


@pytest.mark.skipif(os.name == "nt", reason="kill has no such signal there")
def test_killed_downloads_are_resumed(hub, downloads):
    hub.stalled = threading.Event()
    code = "from tests.small_download import *; import sys; Downloads(Path(sys.argv[1])).get()"
    process = subprocess.Popen([sys.executable, "-c", code, str(downloads.home)], cwd=ROOT)
    while not any(part.stat().st_size >= 2**18 for part in downloads.parts().values()):
        time.sleep(0.05)
    process.kill()
    process.wait()
    hub.stalled.set()
    hub.stalled = None
    downloads.get()
    assert downloads.files() == COMPLETE and hub.starts["model.safetensors"] >= 2**18


def test_two_downloads_of_one_model_are_one(hub, downloads):
    hub.rate = 2_000_000
    states: dict[int, list[str]] = {}
    runs = [
        threading.Thread(target=lambda n=n: states.update({n: list(map(state, downloads.get()))})) for n in range(2)
    ]
    for run in runs:
        run.start()
    for run in runs:
        run.join()
    assert downloads.files() == COMPLETE and hub.sent["model.safetensors"] == len(WEIGHTS)
    assert sorted("waiting" in of for of in states.values()) == [False, True]


def test_all_folders_of_a_download_are_locked(hub, tmp_path):
    """A model with its drafter, and only its drafter, use the same folder of drafters."""
    hub.rate = 1_000_000
    model, drafter = DownloadPart(MODEL, tmp_path / "a"), DownloadPart(CODEC, tmp_path / "b")
    started = threading.Event()
    run = threading.Thread(target=download_parts, args=([model, drafter], lambda _: started.set(), lambda: None))
    run.start()
    started.wait(10)
    reports = []
    download_parts([drafter], reports.append, lambda: None)
    run.join()
    assert "waiting" in map(state, reports)
    assert hub.fetched().count(f"/someone/codecs/resolve/{COMMIT}/codec.pt") == 1


def test_waiting_for_another_download_can_be_cancelled(hub, downloads, tmp_path):
    hub.stalled = threading.Event()
    run = threading.Thread(target=downloads.get)
    run.start()
    while not hub.now:
        time.sleep(0.02)
    now = threading.Event()
    now.set()
    assert downloads.seconds_to_cancel(now) < 1
    hub.stalled.set()
    run.join()


# ---- content of the disk ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", [b"", WEIGHTS[::-1], WEIGHTS + b"more"], ids=["empty", "damaged", "too long"])
def test_staged_files_are_checked(hub, downloads, content):
    hub.stalled = threading.Event()
    soon = threading.Event()
    threading.Timer(0.5, soon.set).start()
    downloads.seconds_to_cancel(soon, MODEL)
    hub.stalled.set()
    hub.stalled = None
    downloads.parts()["model.safetensors"].write_bytes(content)
    downloads.get(MODEL)
    assert downloads.files()["model/model.safetensors"] == WEIGHTS


def leave_part(hub, downloads, content: bytes) -> Path:
    """Leave an incomplete download of model.safetensors with this content. Return its path."""
    hub.odd = {"model.safetensors": lambda handler: None}
    with raises_key("hub.no_connection"):
        downloads.get(MODEL)
    hub.odd = {}
    hub.requests.clear()
    part = downloads.parts()["model.safetensors"]
    part.write_bytes(content)
    return part


def test_files_whose_bytes_are_all_there_are_finished(hub, downloads):
    """Such a file needs no request."""
    leave_part(hub, downloads, WEIGHTS)
    downloads.get(MODEL)
    assert downloads.files()["model/model.safetensors"] == WEIGHTS
    assert not [path for path in hub.fetched() if path.endswith("/model.safetensors")]


@pytest.mark.skipif(os.name == "nt", reason="links need privileges there")
@pytest.mark.parametrize("link, key", [(os.symlink, "file.is_link"), (os.link, "file.is_hard_link")])
def test_links_in_the_place_of_incomplete_files_are_refused(hub, downloads, tmp_path, link, key):
    outside = tmp_path / "outside"
    outside.write_bytes(b"important")
    part = leave_part(hub, downloads, b"")
    part.unlink()
    link(outside, part)
    with raises_key(key):
        downloads.get(MODEL)
    assert outside.read_bytes() == b"important"


@pytest.mark.skipif(os.name == "nt", reason="links need privileges there")
@pytest.mark.parametrize("name", ["model", STATE, f"{STATE}/lock", RECORD])
def test_links_to_other_places_are_refused(hub, downloads, tmp_path, name):
    (tmp_path / "elsewhere").mkdir()
    (downloads.home / name).parent.mkdir(parents=True)
    (downloads.home / name).symlink_to(tmp_path / "elsewhere")
    with raises_key("file.is_link"):
        downloads.get(MODEL)
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_leftovers_of_earlier_commits_are_removed(hub, downloads):
    old = leave_part(hub, downloads, WEIGHTS[:1000]).with_name(f".old.safetensors.0123456789ab{PART}")
    old.write_bytes(b"old")
    downloads.get()
    assert downloads.files() == COMPLETE and downloads.parts() == {}


def test_leftovers_of_other_models_stay(hub, downloads):
    other = downloads.home / f".other.pt.0123456789ab{PART}"
    other.parent.mkdir()
    other.write_bytes(b"half of another codec")
    downloads.get()
    assert other.exists()


def test_folders_on_another_disk_are_filled_without_a_move_between_disks(hub, downloads, monkeypatch):
    """Every file arrives in its final folder, so that the last step renames it there."""
    moves = []
    rename = os.rename
    monkeypatch.setattr(os, "rename", lambda old, new: (moves.append((old.parent, new.parent)), rename(old, new)))
    downloads.get()
    assert len(moves) == len(COMPLETE) and all(old == new for old, new in moves)


def test_too_little_disk_space_is_reported_before_the_download(hub, downloads, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda path: os.terminal_size((0, 0)) and type("U", (), {"free": 10**8}))
    with raises_key("download.disk_full", needed="0.5 GB", folder="models", free="0.1 GB"):
        downloads.get()
    assert hub.fetched() == []


@pytest.mark.skipif(os.name == "nt", reason="needs a limit of the size of files")
def test_write_errors_keep_the_downloaded_part(hub, downloads):
    import resource

    usual = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, usual[1]))
    try:
        with raises_key("file.too_large"):
            downloads.get()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)
    assert sum(part.stat().st_size for part in downloads.parts().values()) >= 500_000
    downloads.get()
    assert downloads.files() == COMPLETE and max(hub.starts.values()) >= 2**18


# ---- where the files go ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("there", ["MODEL", "models--someone--model/snapshots/" + COMMIT], ids=["capitals", "cache"])
def test_incomplete_folders_are_completed_in_place(hub, downloads, there):
    folder = downloads.home / there
    folder.mkdir(parents=True)
    (folder / "config.json").write_bytes(b"{}")
    downloads.get(MODEL)
    assert downloads.files() == {f"{there}/{name}": content for name, content in OF_MODEL.items()}
    assert DownloadPart(MODEL, downloads.home).is_complete and not (downloads.home / "model").exists()


@pytest.mark.skipif(os.name == "nt", reason="links need privileges there")
def test_snapshots_of_links_are_completed(hub, downloads):
    """In Hugging Face's cache, the files of a snapshot are links. One that leads nowhere is replaced."""
    cache = downloads.home / "models--someone--model"
    folder = cache / "snapshots" / COMMIT
    folder.mkdir(parents=True)
    (cache / "blobs").mkdir()
    (cache / "blobs" / "one").write_bytes(b"{}")
    (folder / "config.json").symlink_to("../../blobs/one")
    (folder / "model.safetensors").symlink_to("../../blobs/missing")
    downloads.get(MODEL)
    assert (folder / "config.json").is_symlink() and not any("config.json" in path for path in hub.fetched())
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    assert [path.name for path in (cache / "blobs").iterdir()] == ["one"], "nothing is written through a link"


def test_snapshots_are_completed_with_files_of_their_commit(hub, downloads):
    (downloads.home / "models--someone--model" / "snapshots" / ("a" * 40)).mkdir(parents=True)
    hub.odd = {"/revision/" + "a" * 40: listing(sha="a" * 40, siblings=[])}
    with raises_key("download.missing_file", repository="someone/model", file="config.json"):
        downloads.get(MODEL)


@pytest.mark.parametrize("removed", ["config.json", "model.safetensors", "vae/config.json", "vae/model.safetensors"])
def test_parts_in_several_folders_are_complete_only_together(hub, downloads, removed):
    staged = Download("someone/model", 1, "MIT", "model", weights=("", "vae"))
    files = {"config.json": b"{}", "model.safetensors": WEIGHTS}
    hub.repositories["someone/model"] = files | {f"vae/{name}": content for name, content in files.items()}
    downloads.get(staged)
    part = DownloadPart(staged, downloads.home)
    assert part.is_complete
    (downloads.home / "model" / removed).unlink()
    assert not part.is_complete
    downloads.get(staged)
    assert part.is_complete


# ---- the supply chain ------------------------------------------------------------------------------------------------


def test_the_first_download_records_commit_and_hashes(hub, downloads):
    downloads.get()
    record = read_json(downloads.home / RECORD)
    assert record["commit"] == COMMIT and record["files"].keys() == OF_MODEL.keys()


def test_later_downloads_request_the_recorded_commit(hub, downloads):
    downloads.get(MODEL)
    hub.requests.clear()
    (downloads.home / "model" / "config.json").unlink()
    downloads.get(MODEL)
    assert [path for _, path in hub.requests] == [
        f"/api/models/someone/model/revision/{COMMIT}",
        f"/someone/model/resolve/{COMMIT}/config.json",
    ]


def test_files_that_differ_from_the_first_download_are_refused(hub, downloads):
    downloads.get(MODEL)
    (downloads.home / "model" / "model.safetensors").unlink()
    hub.repositories["someone/model"]["model.safetensors"] = b"another content"
    with raises_key("download.changed", file="model.safetensors of someone/model"):
        downloads.get(MODEL)
    assert "model/model.safetensors" not in downloads.files()


def test_replaced_repositories_are_named(hub, downloads):
    """A deleted name can be registered again, by somebody else. The new repository does not have the commit."""
    downloads.get(MODEL)
    (downloads.home / "model" / "config.json").unlink()
    hub.commit = "f" * 40
    with raises_key("download.not_the_first", error="hub.no_version", record_file=Path(RECORD).name):
        downloads.get(MODEL)
    (downloads.home / RECORD).unlink()
    downloads.get(MODEL)
    assert "model/config.json" in downloads.files()


def test_the_commit_of_the_table_is_requested(hub, downloads):
    hub.commit = "b" * 40
    downloads.get(MODEL._replace(commit="b" * 40))
    assert hub.requests[0][1].endswith("/revision/" + "b" * 40) and "model/config.json" in downloads.files()


@pytest.mark.parametrize("content", ["", "[]", '{"commit": 1}', '{"commit": "a", "files": 3}', "[" * 10**5])
def test_damaged_records_are_named(hub, downloads, content):
    record = downloads.home / RECORD
    record.parent.mkdir(parents=True)
    record.write_text(content, encoding="utf-8")
    with raises_key("download.unreadable", file="someone--model.json"):
        downloads.get()
    assert hub.requests == []


def test_repositories_that_are_much_larger_than_expected_are_refused(hub, downloads):
    with raises_key("download.other_size", repository="someone/model", found="2 MB", count=4, size="1 MB"):
        downloads.get(MODEL._replace(gigabytes=0.001))
    downloads.get(MODEL._replace(gigabytes=0.0016))
    assert "model/config.json" in downloads.files()


@pytest.mark.parametrize(
    "left, lacking",
    [
        ([], "config.json"),
        (["README.md"], "config.json"),
        (["config.json"], "weights"),
        (["model.safetensors"], "config.json"),
        (["config.json", "model-00001-of-00002.safetensors"], "model-00002-of-00002.safetensors"),
        (["config.json", "vae/model.safetensors"], "weights"),
    ],
)
def test_repositories_without_required_files_are_refused(hub, downloads, left, lacking):
    hub.repositories["someone/model"] = dict.fromkeys(left, b"{}")
    with raises_key("download.missing_file", file=lacking):
        downloads.get(MODEL)
    assert downloads.files() == {} and hub.fetched() == []


def test_edited_and_added_files_that_no_loader_reads_do_not_matter(hub, downloads):
    downloads.get()
    (downloads.home / "model" / "README.md").write_bytes(b"from an older version of this pack")
    (downloads.home / "codec.pt").unlink()
    hub.repositories["someone/model"] |= {"README.md": b"edited", "example.py": b"import os"}
    downloads.get()
    assert downloads.files() == COMPLETE | {"model/README.md": b"from an older version of this pack"}


def test_a_file_that_the_table_names_replaces_that_of_the_repository(hub, downloads):
    """Lumina-mGPT's tokenizer is in another repository. The model's own repository may get one, too."""
    tokenizer = Download("someone/tokenizer", 0.1, "MIT", "model", ("tokenizer.json",))
    hub.repositories["someone/tokenizer"] = {"tokenizer.json": b"the right one"}
    hub.repositories["someone/model"]["tokenizer.json"] = b"added later"
    for _ in range(2):
        downloads.get(MODEL, tokenizer)
        assert downloads.files()["model/tokenizer.json"] == b"the right one"


@pytest.mark.parametrize(
    "folder",
    ["..", "a/..", "/etc", "a\\b", "c:x", "nul", "a//b", "dot.", "space ", "CONIN$", "conout$.x", "a?", "x/COM1.y"],
)
def test_names_that_are_no_names_on_all_systems_are_refused(hub, downloads, folder):
    hub.repositories["someone/model"][f"{folder}/config.json"] = b"{}"
    with raises_key("download.bad_name", repository="someone/model"):
        downloads.get()
    assert downloads.files() == {} and hub.fetched() == []
