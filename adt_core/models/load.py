"""Loading of target models: detection of the family and reading of the weights."""

from __future__ import annotations

import torch

from ..errors import AdtError, Check, shown
from .families import chameleon, emu3, glm_image, janus, liquid, llamagen, lumina, lumina2
from .family import Family
from .quantised import quantise
from .reading.checkpoint import Checkpoint
from .reading.entries import check_entries, fill
from .target import Target

FAMILIES: list[Family] = [
    chameleon.FAMILY,
    lumina.FAMILY,  # after chameleon.FAMILY, which also recognises checkpoints of Lumina-mGPT
    lumina2.FAMILY,  # after chameleon and lumina, which also recognise checkpoints of Lumina-mGPT 2.0
    llamagen.FAMILY,
    janus.FAMILY,
    emu3.FAMILY,
    liquid.FAMILY,
    glm_image.FAMILY,
]
"""All families, in the order of the docs. If several families recognise a checkpoint, the last of them is used."""


def family_of(checkpoint: Checkpoint) -> Family:
    """Return the family of a checkpoint.

    Raises:
        AdtError: If no family recognises the checkpoint.
    """
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
    """Load a target from its checkpoint.

    The decorator turns inference mode off. Otherwise ComfyUI could not move the weights later: outside inference mode,
    torch refuses to change tensors that were created in inference mode.

    Args:
        checkpoint: The files.
        device: Device of the weights.
        dtype: Dtype of transformer and text encoder; :func:`_set_dtypes` lists exceptions. The codec is float32.
        check: Called before each tensor is read. It may raise an exception to cancel.
        weights: "int8", "fp8" or "int4" to quantise the transformer's matrices; None to store them in ``dtype``.
        exact: Whether to use batch-invariant mode in half precision (:mod:`.batch_invariance`).

    Raises:
        AdtError: If the files are damaged, or don't contain a supported model.
    """
    family = family_of(checkpoint)
    with torch.device("meta"):
        target = family.skeleton(checkpoint)
    check_entries(family.entries(target, checkpoint), checkpoint, family.missing_remedies(checkpoint))
    image_ids = target.decoder.image_ids  # kept, because to_empty discards the values of buffers
    target.decoder.exact = exact
    _set_dtypes(target, dtype, weights)
    for module in (target.decoder, target.codec, target.text_encoder):
        if module is not None:
            module.to_empty(device=device).requires_grad_(False).eval()
    target.decoder.image_ids = image_ids.to(device)
    target.prompter = family.prompter(target, checkpoint)
    fill(family.entries(target, checkpoint), checkpoint, check)
    target.published = family.sampling
    target.trained = family.trained
    return target


def _set_dtypes(target: Target, dtype: torch.dtype, weights: str | None) -> None:
    """Set the dtypes of the transformer and the text encoder before their weights are loaded.

    The transformer's last norm and output head are stored in at least float32. If ``dtype`` is float16, the text
    encoder is bfloat16, because the activations of T5 exceed the range of float16.
    """
    target.decoder.set_dtype(dtype)
    if weights is not None:
        quantise(target.decoder, weights)
    if target.text_encoder is not None:
        target.text_encoder.to(torch.bfloat16 if dtype == torch.float16 else dtype)
