"""What people take for a checkpoint and is none that can be read: what it is, and what to take instead."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from ..errors import shown
from ..models.families.chameleon import ANOLE


def layout(path: Path) -> str:
    """If a path is a known kind of file, or a folder of one, that can't be read: that, and what to take; else ""."""
    names = {path.name} if path.is_file() else {file.name for file in path.iterdir()}
    if "model_index.json" in names:
        return "is a folder of diffusers, which holds a diffusion model; take a visual autoregressive model"
    if any(name.lower().endswith(".gguf") for name in names):
        return "is GGUF, which this version can't read; take the repository with *.safetensors"
    deeper = path.is_dir() and any(path.glob("models/*/consolidated*.pth"))
    if deeper or any(name.startswith("consolidated") and name.endswith(".pth") for name in names):
        home = path.parent
        return f"is in Meta's layout (consolidated.pth), as GAIR publishes Anole; run `{ANOLE.command(home)}` instead"
    return ""


def kind(config: dict, names: Collection[str]) -> str:
    """If weights are of a kind that is no target: that, and what to take; else ""."""
    if "fc.weight" in names and any(name.startswith("layers.0.") for name in names):
        place = "put it into models/ar_image_drafters and choose it in the Drafter Loader, or give it to --drafter"
        return f"is an EAGLE drafter and no model; {place}"
    if "_class_name" in config:
        return f"is a part of a diffusers model ({shown(config['_class_name'])}); take a visual autoregressive model"
    return ""
