"""Table of drafters, and functions that load or describe a drafter by the name that a user gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ..errors import AdtError, Check, shown
from ..models.target import Target
from ..models.torch_state import own_torch_state
from ..policies import DEFAULT
from .base import Drafter
from .eagle import EagleDrafter
from .eagle_files import fits_target, load_eagle
from .jacobi import JacobiDrafter
from .merged import MergedDrafter

JACOBI = "jacobi"
"""Name of the Jacobi window."""
WITH_WINDOW = "+jacobi"
"""Suffix of the name of a drafter network that is combined with the Jacobi window."""


class NetworkKind(NamedTuple):
    """Kind of drafter network: functions that load its files.

    Attributes:
        drafter: Class of the drafter, with its default options.
        recognises: Returns whether "bundled", or a path from the user, contains a drafter of this kind.
        load: Loads a drafter for a target, as :func:`load_drafter` does.
        fits: Returns whether the drafter at a path was made for a target. It reads no weights.
        combined: Combines the drafter with the Jacobi window; None if that is not possible.
    """

    drafter: type[Drafter]
    recognises: Callable[[str], bool]
    load: Callable[[str | Path, Target, Check | None, torch.device | None], Drafter]
    fits: Callable[[str | Path, Target], bool]
    combined: Callable[[Any], Drafter] | None = None


DRAFTERS: dict[str, Callable[[], Drafter]] = {JACOBI: JacobiDrafter}
"""Drafters without files, by name. Any other name is the path of a drafter network. To add a drafter without files, add
a line here."""
NETWORKS: list[NetworkKind] = [NetworkKind(EagleDrafter, lambda path: True, load_eagle, fits_target, MergedDrafter)]
"""Kinds of drafter networks. If several kinds recognise a path, the last of them loads it. To add a drafter with files,
add a line at the end."""


@own_torch_state()
def load_drafter(
    path: str | Path, target: Target, check: Check | None = None, device: torch.device | None = None
) -> Drafter:
    """Load a drafter for a target.

    Args:
        path: Key of `DRAFTERS`, "bundled", or the folder of a drafter network. After the last two, the suffix
            `WITH_WINDOW` adds the Jacobi window.
        check: Called often; may raise an exception to cancel.
        device: Device of the weights (default: the target's).

    Raises:
        AdtError: If files are missing or damaged, or the drafter was made for another target.
    """
    name = str(path)
    if name in DRAFTERS:
        drafter = DRAFTERS[name]()
        drafter.name = name
        return drafter
    network = _kind_of(name).load(name.removesuffix(WITH_WINDOW), target, check, device)
    network.name = name.removesuffix(WITH_WINDOW)
    if not name.endswith(WITH_WINDOW):
        return network
    combined = with_window(network)
    if combined is network:
        raise AdtError("drafter.no_window", name=shown(name), network=shown(network.name))
    combined.name = name
    return combined


def recorded_name(drafter: Drafter | None, chosen: str | None) -> str | None:
    """Return the name of a drafter for records: that of `load_drafter`, or its class for a drafter of another program.

    Args:
        chosen: Name in the recipe. It is returned if there is no drafter, or a part of this package has made it.
    """
    if drafter is None or not drafter.name and isinstance(drafter, JacobiDrafter | EagleDrafter | MergedDrafter):
        return chosen
    return drafter.name or type(drafter).__name__


def fits(path: str | Path, target: Target) -> bool:
    """Return whether the drafter at `path` was made for a target. The weights of the drafter are not read."""
    return _kind_of(str(path)).fits(path, target)


def drafter_defaults(name: str, device: str, guided: bool = True, *, method: str | None) -> Mapping[str, Any]:
    """Return :func:`default_options` of the drafter with this name, without loading it."""
    if name in DRAFTERS:
        return default_options(DRAFTERS[name](), device, guided, method=method)
    network = MergedDrafter if name.endswith(WITH_WINDOW) else _kind_of(name).drafter
    return default_options(network, device, guided, method=method)


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
    """Combine a drafter network with the Jacobi window. Return other drafters unchanged."""
    combined = next((kind.combined for kind in NETWORKS if isinstance(drafter, kind.drafter)), None)
    return combined(drafter) if combined else drafter


def without_window(drafter: Drafter) -> Drafter | None:
    """Return the network of a drafter, without the Jacobi window; None if the drafter has no network."""
    if isinstance(drafter, MergedDrafter):
        return drafter.eagle
    return drafter if drafter.network is not None else None


def _kind_of(name: str) -> NetworkKind:
    """Return the kind of the drafter network with this name. The suffix `WITH_WINDOW` is ignored."""
    path = name.removesuffix(WITH_WINDOW)
    return next(kind for kind in reversed(NETWORKS) if kind.recognises(path))
