"""Reading of the settings in the PNG that the user gives with `--from-png`.

Anybody may have written the PNG. This module therefore checks every value, and opens no path that is in the PNG.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..drafters import DRAFTERS, WITH_WINDOW
from ..errors import AdtError, shown
from ..recipe import BUNDLED, Recipe
from ..rules.script_noise import noise_device
from ..settings import ORIGINAL_SCRIPT, Option
from .images import read_settings
from .resolve import choose_device

PATHS = "model", "drafter"
"""Settings whose values are paths."""


def read_values(path: Path, given: Mapping[str, object]) -> dict[str, Any]:
    """Return the prompt and the recipe's settings in a PNG, by option name. Null values are omitted.

    Args:
        given: Options that the user has set. They must include `model` and `drafter` if the PNG names others than those
            of this pack.

    Raises:
        AdtError: If the image cannot be reproduced from the settings.
    """
    saved = read_settings(path)
    options = {"prompt": Option(None, "Prompt.", str), **Recipe.options()}
    values = {name: saved[name] for name in ("prompt", *Recipe.names()) if saved.get(name) is not None}
    for name, option in options.items():
        value = values.get(name)
        if (name == "prompt" or name in values) and not option.accepts(value):
            raise AdtError("png.bad_value", path=path, name=name, value=shown(value))
    if values.get("noise") == ORIGINAL_SCRIPT == given.get("noise", ORIGINAL_SCRIPT):
        # The noise of the model's original script depends on the device.
        here = noise_device(choose_device(str(given.get("device", "auto"))))
        if saved.get("noise_device") != here:
            raise AdtError("png.other_noise", path=path, saved=shown(saved.get("noise_device")), device=here)
    for name in PATHS:
        value = values.get(name)
        needs_no_files = value in (None, BUNDLED, BUNDLED + WITH_WINDOW, *DRAFTERS)
        if name not in given and not needs_no_files:
            raise AdtError("png.not_opened", path=path, input=name, value=shown(value, 300))
    return values
