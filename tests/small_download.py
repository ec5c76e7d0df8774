"""Small published model of random bytes on the local Hub server of tests/hub.py, and downloads of it."""

import random
import threading
import time
from pathlib import Path

from adt_core.app.download import PART, STATE, DownloadPart, DownloadProgress, download_parts
from adt_core.models.repositories import Download

MODEL = Download("someone/model", 1, "MIT", "model")
CODEC = Download("someone/codecs", 0.1, "MIT", "", ("codec.pt",))
WEIGHTS = random.Random(1).randbytes(1_000_000)
COMPLETE = {
    "model/config.json": b"{}",
    "model/model.safetensors": WEIGHTS,
    "model/second.safetensors": WEIGHTS[::-1],
    "model/tokenizer/tokenizer.json": b"[]",
    "codec.pt": WEIGHTS[:9000],
}
REPOSITORIES = {
    "someone/model": {
        **{name.removeprefix("model/"): content for name, content in COMPLETE.items() if name.startswith("model/")},
        "pytorch_model.bin": b"a pickle of the same",
        ".gitattributes": b"",
        **dict.fromkeys(("README.md", "model.py", "run.exe", "fast.so", "try.ipynb", "film.mp4", "vocab.txt"), b"?"),
    },
    "someone/codecs": {"codec.pt": WEIGHTS[:9000], "another.pt": b"not needed"},
}


class DownloadCancelled(BaseException):
    """Exception that does not derive from Exception, as in newer versions of ComfyUI."""


class Downloads:
    """Downloads to a folder of models."""

    def __init__(self, home: Path):
        self.home = home

    def get(self, *parts, check=lambda: None) -> list[DownloadProgress]:
        """Download parts of the model, by default all, and return the progress reports."""
        reports: list[DownloadProgress] = []
        download_parts([DownloadPart(part, self.home) for part in parts or (MODEL, CODEC)], reports.append, check)
        return reports

    def seconds_to_cancel(self, when: threading.Event, *parts) -> float:
        """Start a download, cancel it after an event, and return how many seconds later it has stopped."""
        began: list[float] = []

        def check():
            if when.is_set():
                began.append(time.monotonic())
                raise DownloadCancelled

        try:
            self.get(*parts, check=check)
        except DownloadCancelled:
            return time.monotonic() - began[0]
        raise AssertionError("the download was not cancelled")

    def files(self) -> dict[str, bytes]:
        """Return the content of each file that is installed. Keys are paths."""
        return {name: path.read_bytes() for name, path in self._paths() if not name.endswith(PART)}

    def parts(self) -> dict[str, Path]:
        """Return the paths of the incomplete files. Keys are their final names."""
        return {path.name[1:].removesuffix(PART)[:-13]: path for name, path in self._paths() if name.endswith(PART)}

    def _paths(self):
        paths = [path for path in self.home.rglob("*") if path.is_file()]
        named = [(path.relative_to(self.home).as_posix(), path) for path in paths]
        return [(name, path) for name, path in named if not name.startswith(STATE)]


def state(report: DownloadProgress) -> str:
    """Return the state of a report, such as "listing"."""
    return str(report.message.parts[0].key).removeprefix("download.")
