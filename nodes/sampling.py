"""What the sampler nodes have in common: the inputs that decide how tokens are drawn, and what follows from what is connected."""

from comfy.model_patcher import ModelPatcher
from comfy_api.v0_0_2 import io

from .. import adt_core
from ..adt_core.errors import AdtError
from .sockets import LoadedDrafter, LoadedModel


def sampling_inputs(seed: str) -> list[io.Input]:
    """The inputs of ``adt_core.Sampling``, by its names. seed: what that input's tooltip says."""
    return [
        io.Int.Input("seed", default=0, min=0, max=2**64 - 1, control_after_generate=True, tooltip=seed),
        io.Float.Input(
            "guidance",
            default=3.0,
            min=0.0,
            max=100.0,
            step=0.1,
            tooltip="How strongly the image follows the prompt (classifier-free guidance). 1 switches guidance off.",
        ),
        io.Float.Input(
            "temperature",
            default=1.0,
            min=0.0,
            max=10.0,
            step=0.05,
            tooltip="Variety: 1 samples as the model was trained to, less plays safe, 0 always takes the likeliest token.",
        ),
        io.Int.Input("top_k", default=0, min=0, max=65536, tooltip="Keep only the k likeliest tokens; 0 keeps all."),
        io.Float.Input(
            "top_p",
            default=1.0,
            min=0.01,
            max=1.0,
            step=0.01,
            tooltip="Keep only the likeliest tokens that together have this probability; 1 keeps all.",
        ),
    ]


def choose_drafting(
    settings: "adt_core.Drafting | None", drafter: LoadedDrafter | None, model: LoadedModel
) -> "adt_core.Drafting":
    """The settings, or what suits the drafter without them. AdtError if these don't go together."""
    drafting = settings or (drafter.drafter.default if drafter is not None else adt_core.Drafting())
    if drafter is None and drafting.method != "autoregressive":
        raise AdtError(
            f"drafter: the method '{drafting.method}' needs one; connect an ADT-Tree Drafter Loader, or an ADT-Tree Settings "
            "node with the method 'autoregressive'."
        )
    if drafter is not None and drafter.target.decoder is not model.target.decoder:
        raise AdtError(
            "drafter: it was loaded for another model; connect the same ADT-Tree Model Loader to the Drafter Loader and the Sampler."
        )
    return drafting


def patchers(model: LoadedModel, drafter: LoadedDrafter | None) -> list[ModelPatcher]:
    """All weights that work when images are made."""
    return [
        model.patcher,
        model.codec,
        *([drafter.patcher] if drafter is not None and drafter.patcher is not None else []),
    ]
