"""Table of drafters, and functions that load or describe a drafter by the name that a user gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from ..errors import Check
from ..models.target import Target
from ..policies import DEFAULT
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
        path: Key of `DRAFTERS`, "bundled", or the folder of a drafter network. After "bundled" or a folder, the suffix
            `WITH_WINDOW` adds the Jacobi window.
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


def drafter_defaults(name: str, device: str, guided: bool = True, *, method: str | None) -> Mapping[str, Any]:
    """Return the default options of drafting with a drafter, without loading it.

    Args:
        name: Name of the drafter, as for :func:`load_drafter`.
        device: Type of device, "cpu" or "cuda".
        guided: Whether guidance is on.
        method: Name of the method; None for the default method.
    """
    network = MergedDrafter if name.endswith(WITH_WINDOW) else EagleDrafter
    return default_options(DRAFTERS[name]() if name in DRAFTERS else network, device, guided, method=method)


def default_options(
    drafter: Drafter | type[Drafter], device: str, guided: bool = True, *, method: str | None
) -> Mapping[str, Any]:
    """Return the default options of drafting with a drafter.

    Args:
        device: Type of device, "cpu" or "cuda".
        guided: Whether guidance is on.
        method: Name of the method; None for the default method.
    """
    if device == "cpu":
        return drafter.defaults
    unguided = {} if guided else drafter.unguided_gpu_defaults
    own = drafter.gpu_method_defaults.get(method or DEFAULT, {})
    return {**drafter.defaults, **drafter.gpu_defaults, **unguided, **own}


def is_network(name: str) -> bool:
    """Return whether the drafter with this name is a network that is not combined with the Jacobi window."""
    return name not in DRAFTERS and not name.endswith(WITH_WINDOW)


def with_window(drafter: Drafter) -> Drafter:
    """Combine a drafter network with the Jacobi window. Other drafters are returned unchanged."""
    return MergedDrafter(drafter) if isinstance(drafter, EagleDrafter) else drafter


def without_window(drafter: Drafter) -> Drafter | None:
    """Remove the Jacobi window from a combined drafter.

    Returns:
        The drafter network; None if the drafter has no network.
    """
    if isinstance(drafter, MergedDrafter):
        return drafter.eagle
    return drafter if drafter.network is not None else None
