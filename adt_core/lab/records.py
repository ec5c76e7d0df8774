"""The records of a benchmark: a file of JSON lines that is only ever added to.

So no interruption loses more than the record that was being written, and several processes can share the file.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any, TypeGuard

from .. import untrusted
from ..app import run_stats
from ..errors import AdtError
from ..files import add_line, parse_json, read_text, reason
from ..untrusted import list_of, mapping, row
from .report import COLUMNS, MEANS

RUNS = "runs.jsonl"
FIGURES = ("seconds", "verified_nodes", *MEANS)
"""Figures that the report reads of a run."""
LARGEST = 4096
"""MiB of the file that is read."""
LONGEST = 100
"""Characters of a column's name."""
_log = logging.getLogger(__name__)


def open_records(folder: Path, settings: dict) -> list[dict]:
    """The records in ``folder``, the first of every prompt; begins the file if there is none.

    Damaged lines stay in the file and count for nothing, as do records before the first line that holds settings.
    AdtError if these are other settings.
    """
    path = folder / RUNS
    begun, records = _read(path)
    if begun is None:
        if path.exists():
            _log.warning("'%s' is damaged and can't be read; the benchmark starts again.", path)
        append(folder, {"settings": settings})
        begun, records = _read(path)  # another process may have been first
    if begun != settings:
        raise AdtError(
            f"`output`: '{folder}' contains a benchmark with other settings; choose another folder, or delete {path}."
        )
    sound: dict[int, dict] = {}
    for record in records:
        if _is_record(record, settings, folder):
            sound.setdefault(record["prompt"], record)
    unsound = {str(record.get("text")) for record in records if "runs" in record}
    unsound -= {record["text"] for record in sound.values()}
    if unsound:
        _log.warning("'%s' has invalid results for %d prompts, which are measured again.", path, len(unsound))
    return list(sound.values())


def append(folder: Path, record: dict) -> None:
    """Add a record; it is on the disk when this returns. AdtError if it can't be written."""
    add_line(folder / RUNS, json.dumps(record))


def _read(path: Path) -> tuple[dict | None, list[dict]]:
    """The first settings in a file, None if there are none, and all objects behind them."""
    try:
        text = read_text(path, LARGEST, errors="replace") if path.exists() else ""
    except OSError as error:
        raise AdtError(
            f"`output`: '{path}' can't be read ({reason(error)}); delete it, or choose another folder."
        ) from error
    lines = map(_object, text.split("\n"))
    settings = next((line["settings"] for line in lines if isinstance(line.get("settings"), dict)), None)
    return settings, list(lines)


def _object(line: str) -> dict[str, Any]:
    """The JSON object of a line; {} if it is none."""
    try:
        value = parse_json(line)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _is_record(record: dict, settings: dict, folder: Path) -> bool:
    """Is it of a prompt and of all methods of these settings, with figures, and pictures that are in the folder?"""
    number, runs, prompts = record.get("prompt"), record.get("runs"), settings["prompts"]
    if type(number) is not int or not 0 <= number < len(prompts) or record.get("text") != prompts[number]:
        return False
    if not isinstance(runs, dict) or set(runs) != set(settings["methods"]):
        return False
    return all(_is_run(run, settings) and os.path.isfile(folder / run["picture"]) for run in runs.values())


def _is_run(run: object, settings: dict) -> TypeGuard[dict]:
    """Has it all that the report reads of a method's run?"""
    if not run_stats.are_run_stats(run, FIGURES) or not _is_map(run.get("acceptance"), settings["grid"]):
        return False
    scores = run.get("quality")
    are_ours = _are_scores(scores) and bool(scores) == bool(settings["metrics"]) and scores.keys().isdisjoint(COLUMNS)
    return are_ours and _is_inside(run.get("picture"))


def _is_map(value: object, grid: Sequence[int]) -> bool:
    """Is it a figure of each cell of a grid, row by row?"""
    rows, columns = grid
    return list_of(list_of(run_stats.FIGURE, columns, columns), rows, rows).fits(value)


_LARGEST = run_stats.LARGEST
_SCORES = mapping(
    untrusted.text(0, LONGEST), row(untrusted.number(-_LARGEST, _LARGEST), untrusted.number(0.5, _LARGEST)), 0, _LARGEST
)
"""Scores by column, each a sum and how many there are of it."""


def _are_scores(value: object) -> TypeGuard[dict]:
    """Are they scores whose columns can be printed?"""
    return isinstance(value, dict) and _SCORES.fits(value) and all(map(str.isprintable, value))


def _is_inside(picture: object) -> bool:
    path = PurePosixPath(picture) if isinstance(picture, str) else PurePosixPath("..")
    return not path.is_absolute() and ".." not in path.parts
