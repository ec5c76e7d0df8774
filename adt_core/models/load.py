"""The families of models, and opening a target: which family a checkpoint is of, and its weights into memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

import torch

from ..errors import AdtError
from .checkpoint import BUNDLED, Check, Checkpoint, check_entries, fill, resolve
from .families import chameleon, emu3, janus, llamagen, lumina
from .family import Family, Published
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
    for family in reversed(FAMILIES):
        if family.recognises(checkpoint.config, checkpoint.names):
            return family
    kind = checkpoint.config.get("model_type")
    what = f"is of the family {kind!r}" if kind else "has no config.json that names its family"
    raise AdtError(f"{checkpoint.path} {what}; this version reads {', '.join(family.name for family in FAMILIES)}.")


def names_target(config: dict) -> bool:
    """Is a ``config.json`` that of a target? Reads nothing else, so the checkpoint may be damaged."""
    return any(family.recognises(config, ()) for family in FAMILIES)


def is_target_file(name: str) -> bool:
    """Is this the name of a weights file that is a target without a ``config.json``?"""
    return any(fnmatchcase(name, pattern) for family in FAMILIES for pattern in family.single_files)


def published_sampling(path: str | Path) -> PublishedSampling:
    """How the authors of a target draw with it, without loading it: its ``published``. AdtError if it can't be read."""
    if str(path) == BUNDLED:
        return PublishedSampling()
    return family_of(Checkpoint(resolve(path, "target"))).sampling


def published() -> list[Published]:
    """The published checkpoints that can be loaded, family by family."""
    return [row for family in FAMILIES for row in family.published]


def models_table() -> str:
    """The table of docs/models.md, in Markdown."""
    head = ("model", "download from Hugging Face", "into `models/ar_image`", "pixels", "memory bf16 / int8")
    return _table(head, published())


def sampling_table() -> str:
    """The table of what the authors draw with, in docs/models.md."""
    head = ("family", "guidance", "temperature", "top-k", "top-p", "behind every prompt", "from")
    rows = [(f.title, *(f"`{x}`" if isinstance(x, str) and x else f"{x}" for x in f.sampling)) for f in FAMILIES]
    return _table(head, rows)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))


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
    checkpoint = Checkpoint(resolve(path, "target"))
    family = family_of(checkpoint)
    with torch.device("meta"):
        target = family.skeleton(checkpoint)
    check_entries(family.entries(target, checkpoint), checkpoint, family.remedies)
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
