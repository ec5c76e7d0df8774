"""Loading of target models: detection of the family, reading of the weights, and the table of published models."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from ..errors import AdtError, Check, shown
from ..files import LARGEST_LIST, parse_json, read_text
from ..settings import BUNDLED, RAM, Lantern
from .allocation import allocate, check_address_space
from .disk import stream_from_files
from .families import chameleon, emu3, glm_image, janus, liquid, llamagen, lumina, lumina2
from .family import Family
from .quantised import check_device, quantise
from .reading.checkpoint import Checkpoint, NoWeights
from .reading.entries import Entry, check_entries, fill
from .reading.paths import home_of, name_of, resolve
from .repositories import Published
from .target import PublishedSampling, Target, Words
from .torch_state import own_torch_state
from .unsupported import refuse_kind, refuse_layout

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


BUNDLED_SAMPLING = PublishedSampling(guidance_scale=2.0, temperature=0.6, lantern=Lantern(neighbours=100, delta=0.7))
"""Sampling settings of the bundled model.

At temperature 1, the model draws broken shapes and mixes their colours. With guidance above 2, it repeats objects. With
guidance below 2, it ignores words of the prompt. See model_making/README.md. With a delta of 0.1, LANTERN accepts too
few drafts to pay for its search. See docs/drafting.md."""


def family_of(checkpoint: Checkpoint) -> Family:
    """Return the family of a checkpoint, or raise an AdtError if no family recognises it."""
    for family in reversed(FAMILIES):
        if family.recognises(checkpoint.config, checkpoint.names):
            return family
    titles = ", ".join(family.title for family in FAMILIES)
    if not checkpoint.config:
        raise AdtError("model.no_config", path=checkpoint.path, titles=titles)
    kind = shown(checkpoint.config.get("model_type"))
    raise AdtError("model.unknown_type", path=checkpoint.path, kind=kind, titles=titles)


@torch.inference_mode(False)
@own_torch_state()
def load_target(
    path: str | Path = BUNDLED,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    check: Check | None = None,
    weights: str | None = None,
    exact: bool = True,
    device_memory: float | None = None,
    memory: str = RAM,
) -> Target:
    """Load a target.

    The first decorator turns inference mode off. Otherwise ComfyUI could not move the weights later: outside inference
    mode, torch refuses to change tensors that were created in inference mode.

    Args:
        path: "bundled", a checkpoint folder or a weights file.
        dtype: Dtype of transformer and text encoder; :func:`_set_dtypes` lists exceptions. The codec is float32.
        check: Called before each tensor is read. It may raise an exception to cancel.
        weights: "int8", "fp8" or "int4" to quantise the transformer's matrices; None to store them in ``dtype``.
        exact: Whether to use batch-invariant mode in half precision (:mod:`.batch_invariance`).
        device_memory: Bytes of a GPU's memory for weights and work (default: the free memory). Layers that do not fit
            are streamed from the main memory (:mod:`.streamed`). Infinity streams none.
        memory: "ram", or "disk" to read layers that do not fit again from the files in each pass (:mod:`.disk`).

    Raises:
        AdtError: If the files are damaged, don't contain a supported model, or the device does not support the weights.
    """
    check_device(weights, torch.device(device), dtype)
    target = target_of(open_checkpoint(path), device, dtype, check, weights, exact, device_memory, memory)
    if str(path) == BUNDLED:
        target.name = BUNDLED
        target.published_sampling = BUNDLED_SAMPLING
        target.words = bundled_words()
        target.prompter.name = "the bundled model"
    return target


def target_of(
    checkpoint: Checkpoint,
    device: torch.device | str,
    dtype: torch.dtype,
    check: Check | None = None,
    weights: str | None = None,
    exact: bool = True,
    device_memory: float | None = None,
    memory: str = RAM,
    filled: Callable[[Entry], object] | None = None,
) -> Target:
    """Return the target of an open checkpoint; see :func:`load_target`.

    Args:
        filled: Called after each parameter is filled.
    """
    refuse_kind(checkpoint)
    family = family_of(checkpoint)
    with torch.device("meta"):
        target = family.skeleton(checkpoint)
    check_entries(family.entries(target, checkpoint), checkpoint, family.missing_remedies(checkpoint))
    image_ids = target.decoder.image_ids  # kept, because to_empty discards the values of buffers
    target.decoder.exact = exact
    _set_dtypes(target, dtype, weights)
    if torch.device(device).type == "cpu" and memory == RAM:
        check_address_space(target, checkpoint.largest_file)
    allocate(target, torch.device(device), device_memory, memory)
    target.decoder.image_ids = image_ids.to(device)
    target.prompter = family.prompter(target, checkpoint)
    entries = family.entries(target, checkpoint)
    fill([entry for entry in entries if not entry.parameter.is_meta], checkpoint, check, filled)
    stream_from_files(target, family.entries, checkpoint, check)
    target.published_sampling = family.sampling
    target.trained = family.trained
    return target


def bundled_words() -> Words:
    """Return the words in the training captions of the bundled model."""
    kinds = parse_json(read_text(resolve(BUNDLED, "target").parent / "words.json", LARGEST_LIST))
    return Words(**{kind: frozenset(words) for kind, words in kinds.items()})


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


def open_checkpoint(path: str | Path, role: str = "target") -> Checkpoint:
    """Open the checkpoint of a target or a drafter.

    Args:
        path: "bundled", a checkpoint folder or a weights file.
        role: "target" or "drafter".

    Raises:
        AdtError: If the checkpoint cannot be read. If it is an unsupported kind of file, such as GGUF, the message
            names this kind. For a published model, the message contains the command that downloads the missing files.
    """
    try:
        place = resolve(path, role)
        if place.is_file():
            refuse_layout(place)
        try:
            return Checkpoint(place)
        except NoWeights:
            refuse_layout(place)
            raise
    except AdtError as error:
        row = published_at(path) if role == "target" else None
        if row is None:
            raise
        raise AdtError("model.incomplete", error=error, remedy=row.how_to_get(home_of(Path(path)))) from error


def published_sampling(path: str | Path) -> PublishedSampling:
    """Return the sampling settings that the authors of a target recommend, without loading the target.

    For arguments and errors, see :func:`open_checkpoint`.
    """
    if str(path) == BUNDLED:
        return BUNDLED_SAMPLING
    checkpoint = open_checkpoint(path)
    refuse_kind(checkpoint)
    return family_of(checkpoint).sampling


def find_published(name: str) -> Published | None:
    """Return the published model whose folder or file has a name, or None. The case of letters is ignored."""
    return next((row for row in published() if row.downloads and row.name.lower() == name.lower()), None)


def published_at(path: str | Path) -> Published | None:
    """Return the published model that a checkpoint contains according to the name of its folder or file, or None."""
    return find_published(name_of(Path(path)))


def published() -> list[Published]:
    """Return the published models that this pack can load, grouped by model family."""
    return [row for family in FAMILIES for row in family.published]
