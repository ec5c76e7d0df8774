"""What a part of the figures is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple


class Part(NamedTuple):
    """Figures that are measured together.

    count: prompts unless told otherwise. measure: their figures in JSON, for a count. tables: from these, what the
    documents show, by the names of their markers.
    """

    count: int
    measure: Callable[[int], Any]
    tables: Callable[[Any], dict[str, str]]
