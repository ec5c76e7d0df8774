"""Lists in an object store, such as `--output s3://bucket/coco`, through the library fsspec.

A run works on a temporary folder, the *mirror*, which holds what the run needs of the object store. :meth:`Mirror.push`
copies every finished file, and deletes what the run has deleted. So the rest of the pack knows only files.

An object store replaces an object at once or not at all, but it cannot append, and it has no locks. Therefore:

- The name of every object that is written contains the shard, so each has one writer.
- Of a finished tar, the mirror keeps only the records (`records/NAME.tar`), in a sparse file of the tar's size. A run
  that continues the list reads these, and not the images.
- Lines are written to the mirror, and their objects are replaced once a minute.
"""

from __future__ import annotations

import os
import re
import tarfile
import time
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import fields, replace
from io import BytesIO
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from ..errors import AdtError, pip_install
from ..files import list_visible, opened, write
from ..run.store import image_number
from ..run.tars import INDEX, is_tar
from ..untrusted_tar import small_members
from .args import WEBDATASET, GenerateArgs

LINES_INTERVAL = 60.0
"""Seconds between two copies of the files with one line per image."""
RECORDS = "records"
"""Subfolder with the records of each tar."""
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]+):/(.+)")
"""Text of a path that was made from a URL. `Path` joins the slashes after the scheme. A drive has only one letter."""
_SHARD = re.compile(r"(?:.*-)?([0-9]+)-of-([0-9]+)(?:-[0-9]+)?\.[a-z]+")
"""Name of a tar, or of a file with lines, of a shard."""
_Settings = TypeVar("_Settings")


def url_of(path: Path) -> str | None:
    """Return the URL from which a path was made, or None if it is a path on this machine."""
    match = _SCHEME.fullmatch(path.as_posix())
    if match is None:
        return None
    return f"{match[1]}://{'/' if match[1] in ('file', 'local') else ''}{match[2]}"


@contextmanager
def mirror(shard: tuple[int, int] = (1, 1)) -> Iterator[Mirror]:
    """Make a mirror. At the end of the block, copy all files, and delete the mirror. Errors name URLs, not its paths.

    Args:
        shard: (I, N) of the run. Files of the other shards of N are not copied to the mirror.
    """
    with TemporaryDirectory(prefix="adt-tree-", ignore_cleanup_errors=True) as folder:
        found = Mirror(Path(folder), shard)
        try:
            try:
                yield found
            except BaseException:
                with suppress(AdtError):
                    found.push(complete=True)
                raise
            found.push(complete=True)
        except AdtError as error:
            error.args = (error.message.map(found.with_urls),)
            raise


