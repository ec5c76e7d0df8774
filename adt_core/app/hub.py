"""Process that downloads files of a published model from the Hugging Face Hub.

`download` starts it, and kills it to cancel, which takes effect immediately even if the network does not respond. It
imports huggingface_hub but not torch, so that it starts quickly.

It reads its task from standard input as one line of JSON, `{"parts": [{"repository", "files", "home", "folder"}]}`,
and writes its state to standard output as lines of JSON:

- `{"state": "waiting" | "listing" | "checking" | "downloading", "done": bytes, "total": bytes}`
- `{"error": message}` as the last line if it has failed.

A file is downloaded to `<home>/.adt-tree-download/<hash>.part`, and renamed to `<hash>` after its size and hash are
verified. When all files are complete, they are moved into place. A model is therefore never partially installed, and
the next run resumes an interrupted download, even if it is for another model that needs the same file.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import sys
import threading
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from ..errors import AdtError, one_line
from ..files import inside, is_device, opened, regular

STAGING = ".adt-tree-download"
"""Folder for incomplete downloads in the folder of models. Lists of models skip names with a leading dot."""
MAX_CONNECTIONS = 4
"""Files that are downloaded at the same time."""
_PICKLES = (".bin", ".pt", ".pth", ".ckpt")
_CHUNK = 2**18  # bytes per write; with huggingface_hub's 10 MiB, a cancelled download would lose up to 10 MiB
_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EPERM, errno.EROFS)
_TRIES = 3  # attempts without progress; each may include five attempts of huggingface_hub
_PAUSE = 0.2  # seconds between two state lines


class RemoteFile(NamedTuple):
    """File of a repository.

    Attributes:
        repository: "owner/name".
        revision: Commit hash.
        path: Path in the repository.
        size: Bytes.
        digest: Hexadecimal hash: SHA-256 if it has 64 digits, else the SHA-1 of the git blob.
        home: Folder of models.
        place: Final path.
    """

    repository: str
    revision: str
    path: str
    size: int
    digest: str
    home: Path
    place: Path

    @property
    def staged(self) -> Path:
        """Path of the verified file until all files are complete."""
        return self.home / STAGING / self.digest

    @property
    def part(self) -> Path:
        """Path of the file during the download."""
        return self.staged.with_name(f"{self.digest}.part")


def main() -> None:
    """Run the task on standard input. The exit code is 1 if it fails."""
    task = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    code = 1
    try:
        fetch(task["parts"])
        code = 0
    except AdtError as error:
        _print(error=error.template)
    except OSError as error:
        _print(error=_disk_error(error))
    except Exception:
        traceback.print_exc()
    os._exit(code)  # do not wait for the threads that are still downloading


def fetch(parts: Sequence[dict[str, Any]]) -> None:
    """Download the missing files of a model.

    Args:
        parts: Dictionaries with `repository`, `files` ([] for all), `home`, and `folder` relative to `home`.

    Raises:
        AdtError: If the Hub rejects the request, the disk has too little space, or an existing file differs from the
            published one.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(inside(Path(parts[0]["home"]), STAGING) / "lock")
    Path(lock.lock_file).parent.mkdir(parents=True, exist_ok=True)
    while True:
        try:
            lock.acquire(timeout=_PAUSE)
            break
        except Timeout:
            _print(state="waiting")
    with lock:
        _print(state="listing")
        files = [file for part in parts for file in _list_files(part)]
        missing = [file for file in files if not _is_installed(file)]
        if missing:
            _fetch_files(missing)


def _fetch_files(files: list[RemoteFile]) -> None:
    """Download files, and move them into place after all of them are complete."""
    for home in {file.home for file in files}:
        inside(home, STAGING).mkdir(parents=True, exist_ok=True)
    _check_space(files)
    total = sum(file.size for file in files)
    by_digest = {file.staged: file for file in files}  # a file may be needed in two folders
    pool = ThreadPoolExecutor(MAX_CONNECTIONS)  # a context manager would wait for the other files after an error
    waiting = {pool.submit(_fetch_file, file) for file in by_digest.values()}
    while waiting:
        done, waiting = wait(waiting, timeout=_PAUSE, return_when=FIRST_EXCEPTION)
        for job in done:
            job.result()
        _print(state="downloading", done=sum(map(_size_so_far, files)), total=total)
    uses = Counter(file.staged for file in files)
    for file in _in_order(files):
        uses[file.staged] -= 1
        _move(file, keep=uses[file.staged] > 0)


# ---- the Hub ---------------------------------------------------------------------------------------------------------


