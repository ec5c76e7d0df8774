"""Common parts of the sampler nodes: sampling parameters, prompts, weights and previews."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from copy import copy
from typing import Any, NamedTuple

import torch
from comfy.model_patcher import ModelPatcher
from comfy_api.v0_0_2 import io
from PIL import Image
from torch import Tensor

from ..adt_core.app.checkpoints import BUNDLED_SAMPLING
from ..adt_core.app.jobs import new_decoding
from ..adt_core.app.training_domain import domain_warning
from ..adt_core.app.truncation import RAISE, TRUNCATE, fit_prompt
from ..adt_core.engine.decoding import Decoding
from ..adt_core.engine.job import Job
from ..adt_core.errors import AdtError, PromptTooLongError, shown
from ..adt_core.messages import join, message, parts_of
from ..adt_core.models.target import Target, suffixed
from ..adt_core.recipe import Loading, Recipe
from ..adt_core.settings import UPSTREAM, Sampling
from .clip_and_vae import read_prompt, read_sources, text_encoder, to_image, to_picture
from .comfy_runtime import check_cancelled, loaded, tell
from .drafting import DraftConfig
from .latent import read_codes
from .schema import widget
from .sockets import LoadedDrafter, LoadedModel

_PROMPT = "Prompt"
_NEGATIVE_PROMPT = "Negative prompt"

OWN, CUSTOM = "model default", "custom"
"""Presets: the sampling parameters that the model's authors publish, and those that the user sets on the node."""
NUMBERS = "guidance", "temperature", "top_k", "top_p"
"""Sampling parameters that a preset determines, by input id."""
NOISES = {"ADT-Tree": "own", "original script": UPSTREAM}
"""Value of the input `noise` -> `Sampling.noise`."""


def sampling_inputs() -> list[io.Input]:
    """Return the inputs for the fields of `Sampling`. The defaults are the parameters of the bundled model."""
    own = Sampling.options()
    numbers = [widget(name, own[name]._replace(default=getattr(BUNDLED_SAMPLING, name))) for name in NUMBERS]
    return [widget("seed", own["seed"], control_after_generate=True), *numbers]


def preset_input() -> io.Input:
    """Return the input `preset`. It is optional, because API prompts of older versions do not have it."""
    return io.Combo.Input("preset", options=[OWN, CUSTOM], default=OWN, optional=True)


def invalid_prompts_input() -> io.Input:
    """Return the input `invalid_prompts`: what to do with a prompt that is too long for the model."""
    return io.Combo.Input("invalid_prompts", options=[RAISE, TRUNCATE], default=RAISE, optional=True, advanced=True)


def noise_input() -> io.Input:
    """Return the input `noise`, for users who want the image that the model authors' script generates."""
    option = Sampling.options()["noise"]._replace(choices=tuple(NOISES), default=next(iter(NOISES)))
    return widget("noise", option, advanced=True)


def choose_preset(preset: str | None, **given: Any) -> str:
    """Return the chosen preset.

    API prompts of older versions have no preset. Then the result is `CUSTOM` if the prompt sets one of `NUMBERS`, and
    `OWN` otherwise.

    Args:
        preset: Value of the input, or None.
        **given: Sampling inputs of the API prompt.
    """
    return preset or (CUSTOM if given.keys() & set(NUMBERS) else OWN)


def choose_sampling(model: LoadedModel, preset: str, **given: Any) -> Sampling:
    """Return the sampling parameters of a run. Seed and noise do not depend on the preset.

    Args:
        model: Model, whose published parameters the preset `OWN` selects.
        preset: Chosen preset.
        **given: Sampling inputs of the API prompt. With the preset `CUSTOM`, a missing input gets its default value.
    """
    own = BUNDLED_SAMPLING if preset == CUSTOM else model.target.published
    numbers = {name: getattr(own, name) for name in NUMBERS}
    if "noise" in given:
        given["noise"] = NOISES.get(given["noise"], given["noise"])
    return Sampling(**given | (numbers | given if preset == CUSTOM else numbers))


