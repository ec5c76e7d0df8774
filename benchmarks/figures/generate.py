"""Figures on speed compared with transformers: same model, same captions, same sampling settings.

There are two ways to use transformers. :func:`generate` calls its ``generate`` with its classifier-free guidance, which
needs two forward passes per token. :func:`batched` is a loop that computes both rows of the guidance in one pass.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor
from transformers import ChameleonForConditionalGeneration, DynamicCache, UnbatchedClassifierFreeGuidanceLogitsProcessor

from adt_core import Pipeline, Sampling, Target
from adt_core.lab.presets import PRESETS
from adt_core.models.reading.paths import resolve
from adt_core.policies import PLAIN
from adt_core.run import race
from adt_core.settings import BUNDLED

from ..gpu.device import seconds_of
from ..harness import SAMPLING, bundled, captions, comparison
from ..tables import estimate, table
from . import FigurePart

FIRST_CAPTION = 3700  # number of the first held-out caption of this part
TRANSFORMERS = "transformers"
BATCHED = "transformers, batched guidance"
AUTO = "auto"
TITLES = {
    BATCHED: "transformers, guidance in one pass per token",
    TRANSFORMERS: "transformers' `generate`, guidance in two passes per token",
    PLAIN: "this engine, no drafting",
    AUTO: "this engine, *auto* (the default)",
}


def chameleon() -> ChameleonForConditionalGeneration:
    """Load the bundled model into transformers, and allow it to generate image tokens."""
    model = ChameleonForConditionalGeneration.from_pretrained(resolve(BUNDLED, "target")).float().eval()
    model.model.vocabulary_mapping.__dict__["image_tokens"] = []  # the forward masks the tokens in this list
    return model


@torch.inference_mode()
def generate(model: ChameleonForConditionalGeneration, target: Target, prompt: str, sampling: Sampling) -> Tensor:
    """Generate an image with transformers' ``generate``, and return the codes [T] of its T tokens.

    Args:
        model: The bundled model as :func:`chameleon` loads it.
        target: The same model in this engine, which encodes the prompt.
    """
    ids = target.encode_prompt(prompt)
    unconditional = torch.tensor([target.unconditional(ids)])
    guidance = UnbatchedClassifierFreeGuidanceLogitsProcessor(sampling.guidance_scale, model, unconditional)
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


@torch.inference_mode()
def batched(model: ChameleonForConditionalGeneration, target: Target, prompt: str, sampling: Sampling) -> Tensor:
    """Generate an image with transformers' model and cache, and one forward pass per token for both rows of guidance.

    The random numbers and tokens are the same as in :func:`generate`, which documents the arguments and the result.
    """
    ids = target.encode_prompt(prompt)
    unconditional = target.unconditional(ids)
    padding = len(ids) - len(unconditional)
    step = torch.tensor([ids, [ids[0]] * padding + unconditional])
    mask = torch.ones(2, len(ids) + target.length, dtype=torch.long)
    mask[1, :padding] = 0
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    first_code = target.decoder.image_ids[0]
    codes = slice(int(first_code), int(first_code) + len(target.decoder.image_ids))
    allowed = torch.full((model.config.get_text_config().vocab_size,), -torch.inf)
    allowed[codes] = 0
    cache = DynamicCache(config=model.config.get_text_config())
    generated = torch.empty(target.length, dtype=torch.long)
    torch.manual_seed(sampling.seed)
    for number in range(target.length):
        length = len(ids) + number
        inputs = {"attention_mask": mask[:, :length], "position_ids": positions[:, length - step.shape[1] : length]}
        logits = model(step, cache=cache, use_cache=True, logits_to_keep=1, **inputs).logits[:, -1]
        guided = torch.lerp(logits[1], logits[0], sampling.guidance_scale) + allowed
        token = torch.multinomial((guided / sampling.temperature).softmax(-1), 1)
        generated[number] = token
        step = token.expand(2, 1)
    return generated - first_code


def _seconds(way: Callable, model: ChameleonForConditionalGeneration, target: Target, prompt: str) -> float:
    return seconds_of(lambda: way(model, target, prompt, SAMPLING))


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
    pipelines = comparison({AUTO: PRESETS[AUTO]}, prompts).pipelines(bundled())
    race.warm_up(pipeline.decoding(prompts[:1]) for pipeline in pipelines.values())
    baselines = {
        name: partial(_seconds, way, model, target) for name, way in {BATCHED: batched, TRANSFORMERS: generate}.items()
    }
    for run in baselines.values():
        run(prompts[0])  # warm-up
    runs = baselines | {name: partial(_engine_seconds, pipeline) for name, pipeline in pipelines.items()}
    results = list(race.by_tasks(runs, prompts))
    seconds = {name: [result[name] for result in results] for name in TITLES}
    return [
        {
            "method": name,
            "seconds": float(np.median(times)),
            "speedup": race.speedup(times, seconds[AUTO]) if name != AUTO else None,
            "totals": race.ratio_of_totals(times, seconds[AUTO]) if name != AUTO else None,
        }
        for name, times in seconds.items()
    ]


def tables(lines: list[dict]) -> dict[str, str]:
    """Return the table, by its name ``transformers``. See `FigurePart.tables`."""
    columns = ("decoder", "seconds per image", "speed-up of *auto* over it", "ratio of totals")
    rows = [[TITLES[line["method"]], line["seconds"], estimate(line["speedup"]), line["totals"]] for line in lines]
    return {"transformers": table(columns, rows)}


PARTS = {"transformers": FigurePart(8, measure, tables)}
