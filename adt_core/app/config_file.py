"""Files with options of a command, for `--config`."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import AdtError, shown
from ..files import parse_json, read_text, reason
from ..settings import Option

_MOST = 1
"""Maximum size of a file in MiB."""


def command_line(path: Path, options: Mapping[str, Option], command: str) -> list[str]:
    """Return the options of a file as words of a command line.

    The words go before those of the user, so the user's options win, and both are checked in the same way.

    Args:
        path: JSON object or TOML file with values by option name, such as `guidance_scale` or `guidance-scale`.

    Raises:
        AdtError: If the file can't be read, or contains something other than options of the command.
    """
    words: list[str] = []
    for key, value in _read(path).items():
        name = key.replace("-", "_")
        if name not in options:
            raise AdtError("config.unknown_option", path=path, option=shown(key), command=command)
        words += _words(f"--{name.replace('_', '-')}", value, options[name], path)
    return words


def _read(path: Path) -> dict[str, Any]:
    try:
        text = read_text(path, _MOST)
        found = _toml(text) if path.suffix.lower() == ".toml" else parse_json(text)
    except OSError as error:
        raise AdtError("config.unreadable", path=path, reason=reason(error)) from error
    except ValueError as error:
        raise AdtError("config.not_json", path=path, reason=error) from error
    if not isinstance(found, dict):
        raise AdtError("config.no_object", path=path)
    return found


def _toml(text: str) -> dict[str, Any]:
    if importlib.util.find_spec("tomllib") is None:
        raise AdtError("config.toml")
    import tomllib

    return tomllib.loads(text)


def _words(flag: str, value: Any, option: Option, path: Path) -> list[str]:
    """Return the words for one option. Null and false leave it out."""
    if value is None or value is False:
        return []
    if value is True and option.kind is bool:
        return [flag]
    if isinstance(value, list) and option.kind is tuple:
        value = "x".join(map(str, value))
    values = value if isinstance(value, list) and option.repeated else [value]
    if not all(isinstance(item, str | int | float) and not isinstance(item, bool) for item in values):
        raise AdtError("config.bad_value", path=path, value=shown(value), option=flag)
    return [f"{flag}={item}" for item in values]
