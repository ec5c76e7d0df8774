"""Completion of a recipe with defaults, and loading of its models.

A recipe contains all settings that determine an image, except its prompt.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ..drafters import DRAFTERS, JACOBI, WITH_WINDOW, drafter_defaults, is_network
from ..errors import AdtError
from ..models.target import PublishedSampling, Target
from ..policies import check_fit
from ..recipe import BUNDLED, Loading, Recipe
from ..settings import Settings
from .checkpoints import checkpoint_files, find_drafter, load_target, published_sampling


def complete(given: Mapping[str, Any], device: str = "auto", strict: bool = False) -> Recipe:
    """Complete a recipe with the defaults of its model, drafter and device.

    Args:
        given: Values of the recipe's options, by option name. None selects the default.
        device: "auto", "cpu" or "cuda".
        strict: Whether to reject options that the chosen method does not use. Use False if the values come from a PNG,
            because the settings of a PNG may contain such options.

    Raises:
        AdtError: If a value is out of bounds, or if two values contradict each other.
    """
    model = given.get("model") or BUNDLED
    drafter = given.get("drafter") or default_drafter(model)
    kind = choose_device("auto").type if device == "auto" else device
    published = _published_sampling(model)
    guidance = given.get("guidance")
    guided = (published.guidance if guidance is None else guidance) != 1
    defaults = {**published._asdict(), **drafter_defaults(drafter, kind, guided)}
    recipe = Recipe.of({**given, "drafter": drafter}, defaults)
    if strict:
        recipe.drafting.check_options(given)
    check_fit(recipe.drafting.method, is_network(drafter))
    return recipe


def _published_sampling(model: str) -> PublishedSampling:
    """Return the sampling settings that the authors of a model recommend.

    If the model cannot be read, this function returns general defaults. `open_target` raises the error later.
    """
    try:
        return published_sampling(model)
    except AdtError:
        return PublishedSampling()


def default_drafter(model: str) -> str:
    """Return the name or path of the default drafter of a model.

    The default is the bundled drafter for the bundled model. For another model, it is the published drafter of this
    model if this drafter is installed, else "jacobi".
    """
    return BUNDLED if model == BUNDLED else str(find_drafter(model) or JACOBI)


def open_target(loading: Loading, device: torch.device) -> Target:
    """Load the target of a recipe.

    Raises:
        AdtError: If the target cannot be read.
    """
    dtype = getattr(torch, loading.dtype)
    target = load_target(loading.model, device, dtype, weights=loading.weights, exact=loading.exact == "on")
    return target.sized(*loading.size) if loading.size else target


def choose_device(name: str) -> torch.device:
    """Return the torch device for a value of the option `device`.

    Args:
        name: "auto", "cpu" or "cuda". "auto" selects CUDA if a CUDA device is available.

    Raises:
        AdtError: If `name` is "cuda" and there is no CUDA device.
    """
    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        raise AdtError("`device` cuda: this PyTorch finds no CUDA device; use `device` cpu.")
    return torch.device("cuda" if available and name != "cpu" else "cpu")


def given_paths(settings: Settings, *names: str) -> list[tuple[str, Path]]:
    """Return the paths that the user has given, as pairs of option and path for `images.check_outputs`.

    Args:
        settings: Arguments that contain the options.
        *names: Names of options whose value is a path, several paths, or None. None gives no pair.
    """
    values = ((name, getattr(settings, name)) for name in names)
    lists = ((name, value if isinstance(value, tuple) else (value,)) for name, value in values)
    return [(name, Path(path)) for name, paths in lists for path in paths if path]


def model_files(model: str, drafter: str = JACOBI, option: str = "drafter") -> list[tuple[str, Path]]:
    """Return the files of a target and a drafter, as pairs of option and file for `images.check_outputs`."""
    network = [] if drafter in DRAFTERS else checkpoint_files(drafter.removesuffix(WITH_WINDOW), "drafter")
    return [*(("model", file) for file in checkpoint_files(model, "target")), *((option, file) for file in network)]
