"""Loading of targets and drafters by path, and the table of published checkpoints.

A target is an image model. A drafter is a small network, or a rule without a network, that proposes tokens for a
target.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from pathlib import Path

import torch

from .. import drafters
from ..errors import AdtError, Check
from ..files import is_hidden, list_visible
from ..models import load
from ..models.downloads import Published
from ..models.quantised import check_device
from ..models.reading.checkpoint import Checkpoint, NoWeights
from ..models.reading.paths import home_of, name_of, resolve
from ..models.target import PublishedSampling, Target
from ..settings import BUNDLED
from . import training_domain, unsupported

BUNDLED_SAMPLING = PublishedSampling(guidance=2.0, temperature=0.6)
"""Sampling settings of the bundled model.

At temperature 1, the model draws broken shapes and mixes their colours. With guidance above 2, it repeats objects. With
guidance below 2, it ignores words of the prompt. See model_making/README.md."""


def load_target(
    path: str | Path = BUNDLED,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    check: Check | None = None,
    weights: str | None = None,
    exact: bool = True,
) -> Target:
    """Load a target.

    Args:
        path: "bundled", a checkpoint folder or a weights file.
        device: Device of the weights.
        dtype: Precision of the computation.
        check: Cancellation callback. It raises an exception to stop.
        weights: Quantisation of the weight matrices, "int8", "fp8" or "int4". None stores the matrices in `dtype`.
        exact: Whether to use batch-invariant mode if `dtype` is half precision.

    Raises:
        AdtError: If the checkpoint cannot be read, or if the device does not support the weights.
    """
    check_device(weights, torch.device(device))
    checkpoint = open_checkpoint(path)
    unsupported.refuse_kind(checkpoint)
    target = load.load(checkpoint, device, dtype, check, weights, exact)
    if str(path) == BUNDLED:
        target.name = BUNDLED
        target.published = BUNDLED_SAMPLING
        target.words = training_domain.bundled_vocabulary()
        target.prompter.name = "the bundled model"
    return target


def load_drafter(
    path: str | Path, target: Target, check: Check | None = None, device: torch.device | None = None
) -> drafters.Drafter:
    """Load a drafter for a target.

    This function calls `adt_core.drafters.load_drafter`. If the user has chosen an unsupported kind of file, such as
    GGUF, the error names this kind.

    Args:
        path: Name of a drafter without files, such as "jacobi", or path of a drafter network.
        target: Target to draft for.
        check: Cancellation callback. It raises an exception to stop.
        device: Device of the weights, by default the target's.

    Raises:
        AdtError: If the checkpoint cannot be read.
    """
    if str(path) in drafters.DRAFTERS:
        return drafters.load_drafter(path, target)
    with explain_errors(str(path).removesuffix(drafters.WITH_WINDOW), "drafter"):
        return drafters.load_drafter(path, target, check, device)


def open_checkpoint(path: str | Path) -> Checkpoint:
    """Open the checkpoint of a target.

    Args:
        path: "bundled", a checkpoint folder or a weights file.

    Raises:
        AdtError: If the checkpoint cannot be read. For a published model, the message contains the command that
            downloads the missing files.
    """
    try:
        with explain_errors(path, "target"):
            return Checkpoint(resolve(path, "target"))
    except AdtError as error:
        row = find_published(name_of(Path(path)))
        if row is None:
            raise
        raise AdtError(
            f"{error.template.removesuffix('.')}; to complete it, {row.how_to_get(home_of(Path(path)))}."
        ) from error


@contextmanager
def explain_errors(path: str | Path, role: str) -> Iterator[None]:
    """Context manager that improves the errors of code that reads a checkpoint.

    If the path is an unsupported kind of file, such as GGUF, the error names this kind.

    Args:
        path: Path that the code in the `with` block reads.
        role: "target" or "drafter".

    Raises:
        AdtError: If the path is a known unsupported kind of file.
        NoWeights: If the path has no weights for another reason.
    """
    place = resolve(path, role)
    try:
        if place.is_file():
            unsupported.refuse_layout(place)
        yield
    except NoWeights:
        unsupported.refuse_layout(place)
        raise


def published_sampling(path: str | Path) -> PublishedSampling:
    """Return the sampling settings that the authors of a target recommend, without loading the target.

    Args:
        path: "bundled", a checkpoint folder or a weights file.

    Raises:
        AdtError: If the checkpoint cannot be read.
    """
    if str(path) == BUNDLED:
        return BUNDLED_SAMPLING
    checkpoint = open_checkpoint(path)
    unsupported.refuse_kind(checkpoint)
    return load.family_of(checkpoint).sampling


def is_target_config(config: dict) -> bool:
    """Return whether a `config.json` is the configuration of a target.

    Args:
        config: Content of the `config.json`.
    """
    return any(family.recognises(config, ()) for family in load.FAMILIES)


def is_target_file(name: str) -> bool:
    """Return whether a file name is the name of a target that consists of one weights file without a `config.json`."""
    patterns = [pattern for family in load.FAMILIES for pattern in family.single_files]
    return not is_hidden(name) and any(fnmatchcase(name, pattern) for pattern in patterns)


def find_drafter(model: str | Path) -> Path | None:
    """Return the folder of a target's published drafter, or None if no such drafter is installed.

    The function searches the folder that contains the target, and folders called `ar_image_drafters` near this folder.
    """
    path = Path(os.path.expanduser(model)).absolute()
    row = find_published(name_of(path))
    if row is None or row.drafter is None:
        return None
    name = row.drafter.folder
    organisation = row.drafter.repository.partition("/")[0]
    home = home_of(path)
    homes = home, home.parent / "ar_image_drafters", home.parent.parent / "ar_image_drafters"
    folders = (home / folder for home in homes for folder in (name, f"{organisation}/{name}"))
    return next((folder for folder in folders if (folder / "config.json").is_file()), None)


def find_published(name: str) -> Published | None:
    """Return the published model with a name, or None if no model has this name. The case of letters is ignored."""
    return next((row for row in published() if row.downloads and row.name.lower() == name.lower()), None)


def published() -> list[Published]:
    """Return the published models that this pack can load, grouped by model family."""
    return [row for family in load.FAMILIES for row in family.published]


_WEIGHTS = "*.safetensors *.bin *.pt *.pth *.ckpt *.index.json config.json *_config.json pairing.json"
_TEXTS = "*tokenizer* *.model vocab* merges.txt added_tokens.json special_tokens_map.json"
_PARTS = f"{_WEIGHTS} {_TEXTS}".split()
"""Patterns of the names of files that belong to a checkpoint."""


def checkpoint_files(path: str | Path, role: str) -> list[Path]:
    """Return the files of a checkpoint, including files that its model family reads from other folders.

    The function opens no file. If there is no checkpoint at the path, the list is empty, and no error is raised here.
    In this case, `open_checkpoint` raises the error later.

    Args:
        path: "bundled", a checkpoint folder or a weights file.
        role: "target" or "drafter".
    """
    with suppress(AdtError, OSError):
        place = resolve(path, role)
        folder = place if place.is_dir() else place.parent
        homes = dict.fromkeys((folder, folder.parent, home_of(place)))
        patterns = [pattern for family in load.FAMILIES for pattern in family.companions]
        beside = [match for home in homes for pattern in patterns for match in list_visible(home, pattern)]
        near = [file for home in {folder, *(match.parent for match in beside)} for file in list_visible(home, "*")]
        parts = (file for file in near if any(fnmatchcase(file.name, pattern) for pattern in _PARTS))
        return [file for file in (place, *beside, *parts) if file.is_file()]
    return []
