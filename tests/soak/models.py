"""Models of a soak test: the bundled model and small random models in published layouts. Each has a drafter."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from adt_core import load_target
from adt_core.errors import Check
from adt_core.models.target import Target
from adt_core.settings import BUNDLED
from tests.drafted import write_drafter
from tests.layouts.llamagen import write_hugging_face
from tests.tiny import write_tiny_checkpoint

SMALL = "small"
MIDDLE = "middle"
WITH_TEXT_ENCODER = "llamagen/LlamaGen-T2I"
WRITERS: dict[str, Callable[[Path], Path]] = {
    SMALL: lambda folder: write_tiny_checkpoint(folder, scale=3.0),
    MIDDLE: lambda folder: write_tiny_checkpoint(folder, scale=3.0, resolution=48, hidden=48, seed=1),
    WITH_TEXT_ENCODER: lambda folder: write_hugging_face(folder.parent, side=4),
}
"""Name in the Model Loader node -> function that writes a model with 16 to 36 tokens per image."""
TARGETS = "ar_image"  # ComfyUI's folder for targets
DRAFTERS = "ar_image_drafters"  # ComfyUI's folder for drafters


def write_models(folder: Path) -> None:
    """Write all models and their drafters to ComfyUI's folder ``models``, or a folder with the same structure."""
    for name, write in WRITERS.items():
        write_drafter(folder / DRAFTERS / drafter_name(name), load_target(write(folder / TARGETS / name)))


def drafter_name(model: str) -> str:
    """Return the name of a model's drafter network in the Drafter Loader node."""
    return BUNDLED if model == BUNDLED else f"for-{model.split('/')[0]}"


def path_of(folder: Path, kind: str, name: str) -> str:
    """Return the path from which to load a target or drafter in the folder of :func:`write_models`."""
    return BUNDLED if name == BUNDLED else str(folder / kind / name)


def load(folder: Path, model: str, dtype: str, check: Check | None = None) -> Target:
    """Load a target in a dtype of the Model Loader node, or float64; `folder` is that of :func:`write_models`."""
    weights = dtype.split()[0] if dtype.endswith(" weights") else None
    kind = torch.float32 if weights else getattr(torch, dtype)
    return load_target(path_of(folder, TARGETS, model), dtype=kind, weights=weights, check=check)
