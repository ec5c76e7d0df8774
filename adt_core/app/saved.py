"""Resuming a list: decides whether a PNG is already the image that a run would generate.

`generate` and the batch node use the same test. It compares the settings in the PNG with the expected ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import AdtError, shown
from .images import read_settings

SETTINGS_KEY = "settings_key"
"""Name of the digest of all settings that determine an image, except prompt and seed (`batch_folder.settings_key`)."""
CAPTION = "caption"
"""Name of the complete prompt, in the PNG of an image whose prompt was truncated."""


def read_saved(path: Path, expected: Mapping[str, Any]) -> tuple[dict, str]:
    """Read the settings in a PNG, and compare them with the settings of an image.

    Args:
        expected: Settings that the image must have. "prompt" is the complete prompt, if it was truncated.

    Returns:
        The settings, {} if there are none; and the reason why the PNG is not the image, "" if it is.
    """
    try:
        saved = read_settings(path)
    except AdtError as error:
        return {}, str(error).removeprefix(f"{path} ").partition(";")[0].rstrip(".")
    return saved, difference(saved, expected)


def difference(saved: Mapping[str, Any], expected: Mapping[str, Any]) -> str:
    """Return the first difference between saved and expected settings in words, or "" if there is none.

    Args:
        expected: As in `read_saved`.
    """
    found = {**saved, "prompt": saved.get(CAPTION, saved.get("prompt"))}
    for name, value in expected.items():
        if found.get(name) != value:
            return f"was made with {name} {shown(found.get(name))}, but this run has {shown(value)}"
    return ""
