"""Table of drafters, and drafters by the names that users give."""

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

JACOBI = "jacobi"
"""Name of the Jacobi window."""
WITH_WINDOW = "+jacobi"
"""Suffix of the name of a drafter network that is combined with the Jacobi window."""
DRAFTERS: dict[str, Callable[[], Drafter]] = {JACOBI: JacobiDrafter}
"""Drafters without files, by name. Any other name is the path of a drafter network.

To add a drafter, add a line here.
"""


def load_drafter(
    path: str | Path, target: Target, check: Check | None = None, device: torch.device | None = None
) -> Drafter:
    """Load a drafter for a target.

    Args:
        path: Key of `DRAFTERS`, "bundled" or the folder of a network; the latter two can end in `WITH_WINDOW`.
        target: Target to draft for.
        check: Called often; may raise an exception to cancel.
        device: Device of the weights (default: the target's).

    Raises:
        AdtError: If files are missing or damaged, or the drafter was made for another target.
    """
    name = str(path)
    if name in DRAFTERS:
        return DRAFTERS[name]()
    network = load_eagle(name.removesuffix(WITH_WINDOW), target, check, device)
    return MergedDrafter(network) if name.endswith(WITH_WINDOW) else network


def drafter_defaults(name: str, device: str) -> Mapping[str, Any]:
    """Return the default options of drafting with a drafter, without loading it.

    Args:
        name: Name of the drafter, as for :func:`load_drafter`.
        device: Kind of device, `cpu` or `cuda`.
    """
    network = MergedDrafter if name.endswith(WITH_WINDOW) else EagleDrafter
    return default_options(DRAFTERS[name]() if name in DRAFTERS else network, device)


def default_options(drafter: Drafter | type[Drafter], device: str) -> Mapping[str, Any]:
    """Return the default options of drafting with a drafter.

    Args:
        drafter: Drafter or its class.
        device: Kind of device, `cpu` or `cuda`.
    """
    return drafter.defaults if device == "cpu" else {**drafter.defaults, **drafter.gpu_defaults}


def is_network(name: str) -> bool:
    """Return whether the drafter of this name is a network without the Jacobi window."""
    return name not in DRAFTERS and not name.endswith(WITH_WINDOW)


def with_window(drafter: Drafter) -> Drafter:
    """Combine a network with the Jacobi window; return other drafters unchanged."""
    return MergedDrafter(drafter) if isinstance(drafter, EagleDrafter) else drafter


def without_window(drafter: Drafter) -> Drafter | None:
    """Return the network of a drafter without the Jacobi window; None if it has no network."""
    if isinstance(drafter, MergedDrafter):
        return drafter.eagle
    return drafter if drafter.network is not None else None