def _list_files(part: dict[str, Any]) -> list[RemoteFile]:
    """Return the required files of a part with the size and hash that the Hub publishes."""
    from huggingface_hub import HfApi

    repository = part["repository"]
    home = Path(part["home"])
    with _explain_errors(repository):
        info = HfApi().model_info(repository, files_metadata=True)
    listed = {sibling.rfilename: sibling for sibling in info.siblings or []}
    missing = [name for name in part["files"] if name not in listed]
    if missing:
        raise AdtError(
            f"{repository} has no {missing[0]} on {_endpoint()}; report it, or put the file in place by hand."
        )
    files = []
    for name in part["files"] or _required(list(listed)):
        file = listed[name]
        digest, size = (file.lfs.sha256, file.lfs.size) if file.lfs else (file.blob_id, file.size)
        if not re.fullmatch("[0-9a-f]{40}([0-9a-f]{24})?", str(digest)) or not isinstance(size, int) or size < 0:
            raise AdtError(
                f"{_endpoint()} publishes no size and hash of {name} of {repository}; use another HF_ENDPOINT."
            )
        place = inside(home, *PurePosixPath(part["folder"], _check_path(name, repository)).parts)
        files.append(RemoteFile(repository, info.sha or "main", name, size, digest, home, place))
    return files


def _required(names: list[str]) -> list[str]:
    """Return the files of a repository that a model may need: no pickles in folders with safetensors files."""
    folders = {PurePosixPath(name).parent for name in names if name.endswith(".safetensors")}
    return [
        name
        for name in names
        if not (name.endswith(_PICKLES) and PurePosixPath(name).parent in folders) and name != ".gitattributes"
    ]


def _check_path(name: str, repository: str) -> str:
    """Return a path of a repository. Raise AdtError if it may lead out of the model's folder."""
    parts = name.split("/")
    if any(part in ("", ".", "..") or is_device(part) or re.search(r'[\\:*?"<>|\x00-\x1f]', part) for part in parts):
        raise AdtError(f"{repository} has a file called {name!r}, which can't be a file in a folder of models.")
    return name


def _fetch_file(file: RemoteFile) -> None:
    """Download a file to the staging folder, continuing an earlier download, and verify it."""
    if file.staged.exists():
        return
    file.part.touch()
    with (
        open(file.part, "r+b", buffering=0, opener=regular) as target,
        _explain_errors(f"{file.path} of {file.repository}"),
    ):
        if os.fstat(target.fileno()).st_size > file.size:
            target.truncate(0)
        tries = 0
        while tries < _TRIES:
            start = target.seek(0, os.SEEK_END)
            try:
                _transfer(file, target, start)
                break
            except Exception as error:
                tries = 0 if os.fstat(target.fileno()).st_size > start else tries + 1
                if not _is_transient(error) or tries == _TRIES:
                    raise
                time.sleep(1)
    if not _is_published(file, file.part):
        file.part.unlink()
        raise AdtError(
            f"{file.path} of {file.repository} arrived damaged: its hash is not the published one; run it again to "
            "download this file again."
        )
    os.replace(file.part, file.staged)


def _transfer(file: RemoteFile, target: Any, start: int) -> None:
    """Append the remaining bytes of a file, from `start`. Only some versions of `http_get` retry."""
    from huggingface_hub import constants, file_download, hf_hub_url
    from huggingface_hub.utils import build_hf_headers

    for module in (constants, file_download):  # old versions read it from `file_download`
        module.DOWNLOAD_CHUNK_SIZE = _CHUNK  # type: ignore[attr-defined]
    url = hf_hub_url(file.repository, file.path, revision=file.revision)
    file_download.http_get(url, target, resume_size=start, headers=build_hf_headers(), expected_size=file.size)


def _is_transient(error: Exception) -> bool:
    """Return whether a request may succeed if it is repeated, because the connection was interrupted."""
    from huggingface_hub.utils import OfflineModeIsEnabled

    answered = getattr(error, "response", None) is not None
    return not (answered or isinstance(error, OfflineModeIsEnabled) or getattr(error, "errno", None) in _DISK_ERRORS)


@contextmanager
def _explain_errors(what: str) -> Iterator[None]:
    """Convert errors of huggingface_hub, and of writing its downloads, to an AdtError.

    Args:
        what: Repository or file to name in the message.
    """
    try:
        yield
    except Exception as error:
        on_disk = isinstance(error, OSError) and error.errno in _DISK_ERRORS
        raise AdtError(_disk_error(error, what) if on_disk else _hub_error(error, what)) from error


