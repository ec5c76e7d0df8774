"""Fields of a checkpoint's ``config.json``: each is of the expected kind and size, or a sentence says what is wrong."""

from __future__ import annotations

import math
from pathlib import Path
from typing import NoReturn

from ..errors import AdtError, shown

Source = Path | str
"""What a sentence names: the checkpoint."""
MOST = dict.fromkeys(
    ("num_hidden_layers", "num_attention_heads", "num_key_value_heads", "num_layers", "num_heads"), 999
)
MOST |= {"num_res_blocks": 99, "resolution": 2**14, "image_size": 2**14}
"""Bounds of sizes that have a lower one than 2**21."""
MOST_LEVELS = 12
"""Entries of a list of sizes."""


def section(config: dict, name: str, source: Source) -> dict:
    """The part ``name`` of a ``config.json``. AdtError if it has none."""
    value = config.get(name)
    if not isinstance(value, dict):
        raise AdtError(f"{source}: config.json has no {name}; use the checkpoint's own config.json.")
    return value


def whole_number(config: dict, name: str, source: Source, default: object = None) -> int:
    """A size. AdtError if it is not a positive whole number, or is absurd. What is null or 0 is the default."""
    value, most = config.get(name) or default, MOST.get(name, 2**21)
    if type(value) is not int or not 1 <= value <= most:
        _refuse(source, name, value, f"a whole number from 1 to {most}")
    return value


def whole_numbers(config: dict, name: str, source: Source, default: tuple[int, ...], low: int = 1) -> tuple[int, ...]:
    """A list of a few sizes; one at least, if they must be positive. AdtError if it is none."""
    value, most = config.get(name, default), MOST.get(name, 2**14)
    listed = isinstance(value, list | tuple) and low <= len(value) <= MOST_LEVELS
    if not listed or not all(type(one) is int and low <= one <= most for one in value):
        _refuse(source, name, value, f"a list of {low} to {MOST_LEVELS} whole numbers from {low} to {most}")
    return tuple(value)


def number(config: dict, name: str, source: Source, default: float, low: float, high: float) -> float:
    """A number from low to high. AdtError if it is none. What is null is the default."""
    value = config.get(name)
    value = default if value is None else value
    if type(value) not in (int, float) or not low <= value <= high or not math.isfinite(value):
        _refuse(source, name, value, f"a number from {low:g} to {high:g}")
    return float(value)


def switch(config: dict, name: str, source: Source, default: bool) -> bool:
    """True or false. AdtError for anything else."""
    value = config.get(name, default)
    if type(value) is not bool:
        _refuse(source, name, value, "true or false")
    return value


def word(config: dict, name: str, source: Source, choices: tuple[str, ...]) -> str:
    """One of the choices; the first if there is none. AdtError for anything else."""
    value = config.get(name, choices[0])
    if value not in choices:
        _refuse(source, name, value, " or ".join(choices))
    return value


def _refuse(source: Source, name: str, value: object, expected: str) -> NoReturn:
    raise AdtError(
        f"{source}: config.json says {name} is {shown(value)}, but {expected} was expected; download it again."
    )
