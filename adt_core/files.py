"""Reading files that anybody may have written: of a bounded size, and never anything but a regular file."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

LARGEST_JSON, LARGEST_LIST = 64, 256
"""MiB of a configuration, and of a list of prompts."""


def read_text(path: Path, most: int) -> str:
    """The text of a file, UTF-8 with or without a byte order mark. most: MiB.

    Raises OSError or UnicodeDecodeError. A pipe is refused before it is opened, since that would wait for a writer.
    """
    size = path.stat().st_size
    if not path.is_file():
        raise OSError("it is no regular file")
    if size > most * 2**20:
        raise OSError(f"it has {size / 2**20:.0f} MiB, and {most} at most are read")
    return path.read_text(encoding="utf-8-sig")


def is_device(name: str) -> bool:
    """Does a file's name stand for a device on Windows, whatever its ending, such as "nul.png"?"""
    stem = name.split(".")[0].strip().upper()
    return stem in ("CON", "PRN", "AUX", "NUL") or re.fullmatch("(COM|LPT)[0-9¹²³]", stem) is not None


def parse_json(text: str | bytes) -> Any:
    """What JSON says. Raises ValueError for what is none, or is nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
