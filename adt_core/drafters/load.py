"""Drafters by name."""

from __future__ import annotations

from pathlib import Path

import torch

from ..models.checkpoint import Check
from ..models.target import Target
from ..policies.shape import Drafting
from .base import Drafter
from .eagle import EagleDrafter, load_eagle
from .jacobi import JacobiDrafter
from .merged import MergedDrafter

JACOBI = "jacobi"
"""Name of the drafter that needs no files."""
WITH_WINDOW = "+jacobi"
"""Behind the name of a network: both in one tree."""


def has_window(name: str) -> bool:
    """Does the drafter of this name draft from a Jacobi window?"""
    return name == JACOBI or name.endswith(WITH_WINDOW)


def load_drafter(
    path: str | Path, target: Target, check: Check | None = None, device: torch.device | None = None
) -> Drafter:
    """The drafter at ``path`` for ``target``: "bundled", a folder, "jacobi" for the training-free one, or a network's path with "+jacobi" behind it.

    device: for its weights, if not the target's. Raises AdtError if files are missing or damaged, or the drafter was made for another target.
    """
    name = str(path)
    if name == JACOBI:
        return JacobiDrafter()
    network = load_eagle(name.removesuffix(WITH_WINDOW), target, check, device)
    return MergedDrafter(network) if name.endswith(WITH_WINDOW) else network


def for_method(drafter: Drafter, drafting: Drafting) -> tuple[Drafter, ...]:
    """What the method may draft with. ``auto`` gives a network a window, and may find the window alone to be faster, with branches or without.

    The chain, which is tried first, has the least to lose on an unknown device.
    """
    if drafting.method != "auto":
        return (drafter,)
    if isinstance(drafter, EagleDrafter):
        drafter = MergedDrafter(drafter)
    windows = JacobiDrafter(width=1), JacobiDrafter()
    return (windows[0], drafter, windows[1]) if isinstance(drafter, MergedDrafter) else windows
