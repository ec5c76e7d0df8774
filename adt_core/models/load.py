"""Opening a target: which family a checkpoint is of, and its weights into memory."""

from __future__ import annotations

from pathlib import Path

import torch

from ..errors import AdtError
from .checkpoint import BUNDLED, Check, Checkpoint, check_entries, fill, resolve
from .families import chameleon, emu3, janus, llamagen, lumina
from .quantised import quantise
from .target import Family, Target

FAMILIES: list[Family] = [lumina.FAMILY, chameleon.FAMILY, llamagen.FAMILY, janus.FAMILY, emu3.FAMILY]
"""In the order in which they are asked; the first that recognises a checkpoint has it."""


def family_of(checkpoint: Checkpoint) -> Family:
    """The family of a target's checkpoint. AdtError if it is of none."""
    for family in FAMILIES:
        if family.recognises(checkpoint):
            return family
    kind = checkpoint.config.get("model_type")
    what = f"is of the family {kind!r}" if kind else "has no config.json that names its family"
    raise AdtError(f"{checkpoint.path} {what}; this version reads {', '.join(family.name for family in FAMILIES)}.")


def names_target(config: dict) -> bool:
    """Does a ``config.json`` say that it is a target's? Reads nothing else, so a damaged checkpoint may pass."""
    kind = str(config.get("model_type")).lower()
    return (
        kind in ("chameleon", "janus", "multi_modality", "emu3")
        or "XLLMX" in str(config.get("architectures"))
        or "cls_token_num" in config
    )


def load_target(
    path: str | Path = BUNDLED,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    check: Check | None = None,
    weights: str | None = None,
) -> Target:
    """Load a target from ``"bundled"``, a checkpoint folder or a weights file.

    dtype is the transformer's; the codec works in float32, and a text encoder in ``dtype``, or in bfloat16 for float16, which T5 overflows. weights: "int8"
    or "fp8" to store the transformer's matrices so. Every tensor goes straight to its place on ``device``. ``check`` is called before each and may raise to
    cancel. Raises AdtError for missing, damaged or foreign files.
    """
    checkpoint = Checkpoint(resolve(path, "target"))
    family = family_of(checkpoint)
    with torch.device("meta"):
        target = family.skeleton(checkpoint)
    check_entries(family.entries(target, checkpoint), checkpoint, family.remedies)
    image_ids = target.decoder.image_ids  # a buffer, which is emptied like the rest
    target.decoder.to(dtype)
    if weights is not None:
        quantise(target.decoder, weights)
    target.decoder.to_empty(device=device).requires_grad_(False).eval()
    target.codec.to_empty(device=device).requires_grad_(False).eval()
    if target.text_encoder is not None:
        target.text_encoder.to(torch.bfloat16 if dtype == torch.float16 else dtype).to_empty(
            device=device
        ).requires_grad_(False).eval()
    target.decoder.image_ids = image_ids.to(device)
    target.prompter = family.prompter(target, checkpoint)
    fill(family.entries(target, checkpoint), checkpoint, check)
    target.name = BUNDLED if str(path) == BUNDLED else target.name
    return target
