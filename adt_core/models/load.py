"""The families of models, and opening a target: which family a checkpoint is of, and its weights into memory."""

from __future__ import annotations

from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path

import torch

from ..errors import AdtError, Check, shown
from . import mistaken
from .checkpoint import BUNDLED, Checkpoint, check_entries, fill, home_of, name_of, resolve
from .downloads import Published
from .families import chameleon, emu3, janus, llamagen, lumina
from .family import Family
from .quantised import quantise
from .target import PublishedSampling, Target

FAMILIES: list[Family] = [
    chameleon.FAMILY,
    lumina.FAMILY,  # a kind of Chameleon, so after it
    llamagen.FAMILY,
    janus.FAMILY,
    emu3.FAMILY,
]
"""In the order of the docs. Of several that recognise a checkpoint, the last has it."""


def family_of(checkpoint: Checkpoint) -> Family:
    """The family of a target's checkpoint. AdtError if it is of none."""
    known = mistaken.kind(checkpoint.config, checkpoint.names)
    if known:
        raise AdtError(f"{checkpoint.path} {known}.")
    for family in reversed(FAMILIES):
        if family.recognises(checkpoint.config, checkpoint.names):
            return family
    titles = ", ".join(family.title for family in FAMILIES)
    if not checkpoint.config:
        remedy = "download the whole repository and not its weights alone"
        raise AdtError(f"{checkpoint.path} has no config.json that names its family; {remedy}, of {titles}.")
    kind = shown(checkpoint.config.get("model_type"))
    raise AdtError(f"{checkpoint.path} is of the family {kind}; this version reads {titles}.")


def names_target(config: dict) -> bool:
    """Is a ``config.json`` that of a target? Reads nothing else, so the checkpoint may be damaged."""
    return any(family.recognises(config, ()) for family in FAMILIES)


def is_target_file(name: str) -> bool:
    """Is this the name of a weights file that is a target without a ``config.json``?"""
    return any(fnmatchcase(name, pattern) for family in FAMILIES for pattern in family.single_files)


def published_sampling(path: str | Path) -> PublishedSampling:
    """How the authors of a target draw with it, without loading it: its ``published``. AdtError if it can't be read."""
    return PublishedSampling() if str(path) == BUNDLED else family_of(open_checkpoint(path)).sampling


def open_checkpoint(path: str | Path) -> Checkpoint:
    """The checkpoint of a target. AdtError if it can't be read; of a published one it says how to get it."""
    try:
        return Checkpoint(resolve(path, "target"))
    except AdtError as error:
        row = find_published(name_of(Path(path)))
        if row is None:
            raise
        raise AdtError(
            f"{str(error).removesuffix('.')}; to get it whole, {row.how_to_get(home_of(Path(path)))}."
        ) from error


def find_drafter(model: str | Path) -> Path | None:
    """The published drafter of a target, where its folder lies beside the target or in ``ar_image_drafters``."""
    path = Path(model).expanduser().absolute()
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
    return [row for family in FAMILIES for row in family.published]


_WEIGHTS = "*.safetensors *.bin *.pt *.pth *.ckpt *.index.json config.json *_config.json pairing.json"
_TEXTS = "*tokenizer* *.model vocab* merges.txt added_tokens.json special_tokens_map.json"
_PARTS = f"{_WEIGHTS} {_TEXTS}".split()
"""Patterns of names of files that belong to a checkpoint."""


def parts_of(path: str | Path, role: str) -> list[Path]:
    """The files of a checkpoint, what its family looks for beside it included; [] if there is none. Opens nothing.

    role: as for :func:`resolve`.
    """
    with suppress(AdtError, OSError):  # whoever opens it says so
        return _parts(resolve(path, role))
    return []


def _parts(found: Path) -> list[Path]:
    folder = found if found.is_dir() else found.parent
    places, patterns = (folder, folder.parent, home_of(found)), [one for family in FAMILIES for one in family.beside]
    beside = [match for place in dict.fromkeys(places) for pattern in patterns for match in place.glob(pattern)]
    near = [file for home in {folder, *(match.parent for match in beside)} for file in home.iterdir()]
    parts = (file for file in near if any(fnmatchcase(file.name, pattern) for pattern in _PARTS))
    return [file for file in (found, *beside, *parts) if file.is_file()]


@torch.inference_mode(False)
def load_target(
    path: str | Path = BUNDLED,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    check: Check | None = None,
    weights: str | None = None,
    exact: bool = True,
) -> Target:
    """Load a target from ``"bundled"``, a checkpoint folder or a weights file. AdtError if it can't be read.

    dtype: of the transformer, with norm and head in at least float32, and of the text encoder, which is in bfloat16
    instead of float16 because T5 overflows that. The codec is in float32. weights: "int8" or "fp8" to store the
    transformer's matrices so. exact: in half precision, drafts leave the image as it is, at some cost in speed
    (:mod:`.exact`). Every tensor is read straight to its place on ``device``; ``check`` is called before each
    and may raise to cancel. The weights can be moved outside of inference mode, as ComfyUI does, even if they were
    loaded inside it.
    """
    checkpoint = open_checkpoint(path)
    family = family_of(checkpoint)
    with torch.device("meta"):
        target = family.skeleton(checkpoint)
    check_entries(family.entries(target, checkpoint), checkpoint, family.orders(checkpoint))
    image_ids = target.decoder.image_ids  # a buffer, which to_empty would leave without its values
    target.decoder.set_dtype(dtype)
    target.decoder.exact = exact
    if weights is not None:
        quantise(target.decoder, weights)
    if target.text_encoder is not None:
        target.text_encoder.to(torch.bfloat16 if dtype == torch.float16 else dtype)
    for module in (target.decoder, target.codec, target.text_encoder):
        if module is not None:
            module.to_empty(device=device).requires_grad_(False).eval()
    target.decoder.image_ids = image_ids.to(device)
    target.prompter = family.prompter(target, checkpoint)
    fill(family.entries(target, checkpoint), checkpoint, check)
    if str(path) == BUNDLED:
        target.name = BUNDLED
    else:
        target.published = family.sampling
    return target
