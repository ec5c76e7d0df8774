"""Common parts of the sampler nodes: sampling parameters, prompts, weights and previews."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import torch
from comfy_api.v0_0_2 import io
from torch import Tensor

from ..adt_core import AdtError, Decoding, Lantern, Pipeline, PromptTooLongError, Sampling
from ..adt_core.app import domain_warning
from ..adt_core.errors import shown
from ..adt_core.messages import join, message, parts_of
from ..adt_core.models import BUNDLED_SAMPLING, PublishedSampling
from ..adt_core.run import RAISE, TRUNCATE, Job, Previews, Progress, Resident, fit_prompt, resolve_recipe
from ..adt_core.settings import ORIGINAL_SCRIPT
from .clip_and_vae import read_prompt, read_sources, text_encoder
from .comfy_runtime import check_cancelled, hardware, preview_side, tell
from .drafting import AUTO, check_same_model, drafting_options, own_drafter, own_path
from .latent import read_codes
from .schema import NUMBERS, widget
from .sockets import LoadedDrafter, LoadedModel
from .weights import loaded

_PROMPT = "Prompt"
_NEGATIVE_PROMPT = "Negative prompt"

MODEL_DEFAULT, CUSTOM = "model default", "custom"
"""Presets: the sampling parameters that the model's authors publish, and those that the user sets on the node."""
NOISES = {"ADT-Tree": "adt-tree", "original script": ORIGINAL_SCRIPT}  # value of the input `noise` -> `Sampling.noise`


def sampling_inputs() -> list[io.Input]:
    """Return the first inputs for fields of `Sampling`, from `seed` to `top_p`.

    Workflows save values by position, so nothing can be added here. A new field gets :func:`sampling_input` as the last
    input of each node.
    """
    seed = widget("seed", Sampling.options()["seed"], control_after_generate=True)
    return [seed, *map(sampling_input, NUMBERS)]


def sampling_input(name: str) -> io.Input:
    """Return the input for a sampling parameter of `NUMBERS`. The default is the parameter of the bundled model."""
    return widget(name, Sampling.options()[NUMBERS[name]]._replace(default=getattr(BUNDLED_SAMPLING, NUMBERS[name])))


def preset_input() -> io.Input:
    """Return the input `preset`. API prompts may leave it out and set sampling parameters; see `prepare`."""
    return io.Combo.Input("preset", options=[MODEL_DEFAULT, CUSTOM], default=MODEL_DEFAULT, optional=True)


def invalid_prompts_input() -> io.Input:
    """Return the input `invalid_prompts`: what to do with a prompt that is too long for the model."""
    return io.Combo.Input("invalid_prompts", options=[RAISE, TRUNCATE], default=RAISE, optional=True, advanced=True)


def noise_input() -> io.Input:
    """Return the input `noise`, for users who want the image that the model authors' script generates."""
    option = Sampling.options()["noise"]._replace(choices=tuple(NOISES), default=next(iter(NOISES)))
    return widget("noise", option, advanced=True)


