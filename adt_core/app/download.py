"""Downloads of published models.

A published model has one or more parts, such as the target and its drafter. This module finds the parts and starts a
process that downloads them. The module `hub` contains the program of this process.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tqdm import tqdm

from ..errors import AdtError, Check, one_line, shown
from ..messages import TEMPLATES, Message, message
from ..models.downloads import Download, Published
from .checkpoints import find_published, published

ROOT = Path(__file__).resolve().parents[2]
_START = "import sys; sys.path = [sys.argv[1], *filter(None, sys.path)]; from adt_core.app.hub import main; main()"
"""Program of the download process. Its first argument is the root folder of this pack.

The program adds this folder to the folders in which Python searches modules. It cannot rely on the current folder,
because ComfyUI's portable Python for Windows does not search modules in the current folder."""
_POLL = 0.1
"""Seconds between two calls of the cancellation callback `check`."""
_RATE_WINDOW = 5.0
"""Length in seconds of the time window over which the download rate is measured."""


class DownloadProgress(NamedTuple):
    """State of a download.

    Attributes:
        state: "waiting", "listing", "checking" or "downloading".
        done: Number of downloaded bytes, including the bytes from earlier, interrupted downloads.
        total: Number of bytes to download, 0 if it is not yet known.
        rate: Download rate in bytes per second, 0 if it is not yet known.
    """

    state: str
    done: int
    total: int
    rate: float

    @property
    def message(self) -> Message:
        """Progress message for users, which ComfyUI's page can translate."""
        if self.state != "downloading":
            return message(f"download.{self.state}")
        size, unit = (1e9, "GB") if self.total >= 1e9 else (1e6, "MB")
        numbers = {"done": f"{self.done / size:.2f}", "total": f"{self.total / size:.2f}", "unit": unit}
        if self.rate <= 0:
            return message("download.progress", **numbers)
        minutes, seconds = divmod(round((self.total - self.done) / self.rate), 60)
        left = f"{minutes}:{seconds:02d}"
        return message("download.rate", **numbers, rate=f"{self.rate / 1e6:.1f}", left=left)


class DownloadPart(NamedTuple):
    """Part of a published model, and the folder to store it in.

    Attributes:
        download: Repository and files.
        home: Folder that contains all models (for a drafter: all drafters).
    """

    download: Download
    home: Path


def find_parts(name: str, home: Path, drafters: Path | None = None) -> list[DownloadPart]:
    """Return the parts of a published model, including its drafter.

    Args:
        name: Name of a published model, or of one of its parts, such as "flan-t5-xl".
        home: Folder of all models.
        drafters: Folder of all drafters. If `home` is called "ar_image", the default is the folder "ar_image_drafters"
            next to `home`. Otherwise the default is `home` itself.

    Raises:
        AdtError: If no published model or part has this name.
    """
    drafters = drafters or (home.with_name("ar_image_drafters") if home.name == "ar_image" else home)
    row = find_published(name)
    if row is not None:
        return [
            *(DownloadPart(part, home) for part in row.downloads),
            *(DownloadPart(part, drafters) for part in _drafter(row)),
        ]
    rows = [row for row in published() if row.downloads]
    parts = [DownloadPart(part, home) for row in rows for part in row.downloads]
    parts += [DownloadPart(part, drafters) for row in rows for part in _drafter(row)]
    for part in parts:
        if part.download.name.lower() == name.lower():
            return [part]
    raise AdtError(f"`name`: {shown(name)} is not a published model; use one of {', '.join(row.name for row in rows)}.")


def _drafter(row: Published) -> list[Download]:
    return [row.drafter] if row.drafter is not None else []