def ignored(model: LoadedModel, preset: str, **given: Any) -> str:
    """Return a sentence that lists the given sampling parameters that the preset overrides, or "".

    The sentence does not list default values: for an input that the preset disables, the page sends the default, which
    the user has not set.

    Args:
        model: Model, whose published parameters the preset `OWN` selects.
        preset: Chosen preset.
        **given: Inputs of the API prompt.
    """
    if preset == CUSTOM:
        return ""
    published = model.target.published
    used = {name: (getattr(BUNDLED_SAMPLING, name), getattr(published, name)) for name in NUMBERS}
    lost = [f"{name} {shown(given[name])}" for name in NUMBERS if name in given and given[name] not in used[name]]
    if not lost:
        return ""
    return message("preset.ignored", preset=OWN, values=", ".join(lost), custom=CUSTOM)


def choose_suffix(model: LoadedModel, preset: str) -> str:
    """Return the text to append to every prompt. The preset `OWN` uses the published suffix; `CUSTOM` uses none."""
    return model.target.published.suffix if preset == OWN else ""


class PromptTexts(NamedTuple):
    """Texts of a run, short enough for the model.

    Attributes:
        target: The target model. If the prompt has source images, this target adds them to every prompt.
        text: The prompt.
        negative: The negative prompt, or "".
        note: Sentences about truncated prompts, or "".
    """

    target: Target
    text: str
    negative: str
    note: str


def read_texts(
    model: LoadedModel, positive: list, negative: list | None, preset: str, invalid_prompts: str
) -> PromptTexts:
    """Read the prompt and the negative prompt.

    Args:
        model: Model that generates the image.
        positive: CONDITIONING of the prompt, with its source images.
        negative: CONDITIONING of the negative prompt, or None.
        preset: Chosen preset, which may append a suffix to the prompt.
        invalid_prompts: `RAISE` or `TRUNCATE`, for prompts that are too long.

    Raises:
        AdtError: If a CONDITIONING is not from a CLIP of this pack, or a prompt is invalid for the model.
    """
    text = read_prompt(positive, "positive").text
    opposite = read_prompt(negative, "negative").text if negative is not None else ""
    suffix = choose_suffix(model, preset)
    sources = [codes for latent in read_sources(positive) for codes in read_codes(latent, model, "positive")]
    target = model.target.with_sources(sources) if sources else model.target
    with text_encoder(model):
        text, note = _fitted(target, text, suffix, invalid_prompts, _PROMPT)
        more = ""
        if opposite.strip():
            opposite, more = _fitted(target, opposite, "", invalid_prompts, _NEGATIVE_PROMPT)
    return PromptTexts(target, text, opposite, join((note, more)))


def make_job(
    model: LoadedModel,
    draft: DraftConfig,
    sampling: Sampling,
    negative: str = "",
    suffix: str = "",
    target: Target | None = None,
) -> Job:
    """Make the job of a run.

    Args:
        model: Model that generates the images.
        draft: Drafter, method and acceptance.
        sampling: Sampling parameters.
        negative: Negative prompt, or "".
        suffix: Text to append to every prompt.
        target: Target model that adds source images to the prompt (default: the model without source images).
    """
    recipe = Recipe(
        sampling,
        draft.drafting,
        draft.lantern,
        Loading(model=model.path),
        drafter=draft.loaded.path if draft.loaded is not None else None,
        negative=negative,
        suffix=suffix,
    )
    return Job(target or model.target, recipe, draft.drafter)


def make_decoding(
    model: LoadedModel,
    job: Job,
    prompts: Sequence[str],
    image_indices: Sequence[int] | None = None,
    prefix: Tensor | None = None,
    seeds: Sequence[int] | None = None,
    at_once: int | None = None,
) -> Decoding:
    """Encode prompts, and return the decoding that generates their images. Users can cancel the decoding.

    Args:
        model: Model of the job, whose text encoder may have to be loaded.
        job: Recipe and loaded models.
        prompts: Prompt of each image.
        image_indices: Index of each image among the images of its prompt, which selects its noise (default: 0).
        prefix: Codes [images, P] of the first P tokens of each image, which are not generated (default: none).
        seeds: Seed of each image (default: the job's).
        at_once: Maximum number of images that are decoded at the same time (default: all).
    """
    with text_encoder(model):
        return new_decoding(job, prompts, image_indices, at_once, prefix, check_cancelled, seeds)