@dataclass(frozen=True)
class Run(Resident):
    """Run of a sampler node: a pipeline whose weights ComfyUI manages.

    Attributes:
        model: Model of the pipeline.
        pipeline: Recipe and loaded models.
        given: Options of the recipe that the inputs determine, except those for drafting.
        published: Sampling parameters of the preset.
        drafter: Drafter of the pipeline; None for plain decoding.
        prompt: Text of the CONDITIONING, short enough for the model; "" if the node has no such input.
        notes: Remarks for the user; "" for none.
    """

    model: LoadedModel
    pipeline: Pipeline
    given: Mapping[str, Any]
    published: PublishedSampling
    drafter: LoadedDrafter | None = None
    prompt: str = ""
    notes: tuple[str, ...] = ()

    def drafted(self, drafter: LoadedDrafter | None, **drafting: Any) -> Run:
        """Return this run with another drafter, method or acceptance.

        Args:
            drafter: Connected drafter (default: one that fits the model).
            **drafting: Arguments of `drafting_options`.

        Raises:
            AdtError: If the inputs contradict each other, or the drafter was loaded for another model.
        """
        if drafter is not None:
            check_same_model(drafter, self.model)
        given = {**self.given, **drafting_options(**drafting), "drafter": drafter.path if drafter else None}
        recipe = resolve_recipe(given, hardware(), self.published, lambda _: own_path(self.model))
        chosen = None
        if recipe.drafting.policy.needs_drafter and recipe.drafter is not None:
            chosen = drafter or own_drafter(self.model, recipe.drafter)
        pipeline = replace(self.pipeline, recipe=recipe, drafter=chosen.drafter if chosen else None)
        return replace(self, pipeline=pipeline, drafter=chosen)

    def decode(
        self, jobs: Sequence[Job], batch_size: int, kept: Tensor | None = None
    ) -> Generator[Progress, None, None]:
        """Decode the images of jobs as `Pipeline.run` does, with ComfyUI's memory management. Users can cancel it."""
        return self.pipeline.run(jobs, batch_size, check_cancelled, self, kept)

    def decoding(self) -> Decoding:
        """Return the decoding of one image of the run's prompt. Users can cancel the decoding."""
        with self.for_texts():
            return self.pipeline.decoding([self.prompt], check=check_cancelled)

    def for_texts(self) -> AbstractContextManager:
        return text_encoder(self.model)

    def for_decoding(self, decoding: Decoding) -> AbstractContextManager:
        return self.loaded(decoding)

    def loaded(self, *decodings: Decoding, memory_required: int = 0) -> AbstractContextManager[torch.device]:
        """Load all weights on their device, with memory for decodings that run side by side.

        Memory for one image per decoding is sufficient, because a decoding reduces its batch size if memory is short.

        Args:
            *decodings: Decodings that run side by side.
            memory_required: Bytes that are needed in addition to the weights and the decodings.
        """
        network = self.drafter.patcher if self.drafter is not None else None
        patchers = [patcher for patcher in (self.model.patcher, self.model.codec, network) if patcher is not None]
        singles = [copy(decoding) for decoding in decodings]
        for single in singles:
            single.batch_size = 1
        device = self.model.patcher.load_device
        room, least = (sum(d.memory_required(device) for d in some) for some in (decodings, singles))
        return loaded(patchers, memory_required + room, memory_required + least)

    def tell_remarks(self, decoding: Decoding) -> None:
        """Show remarks on the settings, the prompt, the image size and the device after a decoding."""
        if remarks := join((domain_warning(self.model.target, [self.prompt]), *self.notes, decoding.invariance.remark)):
            tell(remarks)


def prepare(
    model: LoadedModel,
    positive: list | None = None,
    negative: list | str | None = None,
    drafter: LoadedDrafter | None = None,
    settings: Mapping[str, Any] | None = None,
    lantern: Lantern | None = None,
    drafting: str = AUTO,
    preset: str | None = None,
    invalid_prompts: str = RAISE,
    **sampling: Any,
) -> Run:
    """Return the run that the inputs of a node describe.

    Args:
        positive: CONDITIONING of the prompt, with its source images; None for a node that reads prompts itself.
        negative: CONDITIONING or text of the negative prompt.
        drafter: Connected drafter (default: one that fits the model).
        settings: Options by name, from the Settings node.
        lantern: Relaxed acceptance from a connected LANTERN node.
        drafting: Value of the input `drafting`.
        preset: Value of the input `preset`. If an API prompt has none, it is `CUSTOM` if the prompt sets one of
            `NUMBERS`, else `MODEL_DEFAULT`.
        invalid_prompts: `RAISE` or `TRUNCATE`, for prompts that are too long.
        **sampling: Sampling inputs. With the preset `CUSTOM`, a missing input has its default.

    Raises:
        AdtError: If the inputs contradict each other, a CONDITIONING is not from a CLIP of this pack, or a prompt is
            invalid for the model.
    """
    preset = preset or (CUSTOM if sampling.keys() & set(NUMBERS) else MODEL_DEFAULT)
    target = model.target
    chosen = {
        NUMBERS.get(name, name): value for name, value in sampling.items() if preset == CUSTOM or name not in NUMBERS
    }
    if "noise" in chosen:
        chosen["noise"] = NOISES.get(chosen["noise"], chosen["noise"])
    text = negative if isinstance(negative, str) else ""
    given = {"model": model.path, **target.loaded, **chosen, "negative_prompt": text}
    custom = BUNDLED_SAMPLING._replace(lantern=target.published_sampling.lantern)
    published = custom if preset == CUSTOM else target.published_sampling
    notes = (_ignored(published, sampling) if preset == MODEL_DEFAULT else "",)
    run = Run(model, Pipeline(target), given, published, notes=notes)
    run = run.drafted(drafter, settings=settings, lantern=lantern, drafting=drafting)
    return _with_texts(run, positive, negative, invalid_prompts) if positive is not None else run


