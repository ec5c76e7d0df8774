"""Files of checkpoints on the disk, found without loading a model."""

from __future__ import annotations

import os
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path

from ..drafters import DRAFTERS, JACOBI, WITH_WINDOW
from ..errors import AdtError
from ..files import is_hidden, list_visible
from ..models.load import FAMILIES, published_at
from ..models.reading.paths import home_of, resolve
from ..settings import BUNDLED

ROOT = Path(__file__).resolve().parents[2]
"""Folder of this pack."""


def default_folder() -> Path:
    """Return the folder of models: "models/ar_image" in the ComfyUI with this pack, else as a relative path."""
    base = ROOT.parents[1] if ROOT.parent.name == "custom_nodes" else Path()
    return base / "models" / "ar_image"


def is_target_config(config: dict) -> bool:
    """Return whether the content of a `config.json` is the configuration of a target."""
    return any(family.recognises(config, ()) for family in FAMILIES)


def is_target_file(name: str) -> bool:
    """Return whether a file name is the name of a target that consists of one weights file without a `config.json`."""
    patterns = [pattern for family in FAMILIES for pattern in family.single_files]
    return not is_hidden(name) and any(fnmatchcase(name, pattern) for pattern in patterns)


def find_drafter(model: str | Path) -> Path | None:
    """Return the folder of a target's published drafter, or None if it is not installed.

    The function searches the folder that contains the target, and folders called `ar_image_drafters` near this folder.
    """
    path = Path(os.path.expanduser(model)).absolute()
    row = published_at(path)
    if row is None or row.drafter is None:
        return None
    name = row.drafter.folder
    organisation = row.drafter.repository.partition("/")[0]
    home = home_of(path)
    homes = home, home.parent / "ar_image_drafters", home.parent.parent / "ar_image_drafters"
    folders = (home / folder for home in homes for folder in (name, f"{organisation}/{name}"))
    return next((folder for folder in folders if (folder / "config.json").is_file()), None)


def default_drafter(model: str) -> str:
    """Return the name or path of the default drafter of a model.

    It is the bundled drafter for the bundled model, else the published drafter if it is installed, else "jacobi".
    """
    return BUNDLED if model == BUNDLED else str(find_drafter(model) or JACOBI)


_WEIGHTS = "*.safetensors *.bin *.pt *.pth *.ckpt *.index.json config.json *_config.json pairing.json"
_TEXTS = "*tokenizer* *.model vocab* merges.txt added_tokens.json special_tokens_map.json"
_PARTS = f"{_WEIGHTS} {_TEXTS}".split()
"""Patterns of the names of files that belong to a checkpoint."""


def checkpoint_files(path: str | Path, role: str) -> list[Path]:
    """Return the files of a checkpoint, including files that its model family reads from other folders.

    The function opens no file. Without a checkpoint at the path, the list is empty; `open_checkpoint` raises the error
    later.

    Args:
        path: "bundled", a checkpoint folder or a weights file.
        role: "target" or "drafter".
    """
    with suppress(AdtError, OSError):
        place = resolve(path, role)
        folder = place if place.is_dir() else place.parent
        homes = dict.fromkeys((folder, folder.parent, home_of(place)))
        patterns = [pattern for family in FAMILIES for pattern in family.companions]
        beside = [match for home in homes for pattern in patterns for match in list_visible(home, pattern)]
        near = [file for home in {folder, *(match.parent for match in beside)} for file in list_visible(home, "*")]
        parts = (file for file in near if any(fnmatchcase(file.name, pattern) for pattern in _PARTS))
        return [file for file in (place, *beside, *parts) if file.is_file()]
    return []


def model_files(model: str, drafter: str = JACOBI, option: str = "drafter") -> list[tuple[str, Path]]:
    """Return pairs of option and file for `images.check_outputs`. `option` is the one that selects the drafter."""
    network = [] if drafter in DRAFTERS else checkpoint_files(drafter.removesuffix(WITH_WINDOW), "drafter")
    return [*(("model", file) for file in checkpoint_files(model, "target")), *((option, file) for file in network)]
