"""Definition of a part of the figures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple


class FigurePart(NamedTuple):
    """Figures that are measured together.

    Attributes:
        count: Default number of prompts.
        measure: Returns the figures of this many prompts as JSON types.
        tables: Returns the texts for the documents by the name of their marker, from these figures.
    """

    count: int
    measure: Callable[[int], Any]
    tables: Callable[[Any], dict[str, str]]