def _ignored(published: PublishedSampling, given: Mapping[str, Any]) -> str:
    """Return a sentence on the given sampling parameters that the preset `MODEL_DEFAULT` overrides, or "".

    It leaves out defaults, which the page sends for an input that the preset disables.
    """
    used = {name: (getattr(BUNDLED_SAMPLING, field), getattr(published, field)) for name, field in NUMBERS.items()}
    lost = [f"{name} {shown(given[name])}" for name in NUMBERS if name in given and given[name] not in used[name]]
    return message("preset.ignored", preset=MODEL_DEFAULT, values=", ".join(lost), custom=CUSTOM) if lost else ""


def _with_texts(run: Run, positive: list, negative: list | str | None, invalid_prompts: str) -> Run:
    """Return a run with the prompt, its source images and the negative prompt."""
    model = run.model
    text = read_prompt(positive, "positive").text
    opposite = read_prompt(negative, "negative").text if isinstance(negative, list) else ""
    sources = [codes for latent in read_sources(positive) for codes in read_codes(latent, model, "positive")]
    target = model.target.with_sources(sources) if sources else model.target
    pipeline = replace(run.pipeline, target=target)
    note = ""
    with text_encoder(model):
        text, fitted = _fitted(pipeline.check_prompt, text, invalid_prompts, _PROMPT)
        if opposite.strip():
            opposite, note = _fitted(target.check_prompt, opposite, invalid_prompts, _NEGATIVE_PROMPT)
    pipeline = replace(pipeline, recipe=replace(pipeline.recipe, negative_prompt=opposite))
    given = {**run.given, "negative_prompt": opposite}
    return replace(run, pipeline=pipeline, given=given, prompt=text, notes=(fitted, note, *run.notes))


def _fitted(check: Callable[[str], str], text: str, way: str, name: str) -> tuple[str, str]:
    """Return a prompt that is short enough for the model, and a sentence if it was truncated.

    Args:
        check: Function that raises an error if a prompt is invalid for the model.
        way: `RAISE` or `TRUNCATE`.
        name: Name of the prompt in messages, `_PROMPT` or `_NEGATIVE_PROMPT`.

    Raises:
        AdtError: If the prompt is invalid for the model.
    """
    if way == TRUNCATE:
        fitted, note = fit_prompt(check, text, TRUNCATE)
        if fitted is not None:
            return fitted, _truncation_note(note, name) if fitted != text else ""
    try:
        check(text)
    except PromptTooLongError as error:
        is_counted = name == _NEGATIVE_PROMPT and error.key == "prompt.too_long"
        reason = AdtError("negative.too_long", **error.parameters) if is_counted else error
        raise AdtError("prompt.truncate", error=reason) from error
    return text, ""


def _truncation_note(note: str, name: str) -> str:
    """Return the sentence for a note of `fit_prompt` on a truncated prompt. For `name`, see `_fitted`."""
    numbers = parts_of(note)[0].parameters
    if not numbers:
        return f"{name} {note.removesuffix('.')}."
    return message("prompt.truncated" if name == _PROMPT else "prompt.negative_truncated", **numbers)


def previews(*decodings: Decoding) -> Previews:
    """Return the previews of decodings that run side by side, for `Progress` and the map."""
    return Previews(decodings, preview_side(), check_cancelled)
