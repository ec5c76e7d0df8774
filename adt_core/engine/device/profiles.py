"""Files of cost models and invariance reports in the cache folder (:mod:`adt_core.cache_folder`)."""

from __future__ import annotations

from typing import Any

from ... import cache_folder
from ...policies.cost_model import CostModel

COSTS = "costs"
REPORT = "exact"
"""First words of the files' names."""


def find_costs(name: str, images: int) -> Any:
    """Return the JSON value of the cost model with this name and batch size (`images`); None if there is no such file.

    The caller must check the value, because the file may be damaged or written by another program.
    """
    return cache_folder.read(COSTS, _costs_name(name, images))


def save_costs(model: CostModel) -> None:
    """Save the learned costs of a cost model."""
    cache_folder.write(COSTS, _costs_name(model.name, model.images), model.to_json())


def find_report(name: str) -> Any:
    """Return the JSON value that `save_report` has saved under this name; None if there is no such file.

    The caller must check the value, because the file may be damaged or written by another program.
    """
    content = cache_folder.read(REPORT, name)
    return content.get("verdict") if isinstance(content, dict) and content.get("name") == name else None


def save_report(name: str, report: dict) -> None:
    """Save an invariance report of plain JSON types."""
    cache_folder.write(REPORT, name, {"name": name, "verdict": report})


def _costs_name(name: str, images: int) -> str:
    return f"{name}, {images} images"
