"""Resolution of a recipe: the user's options become a complete recipe.

The command line, :class:`~adt_core.run.pipeline.Pipeline` and the nodes all call :func:`resolve_recipe`. So the same
values give the same recipe, and a seed gives the same image. Every default that depends on the model, the drafter or
the device is chosen here.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from ..drafters import drafter_defaults, is_network
from ..errors import AdtError, shown
from ..models.load import open_checkpoint, published_sampling
from ..models.target import PublishedSampling
from ..policies import DEFAULT, POLICIES, check_fit
from ..policies.choices import expanded
from ..recipe import AUTO, BUNDLED, Recipe
from ..settings import plain
from .model_files import default_drafter

WORKING_SHARE = 1.1
"""Estimated memory of a model with its caches, as a multiple of the memory of its weights."""


class Hardware(NamedTuple):
    """Device of a run, and the precisions that it computes well.

    Attributes:
        bfloat16: Whether the device computes in bfloat16 without emulation.
        float16: Whether the device computes in float16.
        memory: Memory of the device in bytes; infinite for a CPU.
    """

    device: torch.device
    bfloat16: bool = False
    float16: bool = False
    memory: float = math.inf

    @classmethod
    def of(cls, device: str | torch.device) -> Hardware:
        """Return the hardware of a device as PyTorch reports it. See :func:`choose_device` for the argument."""
        chosen = choose_device(device)
        total = torch.cuda.mem_get_info(chosen)[1] if chosen.type == "cuda" else math.inf
        return cls(chosen, has_bfloat16(chosen), chosen.type != "cpu", total)


OLD_AMD = ("gfx8", "gfx900", "gfx906", "gfx10")
"""Beginnings of the names of AMD's architectures that emulate bfloat16: those up to RDNA 2, except for CDNA."""
MACOS_WITH_BFLOAT16 = 14


def has_bfloat16(device: torch.device) -> bool:
    """Return whether a device computes in bfloat16 without emulation. ComfyUI has the same rule for these devices."""
    if device.type == "mps":
        return int(platform.mac_ver()[0].partition(".")[0] or 0) >= MACOS_WITH_BFLOAT16
    if device.type != "cuda":
        return False
    if torch.version.hip is not None:
        return not torch.cuda.get_device_properties(device).gcnArchName.startswith(OLD_AMD)
    return torch.cuda.get_device_capability(device)[0] >= 8


def resolve_recipe(
    given: Mapping[str, Any],
    hardware: Hardware,
    published: PublishedSampling | None = None,
    find_drafter: Callable[[str], str] = default_drafter,
) -> Recipe:
    """Return the complete recipe for the values that the user gave.

    Args:
        given: Values of the recipe's options, by option name. None selects the default.
        hardware: Device of the models. It determines the dtype and the default size of the draft trees.
        published: Sampling that the model's authors recommend. None reads it from the model's files.
        find_drafter: Returns the name of a model's default drafter. It is called only if the method needs a drafter and
            `given` has none.

    Raises:
        AdtError: If a value is out of bounds, or if two values contradict each other.
    """
    given = {name: plain(value) for name, value in given.items()}
    model = given.get("model") or BUNDLED
    published = published or _published(model)
    given = expanded(given, published.lantern)
    method = given.get("method") or DEFAULT
    policy = POLICIES.get(method)  # `Recipe.of` refuses an unknown method
    drafter = given.get("drafter") or (find_drafter(model) if policy is None or policy.needs_drafter else None)
    scale = given.get("guidance_scale")
    guided = (published.guidance_scale if scale is None else scale) != 1
    drafts = drafter_defaults(drafter, hardware.device.type, guided, method=method) if drafter is not None else {}
    recipe = Recipe.of({**given, "drafter": drafter}, {**published._asdict(), **drafts})
    if drafter is not None:
        check_fit(recipe.drafting.method, is_network(drafter))
    dtype = choose_dtype(recipe.loading.dtype, model, recipe.loading.weights, hardware)
    lantern = recipe.lantern if recipe.drafting.policy.needs_drafter else None  # without drafts, it has no effect
    return replace(recipe, lantern=lantern, loading=replace(recipe.loading, dtype=dtype))


def _published(model: str) -> PublishedSampling:
    try:
        return published_sampling(model)
    except AdtError:  # `load_target` raises it later
        return PublishedSampling()


def choose_dtype(dtype: str, model: str, weights: str | None, hardware: Hardware) -> str:
    """Return the name of the dtype to compute in.

    `auto` is float32 for the bundled model, which is small, and on a CPU. Other models compute in bfloat16 if the
    device has it. Activations may overflow float16, so on other devices `auto` is float32 if the model fits into the
    memory. Quantised weights need a 16-bit dtype for their kernels.

    Args:
        dtype: The user's choice, one of `recipe.DTYPES`.
        model: "bundled", a checkpoint folder or a weights file.
        weights: "int8", "fp8" or "int4"; None if the weight matrices are not quantised.
    """
    if dtype != AUTO:
        return dtype
    if model == BUNDLED or hardware.device.type == "cpu":
        return "float32"
    if hardware.bfloat16:
        return "bfloat16"
    if not hardware.float16:
        return "float32"
    return "float32" if weights is None and float32_bytes(model) * WORKING_SHARE <= hardware.memory else "float16"


def float32_bytes(model: str) -> int:
    """Return the bytes of a model's weights in float32, from the headers of its files."""
    checkpoint = open_checkpoint(model)
    return 4 * sum(math.prod(checkpoint[name].shape) for name in checkpoint.names)


def choose_device(device: str | torch.device) -> torch.device:
    """Return the torch device for a value of the option `device`.

    Args:
        device: "auto" for CUDA if it is available, else the CPU; or the name of a torch device such as "cuda:1" or
            "mps".

    Raises:
        AdtError: If there is no such device.
    """
    if device == AUTO:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise AdtError("device.unknown", device=shown(device)) from error
    count = _device_count(chosen.type)
    if count == 0:
        kind = chosen.type.upper()
        raise AdtError("device.missing", device=chosen, kind=kind)
    if chosen.index is not None and chosen.index >= count:
        raise AdtError("device.number", device=chosen, count=count)
    return chosen


def _device_count(kind: str) -> int:
    """Return the number of devices of a type that this PyTorch can use."""
    if kind == "cpu":
        return 1
    if kind == "mps":
        return int(torch.backends.mps.is_available())
    module = getattr(torch, kind, None)  # such as torch.cuda and torch.xpu
    return module.device_count() if module is not None and hasattr(module, "device_count") else 0
