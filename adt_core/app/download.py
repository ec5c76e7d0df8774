"""Downloads of published models.

A published model has one or more parts, such as the target and its drafter. The files of a part are downloaded one
after another. Each file arrives beside its final path, under a hidden name that ends in `PART`. After its size and hash
are verified, it keeps this name until all files of the model are complete. Then all of them are renamed. So a cancelled
download leaves no incomplete model, and the next run resumes it.

The folder `STATE` in a folder of models contains its lock, and a record of each repository: the commit and the hashes
of the first download. Later downloads request this commit and compare the hashes.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sys
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from fnmatch import fnmatchcase
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, TypeVar

from tqdm import tqdm

from ..errors import AdtError, Check, shown
from ..files import inside, is_device, opened, parse_json, read_text, refuse_links, regular, to_json, write_in, writing
from ..messages import Message, message
from ..models.load import find_published, published
from ..models.reading.paths import STAGE, missing_shards, name_of, resolve, weight_files
from ..models.repositories import Download, in_gigabytes, licences, page_of
from ..run.model_files import default_folder
from .hub import OFTEN, FailedAttempt, Listed, UnknownCommit, endpoint, list_files, read_file

STATE = ".adt-tree-download"
"""Name of the folder for the lock and the records. Lists of models do not show it, as its name starts with a dot."""
PART = ".adt-tree.download"
"""Suffix of a file until all files of its model are complete."""
_READ = (
    *("config.json", "*.safetensors", "*.safetensors.index.json"),
    *("pytorch_model*.bin", "pytorch_model*.bin.index.json"),
    *("tokenizer.json", "text_tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    "scheduler_config.json",
)
"""Patterns of the names of files that a loader reads. No other file of a repository is downloaded."""
PAUSE = 1.0
"""Seconds between two attempts."""
_TRIES = 3  # attempts without progress after which a download fails
_MARGIN = 500_000_000  # bytes that stay free on the disk
_RATE_WINDOW = 5.0  # seconds over which the download rate is measured
_REPORTS = 0.2  # seconds between two progress reports
T = TypeVar("T")


class DownloadProgress(NamedTuple):
    """State of a download.

    Attributes:
        message: Text for users, which ComfyUI's page can translate.
        done: Number of downloaded bytes, including the bytes from earlier, interrupted downloads.
        total: Number of bytes to download; 0 while no file is being downloaded.
    """

    message: Message
    done: int = 0
    total: int = 0


OnProgress = Callable[[DownloadProgress], None]


class DownloadPart(NamedTuple):
    """Part of a published model, and the folder to store it in.

    Attributes:
        download: Repository and files.
        home: Folder that contains all models (for a drafter: all drafters).
    """

    download: Download
    home: Path

    @property
    def folder(self) -> Path:
        """Folder of the files.

        If `home` has a folder of this model, it is used, even if it is in the layout of Hugging Face's cache, or if its
        name has other capital letters.
        """
        usual = self.home / self.download.folder
        with suppress(OSError, AdtError):
            for folder in [] if usual.is_dir() else sorted(self.home.iterdir()):
                if name_of(folder).lower() == self.download.folder.lower():
                    found = resolve(folder, "target")
                    return found.parent if found.name == STAGE else found
        return usual

    @property
    def is_complete(self) -> bool:
        """True if all files are there, according to their names and the indexes of the weights."""
        if self.download.files:
            return all((self.folder / name).is_file() for name in self.download.files)
        folders = [self.folder / name for name in self.download.weights]
        with suppress(AdtError):
            return all((folder / "config.json").is_file() and weight_files(folder) for folder in folders)
        return False


class _File(NamedTuple):
    """File to download: its repository "owner/name", its commit, its entry in the list of files, and its final path."""

    repository: str
    commit: str
    listed: Listed
    place: Path

    @property
    def part(self) -> Path:
        """Path until all files of the model are complete."""
        return self.place.with_name(f".{self.place.name}.{self.listed.digest[:12]}{PART}")

    def arrived(self) -> int:
        return self.part.stat().st_size if self.part.is_file() else 0

    def __str__(self) -> str:
        return f"{self.listed.path} of {self.repository}"


def find_parts(name: str, home: Path, drafters: Path | None = None) -> list[DownloadPart]:
    """Return the parts of a published model, including its drafter.

    Args:
        name: Name of a published model, or of one of its parts, such as "flan-t5-xl".
        home: Folder of all models.
        drafters: Folder of all drafters. The default for a `home` called "ar_image" is the folder "ar_image_drafters"
            next to it, else `home` itself.

    Raises:
        AdtError: If no published model or part has this name.
    """
    drafters = drafters or (home.with_name("ar_image_drafters") if home.name == "ar_image" else home)
    rows = [row for row in published() if row.downloads]
    row = find_published(name)
    parts = []
    for one in [row] if row else rows:
        parts += [DownloadPart(part, home) for part in one.downloads]
        parts += [DownloadPart(one.drafter, drafters)] if one.drafter is not None else []
    found = parts if row else [part for part in parts if part.download.name.lower() == name.lower()][:1]
    if not found:
        names = ", ".join(row.name for row in rows)
        raise AdtError("download.unknown_model", name=shown(name), names=names)
    return found


def download_terms(parts: Sequence[DownloadPart]) -> Message:
    """Return the licences of parts, and the page of the first part, where gated models are accepted."""
    downloads = [part.download for part in parts]
    return message("download.licence", licence=licences(downloads), page=page_of(downloads[0].repository))


def download_parts(parts: Sequence[DownloadPart], on_progress: OnProgress, check: Check) -> None:
    """Download the missing files of a model. An interrupted download is resumed.

    Args:
        parts: Parts of the model. The first part is the model's own repository.
        on_progress: Progress callback, called a few times per second.
        check: Cancellation callback, called ten times per second.

    Raises:
        AdtError: If the Hub rejects the request or cannot be reached, if it lacks files or has others than before, if
            existing files differ from the published ones, or if the disk has too little space.
    """
    meter = _Meter(on_progress, check)
    with _locked({os.path.realpath(part.home) for part in parts}, meter):
        meter.say("listing")
        listed = [file for part in parts for file in _list(part, meter)]
        files = list({file.place: file for file in listed}.values())  # a file that the table names replaces another
        missing = [file for file in files if not _is_installed(file, meter)]
        _check_space(missing)
        for part in parts:
            _record(part, files)
        meter.files = missing
        for file in missing:
            with writing(file.part):
                _fetch(file, meter)
        own = parts[0].download.repository
        # Programs recognise a model by its `config.json`, so the model's own is last.
        for file in sorted(missing, key=lambda file: (file.repository == own, file.place.name == "config.json")):
            with writing(file.place):
                os.rename(file.part, file.place)
        for path in [path for part in parts for path in _leftovers(part)]:
            path.unlink(missing_ok=True)


@contextmanager
def _locked(homes: set[str], meter: _Meter) -> Iterator[None]:
    """Lock folders of models, always in the same order. Wait while another download uses one of them."""
    from filelock import FileLock, Timeout

    with ExitStack() as stack:
        for home in sorted(homes):
            place = inside(Path(home), STATE, "lock")
            with writing(place):
                place.parent.mkdir(parents=True, exist_ok=True)
                lock = FileLock(place)
                while not lock.is_locked:
                    try:
                        stack.enter_context(lock.acquire(timeout=0))
                    except Timeout:
                        meter.say("waiting")
                        meter.pause(OFTEN)
        yield


# ---- lists -----------------------------------------------------------------------------------------------------------


def _list(part: DownloadPart, meter: _Meter) -> list[_File]:
    """Return the files of a part that a loader reads.

    The commit is from the snapshot to complete, else from the table, else from the first download.

    Raises:
        AdtError: If files are missing, too large or others than in the first download.
    """
    repository = part.download.repository
    place = part.folder.relative_to(part.home).parts
    record = _read_record(part)
    is_snapshot = place[-3:-1] == (f"models--{repository.replace('/', '--')}", "snapshots")
    snapshot = place[-1] if is_snapshot and re.fullmatch("[0-9a-f]{40}", place[-1]) else ""
    wanted = snapshot or part.download.commit or record["commit"]
    try:
        commit, listed = _retried(lambda _: list_files(repository, wanted, meter.check), lambda: 0, meter)
    except UnknownCommit as error:
        if wanted != record["commit"]:
            raise
        raise AdtError("download.not_the_first", error=error, record_file=_record_file(part)) from error
    files = []
    for file in _required(part.download, listed):
        *folders, name = _names(file.path, repository)
        # The file itself may be a link, as in Hugging Face's cache: it is only read, or replaced if it leads nowhere.
        files.append(_File(repository, commit, file, inside(part.home, *place, *folders) / name))
    for one in files if commit == record["commit"] else ():
        if record["files"].get(one.listed.path, one.listed.digest) != one.listed.digest:
            raise AdtError("download.changed", file=one)
    return files


def _required(download: Download, listed: list[Listed]) -> list[Listed]:
    """Return the files in the list of a repository that a loader reads.

    Raises:
        AdtError: If files are missing, or are together much larger than the table states.
    """
    files = {file.path: file for file in listed}
    if download.files:
        names = list(download.files)
        absent = [name for name in names if name not in files]
    else:
        names = [path for path in files if any(fnmatchcase(PurePosixPath(path).name, one) for one in _READ)]
        safe = {PurePosixPath(path).parent for path in names if path.endswith(".safetensors")}
        names = [path for path in names if not (".bin" in path and PurePosixPath(path).parent in safe)]
        absent = [name for folder in download.weights for name in _absent(folder, names)]
    if absent:
        raise AdtError("download.missing_file", repository=download.repository, file=absent[0], endpoint=endpoint())
    size = sum(files[name].size for name in names)
    if size > 4 / 3 * 1e9 * download.gigabytes or len(names) > 1000:
        raise AdtError(
            "download.other_size",
            repository=download.repository,
            found=in_gigabytes(size / 1e9),
            count=len(names),
            size=download.size,
        )
    return [files[name] for name in names]


def _absent(folder: str, names: list[str]) -> list[str]:
    """Return the names of the files that a folder of a repository lacks."""
    there = {PurePosixPath(name).name for name in names if name.rpartition("/")[0] == folder}
    weights = {name for name in there if name.endswith((".safetensors", ".bin"))}
    absent = {"config.json"} - there | (missing_shards(weights) if weights else {"weights"})
    return [f"{folder}/{name}".lstrip("/") for name in sorted(absent)]


def _names(path: str, repository: str) -> list[str]:
    """Return the names in the path of a file in a repository, after checking that they are names on all systems."""
    names = path.split("/")
    for name in names:
        is_odd = name.endswith((".", " ")) or re.search(r'[\\:*?"<>|\x00-\x1f]', name)  # Windows drops dots and spaces
        if not name or is_odd or is_device(name):
            raise AdtError("download.bad_name", repository=repository, path=path)
    return names


def _record_file(part: DownloadPart) -> Path:
    return inside(part.home, STATE, f"{part.download.repository.replace('/', '--')}.json")


def _read_record(part: DownloadPart) -> dict[str, Any]:
    """Return commit and hashes of the first download of a repository. Both are empty if there was none."""
    file = _record_file(part)
    if not file.exists():
        return {"commit": "", "files": {}}
    try:
        record = parse_json(read_text(file, 64))
        return {"commit": record["commit"] + "", "files": dict(record["files"])}
    except (OSError, LookupError, TypeError, ValueError):
        raise AdtError("download.unreadable", file=file) from None


def _record(part: DownloadPart, files: Sequence[_File]) -> None:
    """Add the commit and the hashes of the files of a part to the record."""
    own = [file for file in files if file.repository == part.download.repository]
    record = _read_record(part)
    for file in own:
        if record["commit"] != file.commit:
            record = {"commit": file.commit, "files": {}}
        record["files"][file.listed.path] = file.listed.digest
    write_in(part.home, f"{STATE}/{_record_file(part).name}", to_json(record))


# ---- files -----------------------------------------------------------------------------------------------------------


def _retried(attempt: Callable[[bool], T], arrived: Callable[[], int], meter: _Meter) -> T:
    """Return the result of `attempt`. Try again after a `FailedAttempt`, at most `_TRIES` times without progress.

    Args:
        attempt: Function whose argument is whether to start again at the first byte.
        arrived: Function that returns the number of bytes that have arrived. Only a new maximum is progress, because a
            server may send the same bytes again and again.
    """
    most = arrived()
    failed = 0
    is_wrong = False
    while True:
        try:
            return attempt(is_wrong)
        except FailedAttempt as problem:
            size = arrived()
            failed = 1 if size > most else failed + 1
            most = max(most, size)
            is_wrong = problem.is_wrong
            if failed == _TRIES:
                raise problem.error from problem
            wait = max(PAUSE, problem.wait)
        meter.say("retrying", failed=failed, tries=_TRIES, seconds=f"{wait:.0f}")
        meter.pause(wait)


def _fetch(file: _File, meter: _Meter) -> None:
    """Download a file to its path `part` and verify it. Resume an interrupted download."""
    size = file.listed.size
    file.part.parent.mkdir(parents=True, exist_ok=True)
    refuse_links(file.part)
    with open(file.part, "ab", opener=regular) as stream:

        def attempt(is_wrong: bool) -> None:
            start = 0 if is_wrong or stream.tell() > size else stream.tell()
            if start < size:
                chunks = read_file(file.repository, file.commit, file.listed, start, meter.tick)
                stream.seek(next(chunks))
                stream.truncate()
                for chunk in chunks:
                    stream.write(chunk)
            stream.flush()
            os.fsync(stream.fileno())
            meter.tell()
            if stream.tell() < size:
                raise FailedAttempt(AdtError("download.broke_off", file=file))
            if not _is_published(file, file.part, meter.tick):
                raise FailedAttempt(AdtError("download.damaged", file=file), is_wrong=True)

        _retried(attempt, stream.tell, meter)


def _is_installed(file: _File, meter: _Meter) -> bool:
    """Return whether a published file already has its final path.

    Raises:
        AdtError: If there is a different file at this path. A download never replaces files.
    """
    if not file.place.exists():
        return False
    meter.say("checking")
    if _is_published(file, file.place, meter.check):
        return True
    raise AdtError("download.file_exists", path=file.place, file=file)


def _is_published(file: _File, path: Path, check: Check) -> bool:
    """Return whether the file at a path has the published size and hash."""
    _, size, digest = file.listed
    found = hashlib.sha256() if len(digest) == 64 else hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
    if path.stat().st_size != size:
        return False
    with opened(path) as stream:
        while block := stream.read(2**20):
            check()
            found.update(block)
    return found.hexdigest() == digest


def _check_space(files: Sequence[_File]) -> None:
    """Raise AdtError if a disk has too little free space for the missing bytes."""
    needed: dict[int, int] = defaultdict(int)
    for file in files:
        folder = next(folder for folder in file.place.parents if folder.exists())
        disk = folder.stat().st_dev
        needed[disk] += file.listed.size - file.arrived()
        free = shutil.disk_usage(folder).free
        if needed[disk] + _MARGIN > free:
            size = sum(one.listed.size - one.arrived() for one in files) + _MARGIN
            sizes = {"needed": in_gigabytes(size / 1e9), "free": in_gigabytes(free / 1e9)}
            raise AdtError("download.disk_full", folder=folder, **sizes)


def _leftovers(part: DownloadPart) -> Iterator[Path]:
    """Yield the files of a part that are not renamed yet, of this commit and earlier ones."""
    names = part.download.files if part.folder == part.home else ("",)
    return chain.from_iterable(part.folder.rglob(f".{name}*{PART}") for name in names)


def kept_message(parts: Sequence[DownloadPart]) -> Message:
    """Return the message for a cancelled download: how many bytes are on the disk, and how to resume."""
    size = sum(path.stat().st_size for path in {path for part in parts for path in _leftovers(part)})
    unit_size, unit = _unit_of(size)
    return message("download.kept", kept=f"{size / unit_size:.1f}", unit=unit)


class _Meter:
    """Callbacks of a download, its files, and the rate of the last seconds."""

    def __init__(self, on_progress: OnProgress, check: Check):
        self._on_progress = on_progress
        self.check = check
        self.files: list[_File] = []
        self._samples: deque[tuple[float, int]] = deque()  # (time, bytes) of the last _RATE_WINDOW seconds

    def say(self, state: str, **parameters: str | int) -> None:
        """Report a state without a number of bytes."""
        self._on_progress(DownloadProgress(message(f"download.{state}", **parameters)))

    def pause(self, seconds: float) -> None:
        """Wait for a time, and check for cancellation."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self.check()
            time.sleep(min(OFTEN, left))

    def tick(self) -> None:
        """Check for cancellation, and report the bytes a few times per second."""
        self.check()
        if not self._samples or time.monotonic() - self._samples[-1][0] >= _REPORTS:
            self.tell()

    def tell(self) -> None:
        """Report how many bytes of `files` are on the disk."""
        now = time.monotonic()
        done = sum(file.arrived() for file in self.files)
        total = sum(file.listed.size for file in self.files)
        self._samples.append((now, done))
        while now - self._samples[0][0] > _RATE_WINDOW:
            self._samples.popleft()
        elapsed = now - self._samples[0][0]
        rate = (done - self._samples[0][1]) / elapsed if elapsed > 0 else 0.0
        self._on_progress(DownloadProgress(progress_message(done, total, rate), done, total))


