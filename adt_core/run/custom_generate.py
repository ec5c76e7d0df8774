"""Images with models that transformers has loaded, through the argument `custom_generate` of their `generate`.

    generate = custom_generate(model)
    ids = model.generate(**inputs, custom_generate=generate, seed=1)

This engine and the model then use the same weights: after a matrix of this engine is filled, the parameters of the
model become views of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..engine.decoding import Decoding
from ..engine.request import Request
from ..errors import AdtError
from ..models.families.chameleon import CODEC
from ..models.load import open_checkpoint, target_of
from ..models.reading.entries import Entry
from ..models.target import EncodedPrompt, Target
from ..models.torch_state import own_torch_state
from ..settings import MAX_SEED
from .extensions import add_installed
from .pipeline import Pipeline
from .resolve import Hardware, resolve_recipe

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .options import RecipeOptions


class CustomGenerate:
    """Function for the argument `custom_generate`. Use :func:`custom_generate` to make one.

    Attributes:
        pipeline: Pipeline that shares the weights of the model. Its `target.pixels` decodes codes to pixels.
    """

    def __init__(self, pipeline: Pipeline):
        self.pipeline = pipeline

    @torch.no_grad()
    def __call__(
        self,
        model: Any,
        input_ids: Tensor,
        logits_processor: object = None,
        stopping_criteria: object = None,
        generation_config: Any = None,
        seed: int | None = None,
        **model_inputs: Any,
    ) -> Tensor:
        """Generate one image for each row, as transformers calls it.

        Args:
            model: Model that was given to :func:`custom_generate`.
            input_ids: [B, n] prompts that end with the tokens that begin an image.
            logits_processor: Not used; guidance and sampling follow from `generation_config`.
            stopping_criteria: Not used, because an image has a fixed number of tokens.
            generation_config: `do_sample`, `temperature`, `top_k`, `top_p` and `guidance_scale`. A scale that is not
                given is that of :func:`custom_generate`, or else the one that the model's authors recommend.
            seed: Seed of the noise. None takes one from torch's generator, which `torch.manual_seed` sets.
            **model_inputs: Inputs of the model. Of these, `attention_mask` [B, n] is used: 0 for padding.

        Returns:
            [B, n + T] prompts and the T tokens of their images. For models whose vocabulary has no image tokens
            (Janus): the codes [B, T], as such a model returns them.

        Raises:
            AdtError: If a prompt does not begin an image of this size, or is too long; or if the model was moved.
        """
        pipeline = self.pipeline.with_options(**_options(generation_config, seed))
        target = pipeline.target
        embedding = model.get_input_embeddings()
        if embedding.weight.data_ptr() != target.decoder.embedding.data_ptr():
            raise AdtError("custom_generate.other_model")
        given = model_inputs.get("attention_mask")
        mask = torch.ones_like(input_ids) if given is None else given
        prompts = [EncodedPrompt(row[kept.bool()].tolist()) for row, kept in zip(input_ids.cpu(), mask.cpu())]
        _check_ends(prompts, target)
        recipe = pipeline.recipe
        request = Request.of(
            target,
            recipe,
            prompts,
            pipeline.drafter if recipe.drafting.policy.needs_drafter else None,
            image_indices=range(len(prompts)),
        )
        codes = Decoding(request).run().codes.to(input_ids.device)
        ids = target.decoder.image_ids.to(input_ids.device)
        if int(ids.max()) >= embedding.num_embeddings:
            return codes
        return torch.cat([input_ids, ids[codes]], 1)


def _options(config: Any, seed: int | None) -> dict[str, Any]:
    """Return the options of sampling in a `GenerationConfig`."""
    options: dict[str, Any] = {
        "temperature": 0.0 if not config.do_sample else 1.0 if config.temperature is None else config.temperature,
        "top_k": config.top_k or 0,
        "top_p": 1.0 if config.top_p is None else config.top_p,
        "seed": int(torch.randint(MAX_SEED // 2, ())) if seed is None else seed,
    }
    return options if config.guidance_scale is None else {**options, "guidance_scale": config.guidance_scale}


def _check_ends(prompts: list[EncodedPrompt], target: Target) -> None:
    """Raise AdtError if a prompt does not end as all prompts for images of the target's size do."""
    one, other = (target.encode_prompt(text)[::-1] for text in ("a", "b c"))
    same = next(number for number, pair in enumerate(zip(one, other)) if pair[0] != pair[1])
    end = one[:same][::-1]
    for prompt in prompts:
        if list(prompt[-same:]) != end:
            rows, columns = target.grid
            raise AdtError("custom_generate.wrong_end", found=list(prompt[-same:]), end=end, rows=rows, columns=columns)


@torch.inference_mode(False)
@own_torch_state()
def custom_generate(
    model: Any,
    path: str | Path | None = None,
    drafter: str | Path | None = None,
    size: tuple[int, int] | None = None,
    **options: Unpack[RecipeOptions],
) -> CustomGenerate:
    """Return a function for `model.generate(..., custom_generate=...)` that shares the model's weights.

    Args:
        model: Chameleon, Janus or Emu3 model of transformers, with its weights on one device.
        path: Folder of the checkpoint, for the tokenizer and parts that transformers does not load, such as Chameleon's
            image decoder (default: the folder from which the model was loaded).
        drafter: As in :meth:`.Pipeline.load`.
        size: Width and height of the images in pixels (default: the model's usual size).
        **options: Options of :meth:`.Pipeline.with_options`, such as ``method="adt-tree"``. Those of sampling come from
            the generation config, except for `guidance_scale`, which Janus does not pass on.

    Raises:
        AdtError: If the model is of another kind, or its checkpoint can't be read.
    """
    add_installed()
    folder = str(path or model.name_or_path)
    checkpoint = open_checkpoint(folder)
    parameters = dict(model.named_parameters())
    checkpoint.use_tensors(model.state_dict(), CODEC)
    share = partial(_share, parameters=parameters)
    target = target_of(checkpoint, model.device, model.dtype, device_memory=math.inf, filled=share)  # streams no layer
    target = target if size is None else target.sized(*size)
    given = {"model": folder, "drafter": drafter and str(drafter), "dtype": target.loaded["dtype"], **options}
    recipe = resolve_recipe(given, Hardware.of(model.device), target.published_sampling)
    loaded = replace(Pipeline(target, recipe), given=given).with_options(seed=0)
    return CustomGenerate(loaded)


def _share(entry: Entry, parameters: Mapping[str, nn.Parameter]) -> None:
    """Make the parameters of a model views of one of this engine, if their numbers are the same.

    A matrix of this engine is the transpose of one matrix, or of several below each other.
    """
    theirs = [parameters[name] for name in entry.names if name in parameters]
    if len(theirs) < len(entry.names):
        return
    mine = entry.parameter.data
    for ours in (mine, mine.T) if mine.ndim == 2 else (mine,):
        if ours.shape[0] != sum(len(part) for part in theirs) or ours.dtype != theirs[0].dtype:
            continue
        views = ours.split([len(part) for part in theirs])
        if all(torch.equal(view, part) for view, part in zip(views, theirs)):
            for view, part in zip(views, theirs):
                part.data = view
            return
