"""JSON of checkpoints: configurations, indexes, tokenizers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from ...errors import AdtError
from ...files import LARGEST_JSON, parse_json, read_text, reason
from . import unsound


def read_json(file: Path) -> dict:
    """Return the JSON object in a file.

    Raises:
        AdtError: If the file holds none, or can't be read.
    """
    unsound.refuse_damaged(file)
    return json_object(partial(read_text, file, LARGEST_JSON), str(file))


def json_object(read: Callable[[], str | bytes], place: str) -> dict:
    """Return the JSON object that ``read`` returns the text of.

    Args:
        read: Returns the text; it may raise OSError or ValueError.
        place: Where the text is stored, for error messages.
    Raises:
        AdtError: If it is no JSON object.
    """
    try:
        value = parse_json(read())
    except (OSError, ValueError) as error:
        raise AdtError(f"{place} is not readable JSON ({reason(error)}); download it again.") from error
    if not isinstance(value, dict):
        raise AdtError(f"{place} is not a JSON object; download it again.")
    return value
