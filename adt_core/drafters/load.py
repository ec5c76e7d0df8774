"""Drafters by name."""

from __future__ import annotations

from pathlib import Path

from ..models.chameleon import Target
from ..models.checkpoint import Check
from . import Drafter
from .eagle import load_eagle
from .jacobi import JacobiDrafter

JACOBI = "jacobi"
"""Name of the drafter that needs no files."""


def load_drafter(path: str | Path, target: Target, check: Check | None = None) -> Drafter:
    """The drafter at ``path`` for ``target``: "bundled", a folder, or "jacobi" for the training-free one.

    Raises AdtError if files are missing or damaged, or the drafter was made for another target.
    """
    return JacobiDrafter() if str(path) == JACOBI else load_eagle(path, target, check)
