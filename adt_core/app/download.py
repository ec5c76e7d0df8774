"""Download published models: what belongs to one, and the process that fetches it (:mod:`.hub`)."""

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
"""Program of the process. Windows' portable Python puts no folder on the path by itself, others the current one."""
_POLL = 0.1  # seconds between two calls of ``check``
_WINDOW = 5.0  # seconds over which the rate is measured


class DownloadProgress(NamedTuple):
    """State of a download.

    Attributes:
        state: "waiting", "listing", "checking" or "downloading".
        done: Bytes that have arrived, those of an earlier run included.
        total: Bytes to download; 0 while that is not known.
        rate: Bytes per second; 0 while that is not known.
    """

    state: str
    done: int
    total: int
    rate: float

    @property
    def message(self) -> Message:
        """Line for users."""
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
    """A download and the folder that it goes to.

    Attributes:
        download: Row of the table of published models.
        home: Folder of the models or of the drafters.
    """

    download: Download
    home: Path


def find_parts(name: str, home: Path, drafters: Path | None = None) -> list[DownloadPart]:
    """Return everything that a published model needs, its drafter included.

    Args:
        name: Name of a published model, or of one part of it, such as "flan-t5-xl".
        home: Folder of the models.
        drafters: Folder of the drafters; beside ``home`` if that is a "models/ar_image", else ``home`` itself.
    Raises:
        AdtError: If no published model or part has this name. Nothing else can be downloaded.
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
    for place in parts:
        if place.download.name.lower() == name.lower():
            return [place]
    raise AdtError(f"`name`: {shown(name)} is not a published model; use one of {', '.join(row.name for row in rows)}.")


def _drafter(row: Published) -> list[Download]:
    return [row.drafter] if row.drafter is not None else []


def download(wanted: Sequence[DownloadPart], report: Callable[[DownloadProgress], None], check: Check) -> None:
    """Download what is missing of these parts. A run that was interrupted is resumed.

    Args:
        wanted: Parts, the model's own first.
        report: Called a few times per second.
        check: Called ten times per second. An exception that it raises cancels the download at once.
    Raises:
        AdtError: If the Hub refuses, can't be reached, or publishes other files than those in the folder; or if the
            disk has too little space.
    """
    parts = [
        {
            "repository": place.download.repository,
            "files": place.download.files,
            "home": str(place.home.absolute()),
            "folder": place.download.folder,
        }
        for place in wanted
    ]
    marks: deque[tuple[float, int]] = deque()
    for line in _lines(json.dumps({"parts": parts}), check):
        if "error" in line:
            raise AdtError(line["error"])
        done, now = line.get("done", 0), time.monotonic()
        if line["state"] == "downloading":
            marks.append((now, done))
            while now - marks[0][0] > _WINDOW:
                marks.popleft()
        passed = now - marks[0][0] if marks else 0.0
        rate = (done - marks[0][1]) / passed if passed > 0 else 0.0
        report(DownloadProgress(line["state"], done, line.get("total", 0), rate))


def default_folder() -> Path:
    """Return the folder of the models: that of the ComfyUI in which this pack is installed, else "models/ar_image"."""
    base = ROOT.parents[1] if ROOT.parent.name == "custom_nodes" else Path()
    return base / "models" / "ar_image"


def list_models() -> str:
    """Return the published models as a table of text."""
    head = ("name", "download", "memory bf16 / int8", "licence")
    rows = [
        (row.name, row.size, f"{row.memory[0]} / {row.memory[1]} GiB", row.licences)
        for row in published()
        if row.downloads
    ]
    widths = [max(map(len, column)) for column in zip(head, *rows)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in (head, *rows))


def run(name: str, to: Path | None = None) -> str:
    """Download a published model with a progress bar on the console, and return where it is.

    Args:
        name: As for :func:`places`.
        to: Folder of the models, :func:`default_home` if None.
    """
    home = to or default_folder()
    wanted = find_parts(name, home)
    with tqdm(unit="B", unit_scale=True, leave=False) as bar:

        def report(progress: DownloadProgress) -> None:
            bar.total = progress.total or None
            bar.bar_format = None if progress.total else "{desc}"
            bar.set_description_str(TEMPLATES.get(f"download.{progress.state}", "Downloading"), refresh=False)
            bar.n = progress.done
            bar.refresh()

        download(wanted, report, lambda: None)
    own = wanted[0]
    return f"{own.download.name} is complete: {own.home / own.download.name}"


def _lines(order: str, check: Check) -> Iterator[dict[str, Any]]:
    """Start the process with an order, and yield its lines. It is killed if the caller stops, or ``check`` raises."""
    lines: queue.Queue[str | None] = queue.Queue()
    other: deque[str] = deque(maxlen=20)  # what the process writes besides, such as a traceback
    with _process() as process:
        assert process.stdin is not None
        process.stdin.write(f"{order}\n")
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
    """The process, started. It is killed at the end of the block."""
    process = subprocess.Popen(
        [sys.executable, *(["-s"] if sys.flags.no_user_site else []), "-c", _START, str(ROOT)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="backslashreplace",
        env={
            "HF_HUB_DISABLE_XET": "1",  # its downloads can't be resumed
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
    """Put the lines of the process into a queue, and None at their end."""
    assert process.stdout is not None
    for line in process.stdout:
        lines.put(line.strip())
    lines.put(None)
