"""Records of a benchmark in the JSON Lines file `runs.jsonl`.

The first line contains the settings of the benchmark. Each further line is a record: the results of all methods for one
prompt. :func:`.benchmark.measure` describes the entries of a record. Lines are only appended. So an interruption loses
at most the last record, and several processes can use the file at the same time. Each shard of a benchmark has a file
of its own in the folder, such as `runs-2-of-8.jsonl`, and every run reads the files of all shards.
"""

from __future__ import annotations

import json
import logging
import os
import re
from pathlib import Path, PurePosixPath
from typing import Any, TypeGuard

from .. import untrusted
from ..errors import AdtError, shown
from ..files import add_line, parse_json, read_text, reason
from ..policies import CostProfile
from ..run import stats
from ..run.lines import shard_path
from ..untrusted import list_of, mapping, row
from .report import COLUMNS, MEANS

RUNS = "runs.jsonl"
WHOLE = (1, 1)
"""Shard with all prompts."""
_FILES = re.compile(r"runs(-[0-9]+-of-[0-9]+)?\.jsonl")
FIGURES = ("seconds", "verified_drafts", *MEANS)
"""Names of the run statistics that the report needs. A run is the decoding of a prompt by one method."""
MAX_FILE_MIB = 4096
"""Maximum size of `runs.jsonl`."""
MAX_COLUMN_LENGTH = 100
_log = logging.getLogger(__name__)


def open_records(folder: Path, settings: dict, shard: tuple[int, int] = WHOLE) -> list[dict]:
    """Return the first valid record of each prompt, of all shards. Create the file of a shard if it does not exist.

    Damaged lines, and records before the first line with settings, are ignored. They stay in the file.

    Raises:
        AdtError: If a file has other settings, or cannot be read.
    """
    path = shard_path(folder / RUNS, shard)
    if _read(path)[0] is None:
        if path.exists():
            _log.warning("'%s' is damaged and can't be read; the benchmark starts again.", path)
        append(folder, {"settings": settings}, shard)
    records: list[dict] = []
    for file in _files(folder):
        saved, found = _read(file)
        if saved not in (settings, None):
            name = next(name for name in {**saved, **settings} if saved.get(name, ...) != settings.get(name, ...))
            raise AdtError(
                "benchmark.other_settings",
                folder=folder,
                name=name,
                saved=shown(saved.get(name)),
                value=shown(settings.get(name)),
                file=file,
            )
        records += found
    valid: dict[int, dict] = {}
    for record in records:
        if _is_record(record, settings, folder):
            valid.setdefault(record["prompt"], record)
    invalid = {str(record.get("text")) for record in records if "runs" in record}
    invalid -= {record["text"] for record in valid.values()}
    if invalid:
        _log.warning("'%s' has invalid results for %d prompts, which are measured again.", path, len(invalid))
    return list(valid.values())


def saved_settings(folder: Path) -> dict:
    """Return the settings of the benchmark in a folder. Raise AdtError if it contains none."""
    found = next(filter(None, (_read(file)[0] for file in _files(folder))), None)
    if found is None:
        raise AdtError("benchmark.none", folder=folder)
    return found


def _files(folder: Path) -> list[Path]:
    return sorted(file for file in folder.iterdir() if _FILES.fullmatch(file.name))


def append(folder: Path, record: dict, shard: tuple[int, int] = WHOLE) -> None:
    """Append a record to the file of a shard, and flush it to the disk."""
    add_line(shard_path(folder / RUNS, shard), json.dumps(record))


def _read(path: Path) -> tuple[dict | None, list[dict]]:
    """Return the first settings in a file, and all objects after these settings.

    If the file has no settings, they are None, and there are no objects.
    """
    try:
        text = read_text(path, MAX_FILE_MIB, errors="replace") if path.exists() else ""
    except OSError as error:
        raise AdtError("benchmark.unreadable", path=path, reason=reason(error)) from error
    lines = map(_parse_object, text.split("\n"))
    settings = next((line["settings"] for line in lines if isinstance(line.get("settings"), dict)), None)
    return settings, list(lines)


def _parse_object(line: str) -> dict[str, Any]:
    """Return the JSON object in a line; {} if the line is not a valid JSON object."""
    try:
        value = parse_json(line)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _is_record(record: dict, settings: dict, folder: Path) -> bool:
    """Return whether a record is valid.

    Its prompt must be in the settings. It must have a valid run of every method, and the image of every run must exist.
    """
    number = record.get("prompt")
    runs = record.get("runs")
    prompts = settings["prompts"]
    if type(number) is not int or not 0 <= number < len(prompts) or record.get("text") != prompts[number]:
        return False
    if not isinstance(runs, dict) or set(runs) != set(settings["methods"]):
        return False
    return all(_is_run(run, settings) and os.path.isfile(folder / run["picture"]) for run in runs.values())


def _is_run(run: object, settings: dict) -> TypeGuard[dict]:
    """Return whether a run has valid statistics, acceptance map, scores and image path."""
    if not stats.are_run_stats(run, FIGURES):
        return False
    rows, columns = settings["grid"]
    acceptance_map = list_of(list_of(stats.FIGURE, columns, columns), rows, rows)
    if not acceptance_map.fits(run.get("acceptance")) or not _is_profile(run.get("profile")):
        return False
    scores = run.get("quality")
    if not _are_scores(scores) or bool(scores) != bool(settings["metrics"]):
        return False
    return scores.keys().isdisjoint(COLUMNS) and _is_inside(run.get("picture"))


def _is_profile(value: object) -> bool:
    """Return whether a value is a valid cost profile, or None for a method without a profile."""
    try:
        _ = value is None or CostProfile.from_json(value)
    except AdtError:
        return False
    return True


_LARGEST = stats.LARGEST
_SCORES = mapping(
    untrusted.text(0, MAX_COLUMN_LENGTH),
    row(untrusted.number(-_LARGEST, _LARGEST), untrusted.number(0.5, _LARGEST)),
    0,
    _LARGEST,
)
"""Schema of an image's scores: a pair (sum, count) for each column of the benchmark's table."""


def _are_scores(value: object) -> TypeGuard[dict]:
    """Return whether a value has valid scores with printable column names."""
    return isinstance(value, dict) and _SCORES.fits(value) and all(map(str.isprintable, value))


def _is_inside(picture: object) -> bool:
    path = PurePosixPath(picture) if isinstance(picture, str) else PurePosixPath("..")
    return not path.is_absolute() and ".." not in path.parts
