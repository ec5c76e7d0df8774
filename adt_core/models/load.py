"""The families of models, and loading a target: which family a checkpoint is of, and its weights into memory."""

from __future__ import annotations

import torch

from ..errors import AdtError, Check, shown
from .families import chameleon, emu3, glm_image, janus, liquid, llamagen, lumina, lumina2
from .family import Family
from .quantised import quantise
from .reading.checkpoint import Checkpoint, check_entries, fill
from .target import Target

FAMILIES: list[Family] = [
    chameleon.FAMILY,
    lumina.FAMILY,  # a kind of Chameleon, so after it
    lumina2.FAMILY,  # a kind of both
    llamagen.FAMILY,
    janus.FAMILY,
    emu3.FAMILY,
    liquid.FAMILY,
    glm_image.FAMILY,
]
"""In the order of the docs. Of several that recognise a checkpoint, the last has it."""


def family_of(checkpoint: Checkpoint) -> Family:
    """The family of a target's checkpoint. AdtError if it is of none."""
    for family in reversed(FAMILIES):
        if family.recognises(checkpoint.config, checkpoint.names):
            return family
    titles = ", ".join(family.title for family in FAMILIES)
    if not checkpoint.config:
        remedy = "download the complete repository, not only its weights"
        raise AdtError(
            f"{checkpoint.path} has no config.json that names its model family; {remedy} (supported: {titles})."
        )
    kind = shown(checkpoint.config.get("model_type"))
    raise AdtError(
        f"{checkpoint.path} has the model type {kind}, which this version can't read; choose one of {titles}."
    )


@torch.inference_mode(False)
def load(
    checkpoint: Checkpoint,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    check: Check | None = None,
    weights: str | None = None,
    exact: bool = True,
) -> Target:
    """Load a target from its checkpoint. AdtError if it can't be read.

    dtype: of the transformer, with norm and head in at least float32, and of the text encoder, which is in bfloat16
    instead of float16 because T5 overflows that. The codec is in float32. weights: "int8" or "fp8" to store the
    transformer's matrices so. exact: in half precision, drafts leave the image as it is, at some cost in speed
    (:mod:`.batch_invariance`). Every tensor is read straight to its place on ``device``; ``check`` is called before
    each and may raise to cancel. The weights can be moved outside of inference mode, as ComfyUI does, even if they were
    loaded inside it.
    """
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
    target.published, target.trained = family.sampling, family.trained
    return target
