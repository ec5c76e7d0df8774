"""Figures on speed compared with transformers' ``generate``: same model, same captions, same sampling settings."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor
from transformers import ChameleonForConditionalGeneration, UnbatchedClassifierFreeGuidanceLogitsProcessor

from adt_core import Pipeline, Sampling, Target
from adt_core.lab.presets import PRESETS
from adt_core.models.reading.paths import resolve
from adt_core.policies import PLAIN
from adt_core.settings import BUNDLED

from ..gpu.device import seconds_of
from ..harness import SAMPLING, bundled, captions, comparison
from ..interleaving import format_interval, interleave, median_with_interval, table
from .parts import FigurePart

FIRST_CAPTION = 3700  # number of the first held-out caption of this part
TRANSFORMERS = "transformers"
TITLES = {
    TRANSFORMERS: "transformers' `generate`",
    PLAIN: "this engine, no drafting",
    "auto": "this engine, *auto* (the default)",
}


def chameleon() -> ChameleonForConditionalGeneration:
    """Load the bundled model into transformers, and allow it to generate image tokens."""
    model = ChameleonForConditionalGeneration.from_pretrained(resolve(BUNDLED, "target")).float().eval()
    model.model.vocabulary_mapping.__dict__["image_tokens"] = []  # the forward masks the tokens in this list
    return model


@torch.inference_mode()
def generate(model: ChameleonForConditionalGeneration, target: Target, prompt: str, sampling: Sampling) -> Tensor:
    """Generate an image with transformers' ``generate``.

    Args:
        model: The bundled model as :func:`chameleon` loads it.
        target: The same model in this engine, which encodes the prompt.

    Returns:
        Codes [T] of the T tokens of the image.
    """
    ids = target.encode_prompt(prompt)
    unconditional = torch.tensor([target.unconditional(ids)])
    guidance = UnbatchedClassifierFreeGuidanceLogitsProcessor(sampling.guidance, model, unconditional_ids=unconditional)
    first_code = target.decoder.image_ids[0]  # the ids of the codes are consecutive
    allowed = target.decoder.image_ids.tolist()
    torch.manual_seed(sampling.seed)
    generated = model.generate(
        torch.tensor([ids]),
        attention_mask=torch.ones(1, len(ids), dtype=torch.long),
        logits_processor=[guidance],
        prefix_allowed_tokens_fn=lambda *_: allowed,
        max_new_tokens=target.length,
        do_sample=True,
        temperature=sampling.temperature,
        top_k=0,
    )
    return generated[0, len(ids) :] - first_code


def _engine_seconds(pipeline: Pipeline, prompt: str) -> float:
    return seconds_of(lambda: pipeline.decoding([prompt]).run())


def measure(count: int) -> list[dict]:
    """Measure the seconds per image of each method.

    The time includes reading the prompt. It does not include loading the model or decoding tokens to pixels. All
    methods decode one prompt before the next prompt starts.
    """
    prompts = captions(FIRST_CAPTION, count)
    target = bundled().target
    model = chameleon()
    pipelines = comparison({"auto": PRESETS["auto"]}, prompts).pipelines(bundled())
    for pipeline in pipelines.values():
        pipeline.decoding(prompts[:1]).warm_up()
    runs: dict[str, Callable[[str], float]] = {
        TRANSFORMERS: lambda prompt: seconds_of(lambda: generate(model, target, prompt, SAMPLING)),
        **{name: partial(_engine_seconds, pipeline) for name, pipeline in pipelines.items()},
    }
    runs[TRANSFORMERS](prompts[0])  # warm-up
    results = list(interleave(runs, prompts))
    seconds = {name: np.array([result[name] for result in results]) for name in runs}
    return [
        {
            "method": name,
            "seconds": float(np.median(seconds[name])),
            "times transformers": median_with_interval(seconds[TRANSFORMERS] / seconds[name]),
            "times plain": median_with_interval(seconds[PLAIN] / seconds[name]),
        }
        for name in TITLES
    ]


def tables(lines: list[dict]) -> dict[str, str]:
    """Return the table, by its name ``transformers``. See `FigurePart.tables`."""
    columns = ("decoder", "seconds per image", "speed-up over transformers", "speed-up over no drafting")
    rows = [
        [
            TITLES[line["method"]],
            line["seconds"],
            format_interval(line["times transformers"]),
            format_interval(line["times plain"]),
        ]
        for line in lines
    ]
    return {"transformers": table(columns, rows)}


PARTS = {"transformers": FigurePart(6, measure, tables)}
