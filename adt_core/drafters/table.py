"""The table of drafters, and drafters by the names that users give."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from ..errors import Check
from ..models.target import Target
from .base import Drafter
from .eagle import EagleDrafter
from .eagle_files import load_eagle
from .jacobi import JacobiDrafter
from .merged import MergedDrafter
from .repeat import RepeatDrafter

JACOBI, WITH_WINDOW = "jacobi", "+jacobi"
"""The window's name, and what stands behind the name of a network for network and window in one tree."""
DRAFTERS: dict[str, Callable[[], Drafter]] = {JACOBI: JacobiDrafter, "repeat": RepeatDrafter}
"""Drafters that need no files, by name. Any other name is the path of a network. A new drafter is a line here."""


def load_drafter(
    path: str | Path, target: Target, check: Check | None = None, device: torch.device | None = None
) -> Drafter:
    """The drafter of this name for ``target``: one of DRAFTERS, or the folder of a network or "bundled".

    device: for its weights, if not the target's. Raises AdtError if files are missing or damaged, or if the drafter was
    made for another target.
    """
    name = str(path)
    if name in DRAFTERS:
        return DRAFTERS[name]()
    network = load_eagle(name.removesuffix(WITH_WINDOW), target, check, device)
    return MergedDrafter(network) if name.endswith(WITH_WINDOW) else network


def drafter_defaults(name: str, device: str) -> Mapping[str, Any]:
    """What :func:`default_options` says of the drafter of this name."""
    network = MergedDrafter if name.endswith(WITH_WINDOW) else EagleDrafter
    return default_options(DRAFTERS[name]() if name in DRAFTERS else network, device)


def default_options(drafter: Drafter | type[Drafter], device: str) -> Mapping[str, Any]:
    """Options of drafting where the user asks for nothing else. device: its kind, ``cpu`` or ``cuda``."""
    return drafter.defaults if device == "cpu" else {**drafter.defaults, **drafter.gpu_defaults}


def is_network(name: str) -> bool:
    """Is the drafter of this name a network, without a window?"""
    return name not in DRAFTERS and not name.endswith(WITH_WINDOW)


def with_window(drafter: Drafter) -> Drafter:
    """Network and window in one tree; a drafter that is no network as it is."""
    return MergedDrafter(drafter) if isinstance(drafter, EagleDrafter) else drafter


def without_window(drafter: Drafter) -> Drafter | None:
    """The network alone, of a network with or without a window; None for a drafter that has none."""
    if isinstance(drafter, MergedDrafter):
        return drafter.eagle
    return drafter if drafter.network is not None else None
