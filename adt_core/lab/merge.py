"""Command `python adt.py merge`: join the output of the shards of a list. It needs no model.

A run without `--shard` does the same and also generates missing images, but it must load the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import AdtError
from ..files import LARGEST_JSON, parse_json, read_text, reason, write_json
from ..run.lines import check_lines, merge_lines, shard_files
from ..run.runner import SETTINGS_KEY
from ..run.stats import ComparedTotals
from . import benchmark

OF_THE_RUN = ("workers", "elapsed_seconds")
"""Entries of a shard's report that the report of the complete list does not have."""


def run(paths: Sequence[Path]) -> str:
    """Merge files, and return a line for each.

    Args:
        paths: Files that `generate` was given as `tokens`, `trace` or `report`, without the shard in their names; or
            folders of benchmarks.

    Raises:
        AdtError: If there is nothing to merge, or a file cannot be read or written.
    """
    return "\n".join(map(_merge, paths))


def _merge(path: Path) -> str:
    if path.is_dir():
        return benchmark.merge(path)
    is_report = path.suffix.lower() == ".json"
    lines = path.with_suffix(".jsonl") if is_report else path
    files = shard_files(lines)
    if not files:
        raise AdtError("merge.no_lines", path=lines, stem=lines.stem)
    for file in files:
        check_lines(file, "path")
    numbers: set[int] = set()
    keys: set[Any] = set()
    totals = ComparedTotals()

    def add(line: Any) -> None:
        numbers.add(line["image"])
        keys.add(line.get(SETTINGS_KEY))
        totals.add(line)

    settings = _settings(path, totals.report()) if is_report else {}
    merge_lines(lines, add)
    if is_report and len(keys) > 1:
        raise AdtError("merge.other_settings", path=lines, count=len(keys))
    if is_report:
        write_json(path, settings | totals.report())
    missing = max(numbers, default=0) - len(numbers)
    note = f"; {missing} images before number {max(numbers)} are missing" if missing else ""
    return f"{path}: {len(numbers)} images from {len(files)} files{note}."


def _settings(path: Path, sums: dict[str, Any]) -> dict[str, Any]:
    """Return the settings in the reports of all shards. Raise AdtError if they differ.

    Args:
        path: Path of the report without shards.
        sums: Statistics, whose names are no settings.
    """
    omitted = {*sums, *OF_THE_RUN, "plain", "speedup", "identical", "identical_images"}
    found: dict[str, Any] = {}
    for file in shard_files(path):
        try:
            report = parse_json(read_text(file, LARGEST_JSON))
        except (OSError, ValueError) as error:
            raise AdtError("merge.unreadable", path=file, reason=reason(error)) from error
        settings = {name: value for name, value in report.items() if name not in omitted}
        if differing := [name for name, value in settings.items() if found.get(name, value) != value]:
            raise AdtError("merge.other_reports", path=file, name=differing[0])
        found |= settings
    return found