class Mirror:
    """Temporary folder with the files of a run whose outputs are URLs. Without URLs, it stays empty.

    The file `FOLDER/s3/bucket/name` is the object `s3://bucket/name`.
    """

    def __init__(self, folder: Path, shard: tuple[int, int] = (1, 1)):
        """Make the mirror of an empty folder; arguments as in :func:`mirror`."""
        self._folder = folder
        self._shard = shard
        self._states: dict[Path, tuple[int, int]] = {}
        """Modification time in ns and size of each file that equals its object."""
        self._lines_pushed = time.monotonic()

    def of_generate(self, args: GenerateArgs) -> GenerateArgs:
        """Return the arguments of `generate` with paths in the mirror instead of URLs, and copy what the run needs.

        Raises:
            AdtError: If the output is a URL, and the run does not write tars, or if a URL cannot be reached.
        """
        files = args.files
        output = files.output
        url = url_of(output)
        if url is not None:
            if args.files.format != WEBDATASET or args.inputs.prompts is None:
                raise AdtError("object_store.only_tars", url=url)
            self._pull(output, self._is_output)
            files = replace(files, output=self._path(url))
        return replace(args, files=self.local(files), inputs=self.local(args.inputs))

    def local(self, settings: _Settings) -> _Settings:
        """Return settings with paths in the mirror instead of URLs, and copy the existing files of these names."""
        given = {field.name: getattr(settings, field.name) for field in fields(settings)}  # type: ignore[arg-type]
        changed = {
            name: tuple(map(self._file, value)) if isinstance(value, tuple) else self._file(value)
            for name, value in given.items()
            if isinstance(value, Path | tuple)
        }
        return replace(settings, **changed)  # type: ignore[type-var]

    def with_urls(self, text: str) -> str:
        """Return a message with URLs instead of paths in the mirror."""
        pattern = re.compile(re.escape(f"{self._folder}{os.sep}") + r"([a-z0-9+.-]+)[\\/]")
        return pattern.sub(r"\1://", text)

    def push(self, complete: bool = False) -> None:
        """Copy changed files to the object store. Then delete the objects of files that the run has deleted.

        Args:
            complete: Whether to copy also lines that are less than a minute old.
        """
        with_lines = complete or time.monotonic() - self._lines_pushed > LINES_INTERVAL
        if with_lines:
            self._lines_pushed = time.monotonic()
        present = [path for path in list_visible(self._folder, "**/*") if path.is_file()]
        changed = [path for path in present if _state(path) != self._states.get(path)]
        # A shard knows only its own tars, so the run without shards lists them in the index.
        omitted = INDEX if self._shard[1] > 1 else ""
        wanted = [path for path in changed if path.name != omitted and (with_lines or path.suffix != ".jsonl")]
        for tar in (path for path in wanted if is_tar(path.name)):
            self._push_tar(tar)
        others = [path for path in wanted if not is_tar(path.name)]
        self._put({path: self._url(path) for path in others})
        self._states |= {path: _state(path) for path in others}
        for path in self._states.keys() - set(present):
            self._delete(path)

    def _push_tar(self, path: Path) -> None:
        """Copy a tar, and a tar with only its records, which then replaces it in the mirror.

        The state is stored before the tar is replaced. So an interrupted run never copies the records over the tar.
        """
        self._put({path: self._url(path)})
        records = self._folder / f".{RECORDS}.tar"
        content = BytesIO()
        with opened(path) as file, tarfile.TarFile(fileobj=content, mode="w", format=tarfile.USTAR_FORMAT) as tar:
            for name, record in small_members(file, ".json"):
                member = tarfile.TarInfo(name)
                member.size = len(record)
                tar.addfile(member, BytesIO(record))
        write(records, content.getvalue())
        self._put({records: self._url(_records_path(path))})
        os.truncate(records, path.stat().st_size)
        self._states[path] = _state(records)
        os.replace(records, path)

    def _put(self, urls: Mapping[Path, str]) -> None:
        """Copy files to URLs, several at a time if the protocol's library can."""
        by_protocol: dict[str, dict[Path, str]] = {}
        for path, url in urls.items():
            by_protocol.setdefault(url.partition(":")[0], {})[path] = url
        for some in by_protocol.values():
            with _store(next(iter(some.values()))) as (store, _):
                store.put([str(path) for path in some], list(some.values()))

    def _delete(self, path: Path) -> None:
        for gone in [path, _records_path(path)] if is_tar(path.name) else [path]:
            with _store(self._url(gone)) as (store, name), suppress(FileNotFoundError):
                store.rm_file(name)
        del self._states[path]

    def _file(self, path: Any) -> Any:
        """Return the path of an option in the mirror, and copy the files of its shards. Other values stay."""
        url = url_of(path) if isinstance(path, Path) else None
        if url is None:
            return path
        local = self._path(url)
        if local not in self._states:
            name = re.compile(rf"{re.escape(path.stem)}(-[0-9]+-of-[0-9]+)?{re.escape(path.suffix)}l?")
            self._pull(path.parent, lambda found: name.fullmatch(found) is not None and self._is_ours(found), 1)
        return local

    def _pull(self, folder: Path, is_wanted: Callable[[str], bool], depth: int | None = None) -> None:
        """Copy objects to the mirror.

        Args:
            folder: Path that was made from a URL.
            is_wanted: Function that selects objects by their path relative to the folder.
            depth: Number of levels of folders that are searched, or None for all.
        """
        url = url_of(folder) or ""
        with _store(url) as (store, root):
            store.invalidate_cache()
            listed: Mapping[str, Any] = store.find(root, maxdepth=depth, detail=True)
            found = {name.removeprefix(root).lstrip("/"): facts["size"] for name, facts in listed.items()}
            sources = {name: _source(name, found) for name in sorted(found) if is_wanted(name)}
            paths = {name: self._path(f"{url}/{name}") for name in sources}
            store.get([f"{root}/{source}" for source in sources.values()], [str(path) for path in paths.values()])
        for name, path in paths.items():
            os.truncate(path, found[name])  # of a tar, only the records are copied
            self._states[path] = _state(path)

    def _is_output(self, name: str) -> bool:
        """Return whether a run needs an object of its output: the index, a tar, or an image that waits for its tar."""
        number = image_number(name)
        index, count = self._shard
        if number is not None:
            return number % count == index % count
        return name == INDEX or is_tar(name) and self._is_ours(name)

    def _is_ours(self, name: str) -> bool:
        """Return whether a file may have images of this shard. With another N, any file may have some."""
        match = _SHARD.fullmatch(name)
        return match is None or int(match[2]) != self._shard[1] or int(match[1]) == self._shard[0]

    def _path(self, url: str) -> Path:
        scheme, _, rest = url.partition("://")
        return self._folder.joinpath(scheme, *PurePosixPath(rest.lstrip("/")).parts)

    def _url(self, path: Path) -> str:
        scheme, *parts = path.relative_to(self._folder).parts
        return url_of(Path(f"{scheme}:/{'/'.join(parts)}")) or ""


@contextmanager
def _store(url: str) -> Iterator[tuple[Any, str]]:
    """Yield the fsspec file system of a URL, and the path in it. Errors become one sentence.

    The libraries of the protocols raise exceptions of their own, such as botocore's.
    """
    try:
        from fsspec.core import url_to_fs
    except ImportError as error:
        raise AdtError("object_store.no_fsspec", url=url, command=pip_install("fsspec")) from error
    try:
        yield url_to_fs(url)
    except AdtError:
        raise
    except ImportError as error:
        raise AdtError("object_store.no_package", url=url, reason=error) from error
    except Exception as error:
        raise AdtError("object_store.unreachable", url=url, reason=str(error) or type(error).__name__) from error


def _source(name: str, found: Container[str]) -> str:
    """Return the object to read instead of an object: the records of a tar, if they are there."""
    records = f"{RECORDS}/{name}"
    return records if is_tar(name) and records in found else name


def _state(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_mtime_ns, status.st_size


def _records_path(path: Path) -> Path:
    return path.parent / RECORDS / path.name
