"""Completion of a recipe with the defaults of its model, its drafter and the device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ..drafters import drafter_defaults, is_network
from ..errors import AdtError
from ..models.load import published_sampling
from ..models.target import PublishedSampling
from ..policies import check_fit
from ..policies.choices import expanded
from ..recipe import BUNDLED, Recipe
from .checkpoints import default_drafter


def complete(given: Mapping[str, Any], device: str = "auto") -> Recipe:
    """Complete a recipe with the defaults of its model, drafter and device.

    Args:
        given: Values of the recipe's options, by option name. None selects the default.
        device: "auto", "cpu" or "cuda".

    Raises:
        AdtError: If a value is out of bounds, or if two values contradict each other.
    """
    model = given.get("model") or BUNDLED
    published = _published(model)
    given = expanded(given, published.lantern)
    drafter = given.get("drafter") or default_drafter(model)
    kind = choose_device("auto").type if device == "auto" else device
    guidance = given.get("guidance")
    guided = (published.guidance if guidance is None else guidance) != 1
    defaults = {**published._asdict(), **drafter_defaults(drafter, kind, guided, method=given.get("method"))}
    recipe = Recipe.of({**given, "drafter": drafter}, defaults)
    check_fit(recipe.drafting.method, is_network(drafter))
    return recipe


def _published(model: str) -> PublishedSampling:
    try:
        return published_sampling(model)
    except AdtError:  # `load_target` raises it later
        return PublishedSampling()


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