def download(parts: Sequence[DownloadPart], report: Callable[[DownloadProgress], None], check: Check) -> None:
    """Download the missing files of a model. An interrupted download is resumed.

    Args:
        parts: Parts of the model. The first part is the model's own repository.
        report: Progress callback, called a few times per second.
        check: Cancellation callback, called ten times per second. If it raises an exception, the download stops
            immediately.

    Raises:
        AdtError: If the Hub rejects the request or cannot be reached, if existing files differ from the published
            ones, or if the disk has too little space.
    """
    task = {"parts": [_to_json(part) for part in parts]}
    samples: deque[tuple[float, int]] = deque()  # (time, bytes) of the last _RATE_WINDOW seconds
    for line in _lines(json.dumps(task), check):
        if "error" in line:
            raise AdtError(line["error"])
        done = line.get("done", 0)
        now = time.monotonic()
        if line["state"] == "downloading":
            samples.append((now, done))
            while now - samples[0][0] > _RATE_WINDOW:
                samples.popleft()
        elapsed = now - samples[0][0] if samples else 0.0
        rate = (done - samples[0][1]) / elapsed if elapsed > 0 else 0.0
        report(DownloadProgress(line["state"], done, line.get("total", 0), rate))


def _to_json(part: DownloadPart) -> dict[str, Any]:
    return {
        "repository": part.download.repository,
        "files": part.download.files,
        "home": str(part.home.absolute()),
        "folder": part.download.folder,
    }


def default_folder() -> Path:
    """Return the folder of models.

    If this pack is installed in ComfyUI, the result is ComfyUI's folder "models/ar_image". Otherwise the result is the
    relative path "models/ar_image".
    """
    base = ROOT.parents[1] if ROOT.parent.name == "custom_nodes" else Path()
    return base / "models" / "ar_image"


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
    """Download a published model with a progress bar on the console.

    Args:
        name: Name of a published model or of one of its parts.
        to: Folder of all models. None selects `default_folder()`.

    Returns:
        A line of text with the path of the model.

    Raises:
        AdtError: If the download fails.
    """
    home = to or default_folder()
    parts = find_parts(name, home)
    with tqdm(unit="B", unit_scale=True, leave=False) as bar:

        def report(progress: DownloadProgress) -> None:
            bar.total = progress.total or None
            bar.bar_format = None if progress.total else "{desc}"
            bar.set_description_str(TEMPLATES.get(f"download.{progress.state}", "Downloading"), refresh=False)
            bar.n = progress.done
            bar.refresh()

        download(parts, report, lambda: None)
    own = parts[0]
    return f"{own.download.name} is complete: {own.home / own.download.name}"


def _lines(task: str, check: Check) -> Iterator[dict[str, Any]]:
    """Start the download process with a task, and yield the JSON lines that the process writes.

    When the iteration ends, the process is killed.
    """
    lines: queue.Queue[str | None] = queue.Queue()
    other: deque[str] = deque(maxlen=20)  # other output, such as a traceback
    with _process() as process:
        assert process.stdin is not None
        process.stdin.write(f"{task}\n")
        process.stdin.flush()
        threading.Thread(target=_read, args=(process, lines), daemon=True).start()
        while True:
            check()
            try:
                line = lines.get(timeout=_POLL)
            except queue.Empty:
                continue
            if line is None:
                break
            if line.startswith('{"'):
                yield json.loads(line)
            else:
                other.append(line)
        if process.wait() != 0:
            last = one_line(" ".join(other)) or "no message"
            raise AdtError(f"The download stopped with exit code {process.returncode} ({last[-300:]}); run it again.")


@contextmanager
def _process() -> Iterator[subprocess.Popen[str]]:
    """Start the download process, and kill it at the end of the block."""
    process = subprocess.Popen(
        [sys.executable, *(["-s"] if sys.flags.no_user_site else []), "-c", _START, str(ROOT)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="backslashreplace",
        env={
            "HF_HUB_DISABLE_XET": "1",  # Xet downloads cannot be resumed
            **os.environ,
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "PYTHONIOENCODING": "utf-8",
        },
        creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _read(process: subprocess.Popen[str], lines: queue.Queue[str | None]) -> None:
    """Put each output line of the process into a queue, and None after the last line."""
    assert process.stdout is not None
    for line in process.stdout:
        lines.put(line.strip())
    lines.put(None)
