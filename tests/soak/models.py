"""The models of a soak test: the bundled one, and small random ones in published layouts, each with a drafter."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from adt_core import load_target
from adt_core.errors import Check
from adt_core.models.target import Target
from adt_core.rules.settings import BUNDLED
from tests.drafted import write_drafter
from tests.layouts.llamagen import write_hugging_face
from tests.tiny import write_tiny_checkpoint

SMALL, MIDDLE, WITH_TEXT_ENCODER = "small", "middle", "llamagen/LlamaGen-T2I"
WRITERS: dict[str, Callable[[Path], Path]] = {
    SMALL: lambda folder: write_tiny_checkpoint(folder, scale=3.0),
    MIDDLE: lambda folder: write_tiny_checkpoint(folder, scale=3.0, resolution=48, hidden=48, seed=1),
    WITH_TEXT_ENCODER: lambda folder: write_hugging_face(folder.parent, side=4),
}
"""Models of 16 to 36 tokens, by their names in ComfyUI's Model Loader."""
TARGETS, DRAFTERS = "ar_image", "ar_image_drafters"
"""ComfyUI's folders for them."""


def write_models(folder: Path) -> None:
    """Write all models and their drafters into what is ComfyUI's folder ``models``, or another."""
    for name, write in WRITERS.items():
        write_drafter(folder / DRAFTERS / drafter_name(name), load_target(write(folder / TARGETS / name)))


def drafter_name(model: str) -> str:
    """The drafter network of a model, as the Drafter Loader calls it."""
    return BUNDLED if model == BUNDLED else f"for-{model.split('/')[0]}"


def path_of(folder: Path, kind: str, name: str) -> str:
    """What a target or a drafter is loaded from. kind: TARGETS or DRAFTERS."""
    return BUNDLED if name == BUNDLED else str(folder / kind / name)


def load(folder: Path, model: str, dtype: str, check: Check | None = None) -> Target:
    """A target. dtype: as the Model Loader calls it, or float64."""
    weights = dtype.split()[0] if dtype.endswith(" weights") else None
    kind = torch.float32 if weights else getattr(torch, dtype)
    return load_target(path_of(folder, TARGETS, model), dtype=kind, weights=weights, check=check)
