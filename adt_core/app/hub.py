"""Process that downloads files of a published model from the Hugging Face Hub.

The module `download` starts this process. To cancel a download, `download` kills the process, so that cancelling works
immediately even if the network does not respond. This module imports huggingface_hub but not torch, so that the process
starts quickly.

The process reads its task from standard input as one line of JSON:
`{"parts": [{"repository", "files", "home", "folder"}]}`. It writes its state to standard output as lines of JSON:

- `{"state": "waiting" | "listing" | "checking" | "downloading", "done": bytes, "total": bytes}`
- `{"error": message}` as the last line, if the download has failed.

Each file is downloaded to `<home>/.adt-tree-download/<hash>.part`. After its size and hash are verified, the file is
renamed to `<hash>`. When all files of the model are complete, they are moved into the model's folder. So a cancelled
download leaves no incomplete model. The next run resumes an interrupted download. A file that several models need is
downloaded only once.
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
"""Name of the folder for incomplete downloads. Lists of models do not show it, because its name starts with a dot."""
MAX_CONNECTIONS = 4
"""Number of files that are downloaded at the same time."""
_PICKLES = (".bin", ".pt", ".pth", ".ckpt")
_CHUNK = 2**18  # bytes per write; huggingface_hub's default would lose up to 10 MiB when a user cancels
_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EPERM, errno.EROFS)
_TRIES = 3  # give up after so many attempts without a new byte; in each, huggingface_hub itself may try five times
_PAUSE = 0.2  # seconds between two state lines


class RemoteFile(NamedTuple):
    """File of a repository.

    Attributes:
        repository: "owner/name".
        revision: Commit hash.
        path: Path in the repository.
        size: Size in bytes.
        digest: Hash in hexadecimal digits. 64 digits are the SHA-256 of the file, 40 digits the SHA-1 of the git blob.
        home: Folder that contains all models (for a drafter: all drafters).
        place: Final path on this machine.
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
        """Path of the verified file. The file stays there until all files of the model are complete."""
        return self.home / STAGING / self.digest

    @property
    def part(self) -> Path:
        """Path of the file during the download."""
        return self.staged.with_name(f"{self.digest}.part")


def main() -> None:
    """Read a task from standard input and run it. Exit with code 0 after success, and with 1 after an error."""
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
        parts: Dictionaries with the keys `repository`, `files`, `home` and `folder`. An empty list of `files` selects
            all files of the repository. `folder` is relative to `home`.

    Raises:
        AdtError: If the Hub rejects the request, if the disk has too little space, or if a file exists and differs from
            the published file.
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
    """Download files. When all files are complete, move them to their final paths."""
    for home in {file.home for file in files}:
        inside(home, STAGING).mkdir(parents=True, exist_ok=True)
    _check_space(files)
    total = sum(file.size for file in files)
    by_digest = {file.staged: file for file in files}  # download a file only once if two folders need it
    pool = ThreadPoolExecutor(MAX_CONNECTIONS)  # after an error, a `with` block would wait for the other files
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
    """Request the list of a repository's files from the Hub, and return the required files with sizes and hashes."""
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
    """Return the names of the files of a repository that a model may need.

    If a folder has safetensors files, the pickle files of this folder are omitted.
    """
    folders = {PurePosixPath(name).parent for name in names if name.endswith(".safetensors")}
    return [
        name
        for name in names
        if not (name.endswith(_PICKLES) and PurePosixPath(name).parent in folders) and name != ".gitattributes"
    ]


def _check_path(name: str, repository: str) -> str:
    """Return the path of a file in a repository. Raise AdtError if the path could leave the model's folder."""
    parts = name.split("/")
    if any(part in ("", ".", "..") or is_device(part) or re.search(r'[\\:*?"<>|\x00-\x1f]', part) for part in parts):
        raise AdtError(f"{repository} has a file called {name!r}, which can't be a file in a folder of models.")
    return name


def _fetch_file(file: RemoteFile) -> None:
    """Download a file to the folder `STAGING` and verify it. Resume an interrupted download of the file."""
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
    """Download the bytes of a file from position `start` on, and append them to `target`.

    Old versions of `http_get` do not retry after an error, so the caller must retry.
    """
    from huggingface_hub import constants, file_download, hf_hub_url
    from huggingface_hub.utils import build_hf_headers

    for module in (constants, file_download):  # old versions of huggingface_hub read the constant from `file_download`
        module.DOWNLOAD_CHUNK_SIZE = _CHUNK  # type: ignore[attr-defined]
    url = hf_hub_url(file.repository, file.path, revision=file.revision)
    file_download.http_get(url, target, resume_size=start, headers=build_hf_headers(), expected_size=file.size)


def _is_transient(error: Exception) -> bool:
    """Return whether an error comes from an interrupted connection. In this case, a repeated request may succeed."""
    from huggingface_hub.utils import OfflineModeIsEnabled

    answered = getattr(error, "response", None) is not None
    return not (answered or isinstance(error, OfflineModeIsEnabled) or getattr(error, "errno", None) in _DISK_ERRORS)


@contextmanager
def _explain_errors(what: str) -> Iterator[None]:
    """Convert an error of huggingface_hub, or of writing a file, to an AdtError.

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
    from huggingface_hub import utils as errors  # all versions of huggingface_hub have the classes there

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
    """Return whether a published file already has its final path.

    Raises:
        AdtError: If there is a different file at this path. A download never replaces files.
    """
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
    """Return how many bytes of a file have been downloaded."""
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
    """Yield the files in the order in which to move them to their final paths.

    The `config.json` of the model itself is last. Programs recognise a model by its `config.json`, so they see the
    model only when it is complete.
    """
    own = files[0].repository
    yield from sorted(files, key=lambda file: (file.repository == own, file.place.name == "config.json"))


def _move(file: RemoteFile, keep: bool) -> None:
    """Move a file from the staging folder to its final path without replacing another file.

    Args:
        file: File to move.
        keep: Whether to keep the file in the staging folder, because another folder also needs this file.
    """
    file.place.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(file.staged, file.place)
    except OSError:  # `place` exists, or the file system has no hard links
        if _is_installed(file):
            return
        shutil.copyfile(file.staged, file.place) if keep else os.rename(file.staged, file.place)
    if not keep:
        file.staged.unlink(missing_ok=True)


def _disk_error(error: BaseException, name: str = "The folder of models") -> str:
    """Return the message for an error of writing a file.

    Args:
        error: The error. If it contains a file name, the message uses this name.
        name: Name to use if the error contains no file name.
    """
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
    """Wait until standard input is closed, and exit. The pipe is closed when the parent process ends."""
    sys.stdin.buffer.read()
    os._exit(1)
