"""Tests of atomic writes and appends, also with killed and concurrent processes, and of their error messages."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from adt_core.files import PART, add_line, bounded_lines, write
from tests.crash.faults import fault_patch, full_disk
from tests.raising import raises_key

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def file(tmp_path):
    """Return the path of an existing file."""
    write(tmp_path / "o.json", b"one")
    return tmp_path / "o.json"


def test_a_full_disk_leaves_the_file_unchanged(file, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(*fault_patch("write", 1, full_disk))
        with raises_key("file.disk_full", path=file):
            write(file, b"another")
    assert file.read_bytes() == b"one" and list(file.parent.iterdir()) == [file]
    write(file, b"another")
    assert file.read_bytes() == b"another"


@pytest.mark.parametrize(
    "number, key",
    [
        (errno.EDQUOT, "file.quota"),
        (errno.EFBIG, "file.too_large"),
        (errno.EROFS, "file.not_writable"),
        (errno.EACCES, "file.not_writable"),
        (errno.EIO, "file.not_writable"),
    ],
)
def test_error_messages(file, monkeypatch, number, key):
    def fail():
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(*fault_patch("write", 1, fail))
    with raises_key(key, path=file) as caught:
        write(file, b"another")
    assert key != "file.not_writable" or caught.value.parameters["reason"] == os.strerror(number)


def test_content_is_flushed_before_the_rename(file, monkeypatch):
    order = []
    fsync = os.fsync
    replace = os.replace
    monkeypatch.setattr(os, "fsync", lambda number: (order.append("fsync"), fsync(number)))
    monkeypatch.setattr(os, "replace", lambda *paths: (order.append("replace"), replace(*paths)))
    write(file, b"another")
    flushed_folder = [] if os.name == "nt" else ["fsync"]  # a power cut must not undo the rename
    assert order == ["fsync", "replace", *flushed_folder]


WRITER = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from adt_core.files import write
write(Path(sys.argv[2]), b"from another process")
"""


def other_process(path: Path) -> None:
    """Write a file in another process."""
    subprocess.run([sys.executable, "-c", WRITER, str(ROOT), str(path)], check=True)


def test_leftovers_of_killed_processes_are_removed(tmp_path):
    left = tmp_path / f".0123{PART}"
    foreign = tmp_path / ".download.part"
    for path in (left, foreign):
        path.write_bytes(b"half")
    other_process(tmp_path / "o.json")
    assert not left.exists() and foreign.exists()


def test_a_file_that_another_process_removed_is_written_again(file, monkeypatch):
    replace = os.replace

    def remove_first(part, path):
        monkeypatch.setattr(os, "replace", replace)
        other_process(file.with_name("other.json"))  # between writing and renaming
        assert not part.exists()
        replace(part, path)

    monkeypatch.setattr(os, "replace", remove_first)
    write(file, b"another")
    assert file.read_bytes() == b"another" and {path.name for path in file.parent.iterdir()} == {"o.json", "other.json"}


def test_a_removed_folder_is_reported(file, monkeypatch):
    def gone(part, path):
        os.unlink(part)
        os.unlink(file)
        file.parent.rmdir()
        raise FileNotFoundError(errno.ENOENT, "No such file or directory")

    monkeypatch.setattr(os, "replace", gone)
    with raises_key("file.not_writable", reason="No such file or directory"):
        write(file, b"another")


@pytest.mark.parametrize("before", [b"", b"one\n", b"one\nha", b"half", b"caf\xc3"])
def test_lines_are_complete_after_any_content(tmp_path, before):
    """The last line of a killed process may be complete except for its line break. It must not be lost."""
    path = tmp_path / "lines"
    path.write_bytes(before)
    add_line(path, "two")
    add_line(path, "three")
    assert path.read_bytes() == b"".join(line + b"\n" for line in [*before.splitlines(), b"two", b"three"])


def test_lines_are_not_appended_to_hard_links(tmp_path):
    (tmp_path / "pack").mkdir()
    (tmp_path / "theirs").write_text("theirs\n", encoding="utf-8")
    (tmp_path / "pack" / "a.jsonl").hardlink_to(tmp_path / "theirs")
    with raises_key("file.is_hard_link", path="a.jsonl"):
        add_line(tmp_path / "pack" / "a.jsonl", "{}")
    assert (tmp_path / "theirs").read_text(encoding="utf-8") == "theirs\n"


def test_appending_to_a_full_disk(tmp_path, monkeypatch):
    path = tmp_path / "runs.jsonl"
    add_line(path, "one")
    with monkeypatch.context() as patch:
        patch.setattr(*fault_patch("write", 1, full_disk))
        with raises_key("file.disk_full", path="runs.jsonl"):
            add_line(path, "two")
    assert path.read_text(encoding="utf-8") == "one\n", "the part that was written is removed"
    add_line(path, "three")
    assert path.read_text(encoding="utf-8").splitlines() == ["one", "three"]


def test_lines_have_a_maximum_length(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_bytes(b"a\r\n\nbcd\nlast")
    assert list(bounded_lines(path, 4)) == [b"a\r\n", b"\n", b"bcd\n", b"last"]
    with open(path, "ab") as file:
        file.truncate(2**33)  # a line of 8 GiB, which takes no space on the disk
    with pytest.raises(OSError, match="line 4 has more than 1000 bytes"):
        list(bounded_lines(path, 1000))
