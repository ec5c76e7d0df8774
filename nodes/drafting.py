"""Drafting of a sampler node: the choice that its inputs describe, and the drafter to use if none is connected."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import comfy.model_management as mm
from comfy_api.v0_0_2 import io

from ..adt_core import AdtError, Lantern, load_drafter
from ..adt_core.drafters import DRAFTERS, JACOBI, WITH_WINDOW, fits, with_window
from ..adt_core.messages import message
from ..adt_core.policies import CHOICES, DEFAULT, RELAXED
from ..adt_core.settings import flat_lantern
from . import folders
from .comfy_runtime import check_cancelled, tell
from .sockets import LoadedDrafter, LoadedModel
from .weights import manage

AUTO = next(iter(CHOICES))  # default of the input `drafting`


def drafting_input() -> io.Input:
    """Return the input `drafting`."""
    return io.Combo.Input("drafting", options=list(CHOICES), default=AUTO, optional=True)


def drafting_options(
    settings: Mapping[str, Any] | None = None, lantern: Lantern | None = None, drafting: str = AUTO
) -> dict[str, Any]:
    """Return the options of a recipe, by name, that the inputs for drafting determine.

    Args:
        settings: Options by name, from the Settings node. Its method, unless it is the default, overrides the method of
            `drafting`.
        lantern: Relaxed acceptance from a connected LANTERN node. It overrides LANTERN of `drafting`.
        drafting: Value of the input `drafting`, a key of `CHOICES`.
    """
    given = dict(settings or {})
    method = CHOICES[drafting]
    if given.get("method", DEFAULT) != DEFAULT:
        method = given["method"] + (RELAXED if method.endswith(RELAXED) else "")
    return {**given, "method": method, **(flat_lantern(lantern) if lantern is not None else {})}


def check_same_model(drafter: LoadedDrafter, model: LoadedModel) -> None:
    """Raise AdtError if the drafter was loaded for the weights of another model."""
    if drafter.target.decoder is not model.target.decoder:
        raise AdtError("drafter.other_model")


def own_drafter(model: LoadedModel, path: str) -> LoadedDrafter:
    """Return the drafter to use if none is connected, at the path of `own_path`. The model caches the drafter."""
    key = f"{path} {folders.fingerprint(path)}"
    if key not in model.own_drafters:
        model.own_drafters.clear()
        model.own_drafters[key] = open_drafter(model, path)
    return model.own_drafters[key]


def own_path(model: LoadedModel) -> str:
    """Return the path or name of the drafter to use if none is connected.

    The first of these drafters is used:

    1. the published drafter of the model, if it is installed and fits the model
    2. the first network in the drafter folders that fits the model
    3. `jacobi`, which needs no files

    The node shows a message if the published drafter is installed but is damaged or does not fit.
    """
    published = folders.drafter_for(model.path)
    networks = (path for path in (published, *folders.drafters().values()) if path not in (folders.AUTO, *DRAFTERS))
    path = next((network for network in networks if fits(network, model.target)), JACOBI)
    if published not in (path, *DRAFTERS):
        tell(message("drafter.replaced", name=Path(published).name, other=Path(path).name))
    return path


def open_drafter(model: LoadedModel, path: str, window: bool = False) -> LoadedDrafter:
    """Load a drafter for a model. With `window`, add the Jacobi window to the network.

    Args:
        path: Path of a network, or name of a drafter without files.
    """
    drafter = load_drafter(path, model.target, check_cancelled, mm.unet_offload_device())
    patcher = None
    if drafter.network is not None:
        title = message("title.drafter", name=Path(path).name)
        remedy = message("remedy.jacobi")
        patcher = manage(drafter.network, title, remedy, model.target.decoder)
    if window and patcher is not None:
        drafter = with_window(drafter)
        path = path + WITH_WINDOW
    return LoadedDrafter(drafter, patcher, model.target, path)
