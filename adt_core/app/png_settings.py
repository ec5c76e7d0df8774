"""Settings that a PNG brings along. Whoever made the PNG may be a stranger: each is checked, and none opens a file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..drafters import DRAFTERS, WITH_WINDOW
from ..errors import AdtError, shown
from ..policies.recipe import BUNDLED, Recipe
from ..rules.noise import NOISE_VERSION
from ..rules.settings import UPSTREAM
from ..rules.upstream import maker
from .args import InputArgs
from .images import read_settings
from .loading import choose_device

PATHS = "model", "drafter"
"""Settings that name files."""
EARLIER = {"exact": "off", "suffix": ""}
"""What holds where a PNG does not say: there was no such thing when it was written."""


def read_values(path: Path, given: Mapping[str, object]) -> dict[str, Any]:
    """The prompt and the recipe in a PNG, by the names of the settings, checked; what is null is left out.

    given: what the user has said; of the files to be opened, only the user may name others than the pack's own. Raises
    AdtError if the image can't be made again from them.
    """
    saved = read_settings(path)
    version = saved.get("noise_version")
    if version != NOISE_VERSION:
        raise AdtError(
            f"{path} was made with noise version {shown(version)}, but this ADT-Tree uses {NOISE_VERSION}; generate a "
            "new image instead."
        )
    options = {"prompt": InputArgs.options()["prompt"], **Recipe.options()}
    values = {name: saved[name] for name in ("prompt", *Recipe.names()) if saved.get(name) is not None}
    for name, option in options.items():
        value = values.get(name)
        if (name == "prompt" or name in values) and not option.holds(value):
            raise AdtError(f"{path} has {name} {shown(value)}, which is not valid; generate a new image instead.")
    if values.get("noise") == UPSTREAM == given.get("noise", UPSTREAM):
        _check_maker(path, saved.get("noise_device"), str(given.get("device", "auto")))
    for name in PATHS:
        asked = values.get(name)
        if name not in given and not _is_ours(asked):
            raise AdtError(
                f"{path} names the {name} {shown(asked, 300)}, which is not opened, as anybody may have written it; "
                f"if you trust it, add `{name}` with that path."
            )
    return EARLIER | values


def _check_maker(path: Path, device: object, chosen: str) -> None:
    """Raises AdtError if upstream's noise was made by another device than the chosen one, whose noise is another."""
    here = maker(choose_device(chosen))
    if device != here:
        raise AdtError(
            f"{path} was made with the upstream noise of {shown(device)}, but `device` {here} makes other noise; "
            "use the same device, or choose `noise` own for another image."
        )


def _is_ours(asked: object) -> bool:
    """Does a setting name nothing, or what comes with the pack?"""
    return asked in (None, BUNDLED, BUNDLED + WITH_WINDOW, *DRAFTERS)
