"""What the sampler nodes have in common: their numbers, prompts, weights and previews."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from copy import copy
from typing import Any, NamedTuple

import torch
from comfy.model_patcher import ModelPatcher
from comfy_api.v0_0_2 import io
from PIL import Image

from ..adt_core.app.checkpoints import BUNDLED_SAMPLING
from ..adt_core.app.known import remark
from ..adt_core.engine.decoding import Decoding
from ..adt_core.models.target import Prompt, Target, suffixed
from ..adt_core.rules.settings import Sampling
from .latent import read_codes
from .runtime import check_cancelled, loaded, tell
from .schema import widget
from .sockets import LoadedDrafter, LoadedModel
from .stock import read_prompt, read_sources, text_encoder, to_image, to_picture

OWN, CUSTOM = "model's own", "custom"
"""Presets: the numbers that the model's makers publish, and those on the node."""
NUMBERS = "guidance", "temperature", "top_k", "top_p"
"""What a preset is about."""


def sampling_inputs() -> list[io.Input]:
    """The inputs of ``adt_core.Sampling``, by its names. Numbers begin with what suits the bundled model."""
    own = Sampling.options()
    numbers = [widget(name, own[name]._replace(default=getattr(BUNDLED_SAMPLING, name))) for name in NUMBERS]
    return [widget("seed", own["seed"], control_after_generate=True), *numbers]


def preset_input() -> io.Input:
    """Whose numbers hold. It is optional for prompts that were saved before there was a choice."""
    return io.Combo.Input("preset", options=[OWN, CUSTOM], default=OWN, optional=True)


def noise_input() -> io.Input:
    """Whose noise it is, for those who want the picture that another program draws."""
    return widget("noise", Sampling.options()["noise"], advanced=True)


def choose_preset(preset: str | None, **given: Any) -> str:
    """The preset that is asked for. A prompt that says none has numbers that its user chose, or no numbers."""
    return preset or (CUSTOM if given.keys() & set(NUMBERS) else OWN)


def choose_sampling(model: LoadedModel, preset: str, **given: Any) -> Sampling:
    """The numbers that are given, what is left out as the inputs begin; or those of the model's makers. Seed and noise
    are always those given."""
    own = BUNDLED_SAMPLING if preset == CUSTOM else model.target.published
    numbers = {name: getattr(own, name) for name in NUMBERS}
    return Sampling(**given | (numbers | given if preset == CUSTOM else numbers))


def choose_suffix(model: LoadedModel, preset: str) -> str:
    """What is put behind every prompt."""
    return model.target.published.suffix if preset == OWN else ""


class Rows(NamedTuple):
    """What is drawn from. target: the model, with the source pictures if there are some. row: of the prompt. opposite:
    of the negative prompt, if there is one."""

    target: Target
    row: Prompt
    opposite: Prompt | None


def read_rows(model: LoadedModel, positive: list, negative: list | None, preset: str) -> Rows:
    """The rows of a prompt and of a negative one."""
    text = read_prompt(positive, "positive").text
    opposite = read_prompt(negative, "negative").text if negative is not None else ""
    sources = [codes for latent in read_sources(positive) for codes in read_codes(latent, model, "positive")]
    target = model.target.with_sources(sources) if sources else model.target
    with text_encoder(model):
        row = target.encode_prompt(suffixed(text, choose_suffix(model, preset)))
        return Rows(target, row, target.encode_prompt(opposite) if opposite.strip() else None)


def tell_remarks(decoding: Decoding, model: LoadedModel, positive: list) -> None:
    """Show under the node that has drawn a prompt the remarks on its device, its size and the prompt."""
    remarks = decoding.exact.remark, remark(model.target, [read_prompt(positive, "positive").text])
    if said := " ".join(filter(None, remarks)):
        tell(said)


def patchers(model: LoadedModel, drafter: LoadedDrafter | None) -> list[ModelPatcher]:
    """All weights that work when images are made."""
    network = [drafter.patcher] if drafter is not None and drafter.patcher is not None else []
    return [model.patcher, model.codec, *network]


def loaded_for(
    decodings: Sequence[Decoding], model: LoadedModel, drafter: LoadedDrafter | None
) -> AbstractContextManager[torch.device]:
    """All weights on their device, with room for decodings that work side by side; see :func:`.runtime.loaded`.

    Where memory runs out a decoding draws fewer images at once, so it only has to have room for one.
    """
    singles = [copy(decoding) for decoding in decodings]
    for single in singles:
        single.at_once = 1
    room, least = (sum(d.memory_required(model.patcher.load_device) for d in some) for some in (decodings, singles))
    return loaded(patchers(model, drafter), room, least)


def preview(target: Target, decoding: Decoding, image: int = 0) -> Image.Image:
    """The image of this number as far as it is decided; the rest has the mean colour of what is there."""
    codes = decoding.grid_codes()[image]
    if decoding.trace.lead and (codes < 0).all():
        codes = decoding.target.small(decoding.codes)[image]
    missing = codes < 0
    blank = target.codec.nearest(target.codec.codebook.mean(0).reshape(1, -1, 1, 1)).item()
    pixels = to_image(target.codec.decode(codes.masked_fill(missing, blank)[None], check=check_cancelled))[0].cpu()
    hidden = torch.nn.functional.interpolate(missing[None, None].float(), size=pixels.shape[:2])[0, 0] > 0
    if not hidden.all():
        pixels[hidden] = pixels[~hidden].mean(0)
    return to_picture(pixels)
