"""The pack's own socket types and what travels on them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from comfy.model_patcher import ModelPatcher
from comfy_api.v0_0_2 import io
from torch import Tensor

ModelSocket = io.Custom("ADT_MODEL")
DrafterSocket = io.Custom("ADT_DRAFTER")
SettingsSocket = io.Custom("ADT_SETTINGS")
LanternSocket = io.Custom("ADT_LANTERN")
TraceSocket = io.Custom("ADT_TRACE")
ResultsSocket = io.Custom("ADT_RESULTS")


@dataclass(frozen=True)
class LoadedModel:
    """A target model. ``patcher`` manages its transformer, ``codec`` its image tokeniser, ``text`` its text encoder if it has one."""

    target: Any
    patcher: ModelPatcher
    codec: ModelPatcher
    text: ModelPatcher | None = None


@dataclass(frozen=True)
class LoadedDrafter:
    """A drafter, as it is called in the loader, and the target that it was loaded for. ``patcher`` manages its network, if it has one."""

    drafter: Any
    patcher: ModelPatcher | None
    target: Any
    name: str


@dataclass(frozen=True)
class BatchResults:
    """What a batch made: IMAGE [N, H, W, 3], for each its id and its figures with its prompt and file, and the folder in which the files are."""

    images: Tensor
    rows: list[dict]
    settings: dict
    folder: Path
