"""Benchmark that measures the figures in README.md and docs: ``python -m benchmarks.figures``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple


class FigurePart(NamedTuple):
    """Figures that are measured together.

    Attributes:
        count: Number of prompts of published figures, at least 8.
        measure: Function that gets the number of prompts and returns the figures, as values that JSON supports.
        tables: Function that gets the figures and returns texts for the documents. The key of a text is the name of its
            place in the documents (see `figures.__main__`).
    """

    count: int
    measure: Callable[[int], Any]
    tables: Callable[[Any], dict[str, str]]