def _fitted(target: Target, text: str, suffix: str, way: str, name: str) -> tuple[str, str]:
    """Return a prompt that is short enough for the model, and a sentence if it was truncated.

    Args:
        target: Model that generates the image.
        text: The prompt.
        suffix: Text to append to the prompt. The suffix is never truncated.
        way: `RAISE` or `TRUNCATE`.
        name: Name of the prompt in messages, `_PROMPT` or `_NEGATIVE_PROMPT`.

    Raises:
        AdtError: If the prompt is invalid for the model.
    """

    def check(text: str) -> str:
        return target.check_prompt(suffixed(text, suffix))

    if way == TRUNCATE:
        fitted, note = fit_prompt(check, text, TRUNCATE)
        if fitted is not None:
            return fitted, _truncation_note(note, name) if fitted != text else ""
    try:
        check(text)
    except PromptTooLongError as error:
        sentence = str(error).replace("Prompt", name, 1).removesuffix(".")
        raise AdtError(f"{sentence}, or set invalid_prompts to '{TRUNCATE}' (under advanced inputs).") from error
    return text, ""


def _truncation_note(note: str, name: str) -> str:
    """Return the sentence for a note of `fit_prompt` on a truncated prompt. For `name`, see `_fitted`."""
    numbers = parts_of(note)[0].parameters
    if not numbers:
        return f"{name} {note.removesuffix('.')}."
    return message("prompt.truncated" if name == _PROMPT else "prompt.negative_truncated", **numbers)


def tell_remarks(decoding: Decoding, model: LoadedModel, positive: list, *notes: str) -> None:
    """Show remarks on the device, the image size and the prompt under a node that has generated an image.

    Args:
        decoding: Finished decoding.
        model: Model that generated the image.
        positive: CONDITIONING of the prompt.
        *notes: Further remarks; "" for none.
    """
    warning = domain_warning(model.target, [read_prompt(positive, "positive").text])
    if remarks := join((warning, *notes, decoding.exact.remark)):
        tell(remarks)


def patchers(model: LoadedModel, drafter: LoadedDrafter | None) -> list[ModelPatcher]:
    """Return the patchers of all weights that decoding uses."""
    network = [drafter.patcher] if drafter is not None and drafter.patcher is not None else []
    return [model.patcher, model.codec, *network]


def loaded_for(
    decodings: Sequence[Decoding], model: LoadedModel, drafter: LoadedDrafter | None
) -> AbstractContextManager[torch.device]:
    """Load all weights on their device, with memory for decodings that run side by side; see `runtime.loaded`.

    Memory for one image per decoding is sufficient, because a decoding reduces its batch size if memory is short.

    Args:
        decodings: Decodings that run side by side.
        model: Model of the decodings.
        drafter: Drafter of the decodings, if any.
    """
    singles = [copy(decoding) for decoding in decodings]
    for single in singles:
        single.at_once = 1
    room, least = (sum(d.memory_required(model.patcher.load_device) for d in some) for some in (decodings, singles))
    return loaded(patchers(model, drafter), room, least)


def preview(target: Target, decoding: Decoding, image: int = 0) -> Image.Image:
    """Decode an unfinished image. The region of missing tokens gets the mean colour of the finished region."""
    codes = decoding.grid_codes()[image]  # negative for missing tokens
    # In GLM-Image, the tokens of a smaller image precede the image. Show the smaller image until the image begins.
    if decoding.trace.lead_length and (codes < 0).all():
        codes = decoding.target.small(decoding.codes)[image]
    missing = codes < 0
    blank = target.codec.nearest(target.codec.codebook.mean(0).reshape(1, -1, 1, 1)).item()
    pixels = to_image(target.codec.decode(codes.masked_fill(missing, blank)[None], check=check_cancelled))[0].cpu()
    hidden = torch.nn.functional.interpolate(missing[None, None].float(), size=pixels.shape[:2])[0, 0] > 0
    if not hidden.all():
        pixels[hidden] = pixels[~hidden].mean(0)
    return to_picture(pixels)
