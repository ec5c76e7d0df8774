"""The records of a benchmark: a file of JSON lines, of which no interruption loses more than the last."""

from __future__ import annotations

import json
import logging
import os
from itertools import count
from pathlib import Path, PurePosixPath
from typing import Any

from ..errors import AdtError
from ..files import parse_json
from .images import write

RUNS = "runs.jsonl"


def open_records(folder: Path, settings: dict) -> list[dict]:
    """The records in ``folder``, the first of every prompt; begins the file if there is none.

    Damaged ones are left out, and the file is only written anew, whole or not at all, where some were. One whose
    settings can't be read is set aside. AdtError if they were made with other settings.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path, head = folder / RUNS, json.dumps({"settings": settings}) + "\n"
    before = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    first, *lines = before.splitlines(keepends=True) or [""]
    found = _object(first).get("settings")
    if before and not isinstance(found, dict):
        _set_aside(path)
        before, lines = "", []
    elif before and found != settings:
        raise AdtError(
            f"--output: '{folder}' holds a benchmark of other settings; give another folder, or delete {path}."
        )
    records: dict[int, dict] = {}
    kept = [head if not before else first]
    for line in lines:
        record = _object(line) if line.endswith("\n") else {}  # not what was being written when the power went
        if _is_record(record, settings) and record["prompt"] not in records:
            records[record["prompt"]] = record
            kept.append(line)
    if "".join(kept) != before:
        write(path, "".join(kept).encode())
    return list(records.values())


def append(folder: Path, record: dict) -> None:
    """Add a record; it is on the disk when this returns."""
    with (folder / RUNS).open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")
        file.flush()
        os.fsync(file.fileno())


def _object(line: str) -> dict[str, Any]:
    """The JSON object of a line; {} if it is none."""
    try:
        value = parse_json(line)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _is_record(record: dict, settings: dict) -> bool:
    """Is it of a prompt and of all methods of these settings, with pictures inside the folder?"""
    number, runs, prompts = record.get("prompt"), record.get("runs"), settings["prompts"]
    if type(number) is not int or not 0 <= number < len(prompts) or record.get("text") != prompts[number]:
        return False
    if not isinstance(runs, dict) or set(runs) != set(settings["methods"]):
        return False
    return all(isinstance(run, dict) and _is_inside(run.get("picture")) for run in runs.values())


def _is_inside(picture: object) -> bool:
    path = PurePosixPath(picture) if isinstance(picture, str) else PurePosixPath("..")
    return not path.is_absolute() and ".." not in path.parts


def _set_aside(path: Path) -> None:
    """Give a damaged file another name, and say so."""
    names = (path.with_name(f"runs-damaged-{number}.jsonl") for number in count(1))
    free = next(name for name in names if not name.exists())
    path.rename(free)
    logging.getLogger(__name__).warning("'%s' was damaged and is now '%s'; the benchmark begins anew.", path, free)
