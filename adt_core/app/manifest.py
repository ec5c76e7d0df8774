"""Manifest of a folder of images: a table with the file, the id, the prompt and the seed of each image of a list.

The manifest lists the images of all shards, so shards that share a folder write equal manifests.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from ..errors import AdtError
from ..files import is_link, opened, write_in_with
from ..run.jobs import JobList
from ..run.store import file_name
from .csv_tables import write_csv

MANIFEST = "manifest.csv"
_COLUMNS = "file", "id", "prompt", "seed"
_ENCODING = "utf-8-sig"  # otherwise some spreadsheet programs would read the table in the encoding of the system


def check_manifest(folder: Path) -> None:
    """Raise AdtError if a foreign file of a folder has the name of the manifest."""
    path = folder / MANIFEST
    if not path.exists() or is_link(path):
        return
    header = ",".join(_COLUMNS).encode(_ENCODING)
    with suppress(OSError), opened(path) as file:
        if file.read(len(header)) == header:
            return
    raise AdtError("output.not_manifest", path=path)


def write_manifest(folder: Path, jobs: JobList) -> None:
    """Write the manifest of a list into the folder of its images."""
    every = map(jobs.job, range(1, jobs.count + 1))
    rows = ({"file": file_name(job.number), "id": job.id, "prompt": job.prompt, "seed": job.seed} for job in every)
    write_in_with(folder, MANIFEST, lambda file: write_csv(file, _COLUMNS, rows, _ENCODING))
