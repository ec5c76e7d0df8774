"""Completion of recipes with defaults, and loading of their models."""

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
        given: Values of the recipe's options by name. None selects the default.
        device: "auto", "cpu" or "cuda".
        strict: Whether to reject options of other methods. A PNG may contain them.

    Raises:
        AdtError: If a value is out of bounds, or values contradict each other.
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
    """Return the default drafter of a model.

    This is the bundled one for the bundled model, else the published drafter if it is installed, else jacobi.

    Args:
        model: Path of the model.
    """
    return BUNDLED if model == BUNDLED else str(find_drafter(model) or JACOBI)


def open_target(loading: Loading, device: torch.device) -> Target:
    """Load the target of a recipe.

    Args:
        loading: Path, precision and image size.
        device: Device of the weights.

    Raises:
        AdtError: If it cannot be read.
    """
    dtype = getattr(torch, loading.dtype)
    target = load_target(loading.model, device, dtype, weights=loading.weights, exact=loading.exact == "on")
    return target.sized(*loading.size) if loading.size else target


def choose_device(name: str) -> torch.device:
    """Return the device of an option.

    Args:
        name: "auto", "cpu" or "cuda".

    Raises:
        AdtError: If there is no CUDA device.
    """
    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        raise AdtError("`device` cuda: this PyTorch finds no CUDA device; use `device` cpu.")
    return torch.device("cuda" if available and name != "cpu" else "cpu")


def given_paths(settings: Settings, *names: str) -> list[tuple[str, Path]]:
    """Return pairs of option and path for `check_outputs`.

    Args:
        settings: Section of arguments.
        *names: Options with paths, which may not be given.
    """
    values = ((name, getattr(settings, name)) for name in names)
    lists = ((name, value if isinstance(value, tuple) else (value,)) for name, value in values)
    return [(name, Path(path)) for name, paths in lists for path in paths if path]


def model_files(model: str, drafter: str = JACOBI, option: str = "drafter") -> list[tuple[str, Path]]:
    """Return pairs of option and file of a target and a drafter for `check_outputs`.

    Args:
        model: Path of the target.
        drafter: Name or path of the drafter.
        option: Option of the drafter.
    """
    network = [] if drafter in DRAFTERS else checkpoint_files(drafter.removesuffix(WITH_WINDOW), "drafter")
    return [*(("model", file) for file in checkpoint_files(model, "target")), *((option, file) for file in network)]
