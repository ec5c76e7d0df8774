"""Draft configuration of a sampler node.

It results from the node's inputs `drafting`, `drafter`, `settings` and `lantern`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import comfy.model_management as mm
from comfy_api.v0_0_2 import io

from ..adt_core import AdtError, Drafting, Lantern, Sampling, load_drafter
from ..adt_core.drafters import DRAFTERS, JACOBI, WITH_WINDOW, Drafter, default_options, fits, with_window
from ..adt_core.policies import CHOICES, DEFAULT
from . import folders
from .comfy_runtime import check_cancelled, manage, tell
from .sockets import LoadedDrafter, LoadedModel

AUTO = next(iter(CHOICES))
"""Default of the input `drafting`."""


class DraftConfig(NamedTuple):
    """Draft configuration of a run.

    Attributes:
        drafting: Method and its options.
        loaded: Drafter with its weights, or None for plain decoding.
        lantern: Relaxed acceptance, or None for exact acceptance.
    """

    drafting: Drafting
    loaded: LoadedDrafter | None
    lantern: Lantern | None

    @property
    def drafter(self) -> Drafter | None:
        return self.loaded.drafter if self.loaded is not None else None


def drafting_input() -> io.Input:
    """Return the input `drafting`."""
    return io.Combo.Input("drafting", options=list(CHOICES), default=AUTO, optional=True)


def choose_drafting(
    model: LoadedModel,
    drafter: LoadedDrafter | None = None,
    settings: Mapping[str, Any] | None = None,
    lantern: Lantern | None = None,
    drafting: str = AUTO,
    sampling: Sampling = Sampling(),
) -> DraftConfig:
    """Combine the connected inputs with defaults for the model and the device.

    Args:
        settings: Options by name, from the Settings node. Its method overrides that of `drafting`, unless it is the
            default.
        lantern: Relaxed acceptance from the LANTERN node. It overrides that of `drafting`.
        drafting: Value of the input `drafting`, a key of `CHOICES`.
        sampling: Sampling parameters. The default number of drafts depends on the guidance.

    Raises:
        AdtError: If the inputs contradict each other, or the drafter was loaded for another model.
    """
    if drafter is not None:
        check_same_model(drafter, model)
    choice = CHOICES[drafting]
    given = dict(settings or {})
    if given.get("method", DEFAULT) == DEFAULT:
        given["method"] = choice.method
    if not Drafting.of(given).policy.needs_drafter:
        return DraftConfig(Drafting.of(given), None, None)
    drafter = drafter or own_drafter(model)
    kind = model.patcher.load_device.type
    usual = default_options(drafter.drafter, kind, sampling.guided, method=given["method"])
    relaxed = lantern or (model.target.published.lantern if choice.relaxed else None)
    return DraftConfig(Drafting.of({**usual, **given}), drafter, relaxed)


def check_same_model(drafter: LoadedDrafter, model: LoadedModel) -> None:
    """Raise AdtError if the drafter was loaded for the weights of another model."""
    if drafter.target.decoder is not model.target.decoder:
        raise AdtError(
            "drafter: it was loaded for another model; connect the same ADT-Tree Model Loader to the Drafter Loader "
            "and to this node."
        )


def own_drafter(model: LoadedModel) -> LoadedDrafter:
    """Return the drafter to use if none is connected. The model caches the drafter."""
    path = own_path(model)
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
        tell(
            f"drafter: '{Path(published).name}' is damaged or was made for another model, so '{Path(path).name}' "
            "drafts; download it again."
        )
    return path


def open_drafter(model: LoadedModel, path: str, window: bool = False) -> LoadedDrafter:
    """Load a drafter for a model.

    Args:
        path: Path of a network, or name of a drafter without files.
        window: Whether to add the Jacobi window to the network. The window drafts with guesses from the target's own
            earlier passes.
    """
    drafter = load_drafter(path, model.target, check_cancelled, mm.unet_offload_device())
    patcher = None
    if drafter.network is not None:
        title = f"The drafter '{Path(path).name}'"
        remedy = f"choose '{JACOBI}' in the Drafter Loader"
        patcher = manage(drafter.network, title, remedy, model.target.decoder)
    if window and patcher is not None:
        drafter = with_window(drafter)
        path = path + WITH_WINDOW
    return LoadedDrafter(drafter, patcher, model.target, path)
