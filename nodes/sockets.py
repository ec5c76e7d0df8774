"""Socket types of the pack, and the values that they carry."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import wraps
from inspect import signature
from pathlib import Path
from types import SimpleNamespace, UnionType
from typing import Any, get_args, get_type_hints

from comfy.model_patcher import ModelPatcher
from comfy_api.v0_0_2 import io
from torch import Tensor

from ..adt_core import AdtError, Sampling, Target
from ..adt_core.drafters import Drafter
from ..adt_core.errors import shown
from ..adt_core.messages import message
from .comfy_runtime import announce, tell, watched, without_roots
from .schema import NUMBERS, default, input_ids

ModelSocket = io.Custom("ADT_MODEL")
DrafterSocket = io.Custom("ADT_DRAFTER")
SettingsSocket = io.Custom("ADT_SETTINGS")
LanternSocket = io.Custom("ADT_LANTERN")
TraceSocket = io.Custom("ADT_TRACE")
ResultsSocket = io.Custom("ADT_RESULTS")
GlmDecoderSocket = io.Custom("ADT_GLM_DECODER")


@dataclass(frozen=True)
class LoadedModel:
    """Target model under ComfyUI's memory management.

    Attributes:
        target: The target model.
        path: Path that it was loaded from.
        patcher: Manages the memory of the transformer.
        codec: Manages the memory of the image tokeniser.
        text: Manages the memory of the text encoder, if the model has one.
        own_drafters: Cache with at most one drafter, which nodes use if no drafter is connected.
    """

    target: Target
    path: str
    patcher: ModelPatcher
    codec: ModelPatcher
    text: ModelPatcher | None = None
    own_drafters: dict[str, "LoadedDrafter"] = field(default_factory=dict)


@dataclass(frozen=True)
class LoadedDrafter:
    """Drafter under ComfyUI's memory management.

    Attributes:
        drafter: The drafter.
        patcher: Manages the memory of its network, if it has one.
        target: Target model that the drafter was loaded for.
        path: Path of the drafter's files, or name of a drafter without files.
    """

    drafter: Drafter
    patcher: ModelPatcher | None
    target: Target
    path: str


@dataclass(frozen=True)
class GlmDecoder:
    """Second stage of GLM-Image under ComfyUI's memory management.

    Attributes:
        pipeline: GlmImagePipeline of diffusers.
        patcher: Manages the memory of the transformer and the text encoder.
        vae: Manages the memory of the VAE.
    """

    pipeline: Any
    patcher: ModelPatcher
    vae: ModelPatcher


@dataclass(frozen=True)
class BatchResults:
    """Results of a batch.

    Attributes:
        images: IMAGE [N, H, W, 3].
        rows: `id`, `prompt`, `file` and the statistics of each image.
        settings: Settings that all images share.
        folder: Folder of the image files.
        left_out: `id`, `prompt` and a `note` with the reason, for each prompt without an image.
    """

    images: Tensor
    rows: list[dict]
    settings: dict
    folder: Path
    left_out: list[dict] = field(default_factory=list)


_OF_THE_PAGE = "control_after_generate", "measurement"
"""Inputs that the page adds: the first one to a seed when it exports a workflow, the second one when the user measures
again, so that ComfyUI does not return a cached result."""
NO_QUEUE = SimpleNamespace(unique_id=None, prompt=None, extra_pnginfo=None)
"""Hidden inputs of a node that a script calls without ComfyUI's queue."""
_MOST_NAMED = 10  # maximum number of unknown inputs that a warning names


def checked(function: Callable) -> Callable:
    """Wrap a function to reject unknown keyword arguments and values that do not match its annotations.

    ComfyUI does not check everything in API prompts: a socket may get a literal value of any type, and an input that
    the node does not have may get a link. Arguments are checked as follows:

    - `**sampling` in the signature accepts the fields of `Sampling`, with the names of `NUMBERS`.
    - If a prompt omits a required argument of `execute`, the argument gets its default from the node's schema.
    - The result of `execute` names ignored inputs, see `with_warning`.
    - Without ComfyUI's queue, as in exported scripts, `cls.hidden` has empty values.

    Args:
        function: Function, or the `execute` class method of a node.

    Raises:
        AdtError: From the wrapped function, if an argument is unknown or has the wrong type.
    """
    hints = get_type_hints(function).items()
    kinds = {name: get_args(kind) if isinstance(kind, UnionType) else (kind,) for name, kind in hints}
    parameters = signature(function).parameters
    names = {*parameters}
    needed = {name for name, this in parameters.items() if this.default is this.empty}
    if "sampling" in names:
        names |= Sampling.fields().keys() - set(NUMBERS.values()) | set(NUMBERS)

    @wraps(function)
    def wrapper(*args, **inputs):
        if args and getattr(args[0], "hidden", None) is None:
            args = type(args[0].__name__, (args[0],), {"hidden": NO_QUEUE}), *args[1:]
        for name, value in inputs.items():
            if name not in names:
                raise AdtError("input.unknown", name=shown(name))
            plain = [kind for kind in kinds.get(name, ()) if isinstance(kind, type)]
            if plain and not isinstance(value, (*plain, *([int] if float in plain else []))):
                raise AdtError("input.unusable", input=name, value=shown(value))
        if args and not needed <= {"cls", "sampling", *inputs}:
            defaults = {plug.id: default(plug) for plug in args[0].define_schema().inputs if plug.id in needed}
            inputs = {name: value for name, value in defaults.items() if value is not None} | inputs
        try:
            result = function(*args, **inputs)
        except AdtError as error:
            error.args = (error.message.map(without_roots),)
            announce(error, watched())
            raise
        return with_warning(args[0], result) if args else result

    return wrapper


def with_warning(node: type[io.ComfyNode], output: io.NodeOutput) -> io.NodeOutput:
    """Return the output of a node, with a warning in `ui` if the API prompt has values for inputs that do not exist.

    ComfyUI does not pass such values to the node, so a misspelled input would have no effect. `/history` contains the
    warning as `outputs[id of the node]["warnings"]`. The tab that queued the prompt shows it under the node.
    """
    hidden = getattr(node, "hidden", None)
    prompt = getattr(hidden, "prompt", None) or {}
    given = (prompt.get(getattr(hidden, "unique_id", None)) or {}).get("inputs") or {}
    known = input_ids(node) if given else []
    unknown = [name for name in given if name not in [*known, *_OF_THE_PAGE]]
    if unknown:
        names = ", ".join(map(shown, unknown[:_MOST_NAMED])) + (" ..." if len(unknown) > _MOST_NAMED else "")
        warning = message("inputs.unknown", names=names, inputs=", ".join(known))
        tell(warning)
        ui = output.ui if isinstance(output.ui, dict) or output.ui is None else output.ui.as_dict()
        output.ui = {**(ui or {}), "warnings": [warning]}
    return output