def _hub_error(error: Exception, what: str) -> str:
    """Return the message for an error of huggingface_hub."""
    from huggingface_hub import utils as errors  # available there in every version

    status = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(error, errors.OfflineModeIsEnabled):
        return f"{what} can't be downloaded, because HF_HUB_OFFLINE is set; unset it, and run it again."
    if isinstance(error, errors.GatedRepoError):
        return (
            f"{what} is gated: accept its terms on {_endpoint()}, create a token there, set HF_TOKEN to it, and start "
            "again."
        )
    if isinstance(error, errors.RepositoryNotFoundError) or status in (401, 403, 404):
        return f"{_endpoint()} has no {what} that you may read (HTTP {status}); check HF_ENDPOINT and HF_TOKEN."
    if status is not None:
        return f"{_endpoint()} answered HTTP {status} for {what}; run it again later: what has arrived is kept."
    problem = one_line(str(error))[:200] or type(error).__name__
    return (
        f"The connection to {_endpoint()} failed for {what} ({problem}); check the network, HF_ENDPOINT and the proxy, "
        "and run it again: what has arrived is kept."
    )


def _endpoint() -> str:
    from huggingface_hub import constants

    return constants.ENDPOINT


# ---- the disk --------------------------------------------------------------------------------------------------------


def _is_installed(file: RemoteFile) -> bool:
    """Return whether a file is in place. Raise AdtError if a different file is, because no file is replaced."""
    if not file.place.exists():
        return False
    _print(state="checking")
    if _is_published(file, file.place):
        return True
    raise AdtError(
        f"{file.place} exists and differs from the published file ({file.path} of {file.repository}); move it to "
        "another folder, and run it again."
    )


def _is_published(file: RemoteFile, path: Path) -> bool:
    """Return whether the file at a path has the published size and hash."""
    if path.stat().st_size != file.size:
        return False
    is_sha256 = len(file.digest) == 64
    digest = hashlib.sha256() if is_sha256 else hashlib.sha1(b"blob %d\0" % file.size, usedforsecurity=False)
    with opened(path) as stream:
        while block := stream.read(2**20):
            digest.update(block)
    return digest.hexdigest() == file.digest


def _size_so_far(file: RemoteFile) -> int:
    """Return the number of downloaded bytes of a file."""
    for path in (file.staged, file.part):
        try:
            return min(path.stat().st_size, file.size)
        except OSError:
            continue
    return 0


def _check_space(files: Sequence[RemoteFile]) -> None:
    """Raise AdtError if a disk has too little free space for the missing bytes."""
    needed: dict[Path, int] = defaultdict(int)
    for file in files:
        needed[file.home] += file.size - _size_so_far(file)
    for home, size in needed.items():
        free = shutil.disk_usage(home).free
        if size > free:
            raise AdtError(
                f"The download needs {_gigabytes(size)} in {home}, where {_gigabytes(free)} are free; delete files, or "
                "choose a folder on another disk."
            )


def _in_order(files: Sequence[RemoteFile]) -> Iterator[RemoteFile]:
    """Yield files so that a model is recognised as installed only at the end: its `config.json` is last."""
    own = files[0].repository
    yield from sorted(files, key=lambda file: (file.repository == own, file.place.name == "config.json"))


def _move(file: RemoteFile, keep: bool) -> None:
    """Move a file from the staging folder into place without replacing another file.

    Args:
        file: File to move.
        keep: Keep a copy in the staging folder, because another folder needs it.
    """
    file.place.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(file.staged, file.place)
    except OSError:  # the file exists, or the file system has no hard links
        if _is_installed(file):
            return
        shutil.copyfile(file.staged, file.place) if keep else os.rename(file.staged, file.place)
    if not keep:
        file.staged.unlink(missing_ok=True)


def _disk_error(error: BaseException, name: str = "The folder of models") -> str:
    """Return the message for an error of writing a file. The error's file name takes precedence over `name`."""
    name = getattr(error, "filename", None) or name
    if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
        return f"{name} can't be written: the disk is full; delete files, and run it again: what has arrived is kept."
    problem = getattr(error, "strerror", None) or one_line(str(error))
    return (
        f"{name} can't be written ({problem}); give access to the folder, and run it again: what has arrived is kept."
    )


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:.1f} GB"


# ---- the process that started this one -------------------------------------------------------------------------------


def _print(**line: Any) -> None:
    """Write a line of JSON to standard output, and exit if the pipe is closed."""
    try:
        print(json.dumps(line), flush=True)
    except OSError:
        os._exit(1)


def _end_with_parent() -> None:
    """Exit when the parent process ends, which closes standard input."""
    sys.stdin.buffer.read()
    os._exit(1)
