"""From a recipe to loaded models: which drafter suits a model, what holds where nothing is asked for, and where."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ..drafters import DRAFTERS, JACOBI, WITH_WINDOW, drafter_defaults, is_network
from ..errors import AdtError
from ..models.target import PublishedSampling, Target
from ..policies import check_fit
from ..policies.recipe import BUNDLED, Loading, Recipe
from ..rules.settings import Settings
from .checkpoints import checkpoint_files, find_drafter, load_target, published_sampling


def complete(given: Mapping[str, Any], device: str = "auto", strict: bool = False) -> Recipe:
    """Complete a recipe with the defaults of its model, drafter and device.

    Args:
        given: Values of the recipe's options, by their names. None stands for the default.
        device: ``auto``, ``cpu`` or ``cuda``.
        strict: Whether to refuse options of other methods. A PNG may contain them, if another method drew it.
    Raises:
        AdtError: If a value is out of bounds, values contradict each other.
    """
    model = given.get("model") or BUNDLED
    drafter = given.get("drafter") or default_drafter(model)
    kind = choose_device("auto").type if device == "auto" else device
    defaults = {**_published_sampling(model)._asdict(), **drafter_defaults(drafter, kind)}
    recipe = Recipe.of({**given, "drafter": drafter}, defaults)
    if strict:
        recipe.drafting.check_options(given)
    check_fit(recipe.drafting.method, is_network(drafter))
    return recipe


def _published_sampling(model: str) -> PublishedSampling:
    """Return the sampling that a model's authors publish; the general default if the model can't be read.

    Opening such a model raises the error.
    """
    try:
        return published_sampling(model)
    except AdtError:
        return PublishedSampling()


def default_drafter(model: str) -> str:
    """The drafter where none is named: the bundled model has one; others may have a published one beside them, else it
    is the one that needs no network."""
    return BUNDLED if model == BUNDLED else str(find_drafter(model) or JACOBI)


def open_target(loading: Loading, device: torch.device) -> Target:
    """The target of a recipe, with its weights on ``device``. Raises AdtError if it can't be read."""
    dtype = getattr(torch, loading.dtype)
    target = load_target(loading.model, device, dtype, weights=loading.weights, exact=loading.exact == "on")
    return target.sized(*loading.size) if loading.size else target


def choose_device(name: str) -> torch.device:
    """``auto``, ``cpu`` or ``cuda`` as a device of this machine."""
    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        raise AdtError("`device` cuda: this PyTorch finds no CUDA device; use `device` cpu.")
    return torch.device("cuda" if available and name != "cpu" else "cpu")


def named(settings: Settings, *names: str) -> list[tuple[str, Path]]:
    """For ``check_outputs``: settings of these names that were given, and the paths that they name."""
    given = ((name, getattr(settings, name)) for name in names)
    listed = ((name, value if isinstance(value, tuple) else (value,)) for name, value in given)
    return [(name, Path(path)) for name, several in listed for path in several if path]


def models_of(model: str, drafter: str = JACOBI, option: str = "drafter") -> list[tuple[str, Path]]:
    """For ``check_outputs``: the files of a target, and of a drafter if it has any. option: that names the drafter."""
    network = [] if drafter in DRAFTERS else checkpoint_files(drafter.removesuffix(WITH_WINDOW), "drafter")
    return [*(("model", file) for file in checkpoint_files(model, "target")), *((option, file) for file in network)]