def _unit_of(total: int) -> tuple[float, str]:
    """Return the unit of a number of bytes: its size in bytes, and its name."""
    return (1e9, "GB") if total >= 1e9 else (1e6, "MB")


def progress_message(done: int, total: int, rate: float) -> Message:
    """Return the message for a number of bytes that have arrived.

    Args:
        rate: Bytes per second; 0 or less if it is not known.
    """
    size, unit = _unit_of(total)
    numbers = {"done": f"{done / size:.2f}", "total": f"{total / size:.2f}", "unit": unit}
    if rate <= 0:
        return message("download.progress", **numbers)
    minutes, seconds = divmod(round((total - done) / rate), 60)
    return message("download.rate", **numbers, rate=f"{rate / 1e6:.1f}", left=f"{minutes}:{seconds:02d}")


# ---- the command -----------------------------------------------------------------------------------------------------


def list_models() -> str:
    """Return the published models as a text table."""
    header = ("name", "download", "memory bf16 / int8 / int4", "licence")
    rows = [
        (row.name, row.size, f"{' / '.join(map(str, row.memory))} GiB", row.licences)
        for row in published()
        if row.downloads
    ]
    widths = [max(map(len, column)) for column in zip(header, *rows)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in (header, *rows))


def run(name: str, to: Path | None = None) -> str:
    """Download a published model or one of its parts with a progress bar, and return a line with its path.

    Args:
        to: Folder of all models (default: `default_folder()`).

    Raises:
        AdtError: If the download fails.
    """
    parts = find_parts(name, to or default_folder())
    own = parts[0]
    tqdm.write(f"{own.download.name}: {download_terms(parts)}", file=sys.stderr)
    with tqdm(unit="B", unit_scale=True, leave=False) as bar:

        def on_progress(progress: DownloadProgress) -> None:
            bar.total = progress.total or None
            bar.bar_format = None if progress.total else "{desc}"
            bar.set_description_str("Downloading" if progress.total else progress.message, refresh=False)
            bar.n = progress.done
            bar.refresh()

        download_parts(parts, on_progress, lambda: None)
    return f"{own.download.name} is complete: {own.folder if own.download.folder else own.home / own.download.name}"
