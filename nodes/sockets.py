"""The pack's own socket types and what travels on them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import wraps
from inspect import signature
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_type_hints

from comfy.model_patcher import ModelPatcher
from comfy_api.v0_0_2 import io
from torch import Tensor

from ..adt_core.drafters.base import Drafter
from ..adt_core.errors import AdtError, shown
from ..adt_core.models.target import Target
from ..adt_core.rules.settings import Sampling
from .schema import default

ModelSocket = io.Custom("ADT_MODEL")
DrafterSocket = io.Custom("ADT_DRAFTER")
SettingsSocket = io.Custom("ADT_SETTINGS")
LanternSocket = io.Custom("ADT_LANTERN")
TraceSocket = io.Custom("ADT_TRACE")
ResultsSocket = io.Custom("ADT_RESULTS")
GlmDecoderSocket = io.Custom("ADT_GLM_DECODER")


@dataclass(frozen=True)
class LoadedModel:
    """A target model, and the path that it was loaded from. ``patcher`` manages the memory of its transformer,
    ``codec`` that of its image tokeniser, and ``text`` that of its text encoder, if it has one. ``own_drafters`` is for
    the drafter that serves where none is connected."""

    target: Target
    path: str
    patcher: ModelPatcher
    codec: ModelPatcher
    text: ModelPatcher | None = None
    own_drafters: dict[str, "LoadedDrafter"] = field(default_factory=dict)


@dataclass(frozen=True)
class LoadedDrafter:
    """A drafter, the path or name that it was loaded by, and the target that it was loaded for. ``patcher`` manages the
    memory of its network, if it has one."""

    drafter: Drafter
    patcher: ModelPatcher | None
    target: Target
    path: str


@dataclass(frozen=True)
class GlmDecoder:
    """GLM-Image's second stage, a GlmImagePipeline. ``patcher`` manages the memory of its transformer and its text
    encoder, ``vae`` that of its VAE."""

    pipeline: Any
    patcher: ModelPatcher
    vae: ModelPatcher


@dataclass(frozen=True)
class BatchResults:
    """What a batch made.

    images: IMAGE [N, H, W, 3]. rows: for each image its figures, with ``id``, ``prompt`` and ``file``. settings: what
    all images have in common. folder: where the files are. left_out: the ``id`` and ``prompt`` of what was not drawn,
    with a ``note`` that says why.
    """

    images: Tensor
    rows: list[dict]
    settings: dict
    folder: Path
    left_out: list[dict] = field(default_factory=list)


def checked(function: Callable) -> Callable:
    """A function that refuses named arguments that it does not have, or of other kinds than its annotations say.

    A link brings what its socket is for. But a prompt that comes through the API may hold any value in its place, and
    any link more, and ComfyUI hands them on. ``**sampling`` stands for the fields of ``Sampling``. What a node's
    ``execute`` needs and a prompt leaves out is what the node's schema says.
    """
    hints = get_type_hints(function).items()
    kinds = {name: get_args(kind) if isinstance(kind, UnionType) else (kind,) for name, kind in hints}
    parameters = signature(function).parameters
    names, needed = {*parameters}, {name for name, this in parameters.items() if this.default is this.empty}
    names |= Sampling.fields().keys() if "sampling" in names else set()

    @wraps(function)
    def wrapper(*args, **inputs):
        for name, value in inputs.items():
            if name not in names:
                raise AdtError(f"{shown(name)} is no input of this node; take the link to it away.")
            plain = [kind for kind in kinds.get(name, ()) if isinstance(kind, type)]
            if plain and not isinstance(value, (*plain, *([int] if float in plain else []))):
                raise AdtError(f"{name}: {shown(value)} arrived, which this input can't use; connect a node to it.")
        if args and not needed <= {"cls", "sampling", *inputs}:
            defaults = {plug.id: default(plug) for plug in args[0].define_schema().inputs if plug.id in needed}
            inputs = {name: value for name, value in defaults.items() if value is not None} | inputs
        return function(*args, **inputs)

    return wrapper
