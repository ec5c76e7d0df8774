"""Checkpoints as people name them: models and drafters to load, what a wrong one is, and what is published where."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from pathlib import Path

import torch

from .. import drafters
from ..errors import AdtError, Check
from ..models import load
from ..models.downloads import Published
from ..models.reading.checkpoint import BUNDLED, Checkpoint, NoWeights, home_of, name_of, resolve
from ..models.target import PublishedSampling, Target
from . import training_domain, unsupported

BUNDLED_SAMPLING = PublishedSampling(guidance=2.0, temperature=0.6)
"""At temperature 1 the bundled model tears things and mixes their colours. With more guidance it draws things twice,
with less it passes over words (model_making/README.md)."""


def load_target(
    path: str | Path = BUNDLED,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    check: Check | None = None,
    weights: str | None = None,
    exact: bool = True,
) -> Target:
    """Load a target from ``"bundled"``, a checkpoint folder or a weights file. AdtError if it can't be read.

    The rest as for :func:`adt_core.models.load.load`.
    """
    checkpoint = open_checkpoint(path)
    unsupported.refuse_kind(checkpoint)
    target = load.load(checkpoint, device, dtype, check, weights, exact)
    if str(path) == BUNDLED:
        target.name, target.published, target.words = BUNDLED, BUNDLED_SAMPLING, training_domain.bundled_vocabulary()
        target.prompter.name = "the bundled model"
    return target


def load_drafter(
    path: str | Path, target: Target, check: Check | None = None, device: torch.device | None = None
) -> drafters.Drafter:
    """The drafter of this name for ``target``, as :func:`adt_core.drafters.load_drafter` gives it."""
    if str(path) in drafters.DRAFTERS:
        return drafters.load_drafter(path, target)
    with explain_errors(str(path).removesuffix(drafters.WITH_WINDOW), "drafter"):
        return drafters.load_drafter(path, target, check, device)


def open_checkpoint(path: str | Path) -> Checkpoint:
    """The checkpoint of a target. AdtError if it can't be read; of a published one it says how to get it."""
    try:
        with explain_errors(path, "target"):
            return Checkpoint(resolve(path, "target"))
    except AdtError as error:
        row = find_published(name_of(Path(path)))
        if row is None:
            raise
        raise AdtError(
            f"{error.template.removesuffix('.')}; to get it whole, {row.how_to_get(home_of(Path(path)))}."
        ) from error


@contextmanager
def explain_errors(path: str | Path, role: str) -> Iterator[None]:
    """In the block a checkpoint is read. AdtError if it is of a known kind that can't be, such as GGUF.

    role: as for :func:`resolve`.
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
    """How the authors of a target draw with it, without loading it: its ``published``. AdtError if it can't be read."""
    if str(path) == BUNDLED:
        return BUNDLED_SAMPLING
    checkpoint = open_checkpoint(path)
    unsupported.refuse_kind(checkpoint)
    return load.family_of(checkpoint).sampling


def is_target_config(config: dict) -> bool:
    """Is a ``config.json`` that of a target? Reads nothing else, so the checkpoint may be damaged."""
    return any(family.recognises(config, ()) for family in load.FAMILIES)


def is_target_file(name: str) -> bool:
    """Is this the name of a weights file that is a target without a ``config.json``?"""
    return any(fnmatchcase(name, pattern) for family in load.FAMILIES for pattern in family.single_files)


def find_drafter(model: str | Path) -> Path | None:
    """The published drafter of a target, where its folder lies beside the target or in ``ar_image_drafters``."""
    path = Path(os.path.expanduser(model)).absolute()
    row, home = find_published(name_of(path)), home_of(path)
    if row is None or row.drafter is None:
        return None
    name, organisation = row.drafter.folder, row.drafter.repository.partition("/")[0]
    homes = home, home.parent / "ar_image_drafters", home.parent.parent / "ar_image_drafters"
    places = (home / place for home in homes for place in (name, f"{organisation}/{name}"))
    return next((place for place in places if (place / "config.json").is_file()), None)


def find_published(name: str) -> Published | None:
    """The published model whose folder or file has this name."""
    return next((row for row in published() if row.downloads and row.name.lower() == name.lower()), None)


def published() -> list[Published]:
    """The published checkpoints that can be loaded, family by family."""
    return [row for family in load.FAMILIES for row in family.published]


_WEIGHTS = "*.safetensors *.bin *.pt *.pth *.ckpt *.index.json config.json *_config.json pairing.json"
_TEXTS = "*tokenizer* *.model vocab* merges.txt added_tokens.json special_tokens_map.json"
_PARTS = f"{_WEIGHTS} {_TEXTS}".split()
"""Patterns of names of files that belong to a checkpoint."""


def checkpoint_files(path: str | Path, role: str) -> list[Path]:
    """The files of a checkpoint, what its family looks for beside it included; [] if there is none. Opens nothing.

    role: as for :func:`resolve`.
    """
    with suppress(AdtError, OSError):  # whoever opens it says so
        place = resolve(path, role)
        folder = place if place.is_dir() else place.parent
        homes = dict.fromkeys((folder, folder.parent, home_of(place)))
        patterns = [pattern for family in load.FAMILIES for pattern in family.beside]
        beside = [match for home in homes for pattern in patterns for match in home.glob(pattern)]
        near = [file for home in {folder, *(match.parent for match in beside)} for file in home.iterdir()]
        parts = (file for file in near if any(fnmatchcase(file.name, pattern) for pattern in _PARTS))
        return [file for file in (place, *beside, *parts) if file.is_file()]
    return []
