"""Compare images with transformers' ``generate``, and measure the cost of the ``upstream`` noise.

The ``upstream`` noise uses torch's random numbers in the same order as the model authors' scripts. With this noise, a
seed gives the same image as with such a script.

    python -m benchmarks.upstream [--prompts 8]
    python -m benchmarks.upstream --costs [--prompts 8] [--threads 1]

The first command generates images of held-out captions at temperature 1. The model is the bundled one, a Chameleon. The
benchmark generates each image with transformers' ``generate`` after ``torch.manual_seed``, and with this engine and the
``upstream`` noise, with and without drafting. The exit code is 1 if any token differs.

The second command measures plain decoding with this pack's own noise and with the ``upstream`` noise. Steps with the
two kinds of noise alternate. All times are CPU times in milliseconds. The model has one layer with random weights: the
layer has the sizes of a published model, and the head has the number of codes of the same published model. The ratio
``upstream / own`` is the median over the captions. The ratio for all layers is an estimate, which assumes that each
layer of the published model takes as long as the measured complete step.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import ChameleonForConditionalGeneration, UnbatchedClassifierFreeGuidanceLogitsProcessor

from adt_core import Drafting, Sampling, load_drafter, load_target
from adt_core.app.pipeline import Pipeline
from adt_core.models.layers import Decoder
from adt_core.models.reading.paths import resolve
from adt_core.models.target import Target
from adt_core.policies import PLAIN
from adt_core.recipe import Recipe
from adt_core.rules.noise import KeyedNoise
from adt_core.rules.upstream import UpstreamNoise
from adt_core.settings import BUNDLED, UPSTREAM

from .harness import captions
from .interleaving import header, median_with_interval, row

FIRST_CAPTION = 3900  # number of the first held-out caption of this benchmark
METHODS = {
    "plain": ("jacobi", {"method": PLAIN}),
    "ADT-Tree": (BUNDLED, {"method": "adt-tree"}),
    "network and window": (f"{BUNDLED}+jacobi", {"method": "eagle2", "depth": 8, "width": 3, "drafts": 24}),
}


class Layers(NamedTuple):
    """Sizes of the layers of a published model.

    Attributes:
        hidden: Hidden size.
        inner: Intermediate size of the MLP.
        heads: Number of attention heads.
        count: Number of layers.
    """

    hidden: int
    inner: int
    heads: int
    count: int


JANUS = Layers(2048, 5632, 16, 24)
ANOLE = Layers(4096, 11008, 32, 32)
EMU3 = Layers(4096, 14336, 32, 32)
STEPS = [
    *((JANUS, codes, codes) for codes in (1024, 4096, 8192, 16384, 32768)),
    (ANOLE, 8192, 65536),
    (EMU3, 32768, 184622),
]
"""Measured models: layers, number of codes, and number of logits that the original script samples from."""
ROUNDS = 32  # steps per ratio; with 1,024 codes, the engine generates the noise of 32 positions at a time


# ---- equal images --------------------------------------------------------------------------------


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
        prompt: Text of the prompt.
        sampling: Seed, guidance and temperature.

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


def check(prompts: list[str]) -> bool:
    """Print for each method how many images are equal to transformers' images. Return whether all images are equal."""
    target = load_target()
    model = chameleon()
    equal = dict.fromkeys(METHODS, 0)
    tau = {name: list[float]() for name in METHODS}
    for number, prompt in enumerate(prompts):
        sampling = Sampling(number, guidance=2.0, noise=UPSTREAM)
        expected = generate(model, target, prompt, sampling)
        for name, (drafter, options) in METHODS.items():
            pipeline = Pipeline(target, Recipe(sampling, Drafting(**options)), load_drafter(drafter, target))
            decoding = pipeline.decoding([prompt]).run()
            equal[name] += bool(decoding.codes[0].equal(expected))
            tau[name].append(decoding.trace.report()["tau"])
    print(header("method", "images equal to transformers' in every token", "tokens per target pass"))
    for name, count in equal.items():
        print(row(name, f"{count} of {len(prompts)}", f"{np.mean(tau[name]):.2f}"))
    return all(count == len(prompts) for count in equal.values())


# ---- cost of the noise ---------------------------------------------------------------------------


def target_of(layers: Layers, codes: int, width: int) -> Target:
    """Return the bundled model with its decoder replaced by one random layer and a random head.

    Args:
        layers: Sizes of the layer.
        codes: Number of codes of the head.
        width: Number of logits that the original script samples from.
    """
    target = load_target()
    config = replace(
        target.decoder.config,
        hidden_size=layers.hidden,
        intermediate_size=layers.inner,
        num_layers=1,
        num_heads=layers.heads,
        num_kv_heads=layers.heads,
    )
    ids = target.decoder.image_ids
    decoder = Decoder(config, ids[torch.arange(codes) % len(ids)], codes).requires_grad_(False)
    generator = torch.Generator().manual_seed(1)
    for parameter in decoder.parameters():
        parameter.normal_(0, layers.hidden**-0.5, generator=generator)
    decoder.config = replace(config, vocab_size=width)
    target.decoder = decoder
    target.script_vocab_size = width if width > codes else 0
    return target


def step_times(target: Target, prompt: str) -> list[float]:
    """Return the CPU time of a step in milliseconds: with this pack's own noise, and with the ``upstream`` noise."""
    drafting = Drafting(method=PLAIN)
    pipelines = [Pipeline(target, Recipe(Sampling(1, noise=noise), drafting)) for noise in ("own", UPSTREAM)]
    runs = [iter(pipeline.decoding([prompt])) for pipeline in pipelines]
    for run in runs:
        next(run)  # the first step also reads the prompt
    seconds = [0.0, 0.0]
    for number in range(2 * ROUNDS):
        started = time.process_time()
        next(runs[number % 2])
        seconds[number % 2] += time.process_time() - started
    return [1000 * total / ROUNDS for total in seconds]


def noise_times(codes: int, width: int, repeats: int = 30) -> list[float]:
    """Return the median CPU time in milliseconds for generating the noise of one position.

    Args:
        codes: Number of codes.
        width: Number of logits that the original script samples from.
        repeats: Number of timed calls.

    Returns:
        Times of this pack's own noise and of the ``upstream`` noise.
    """
    medians = []
    chunk = max(2**15 // codes, 1)  # number of positions whose noise the engine generates in one call
    for kind in (KeyedNoise(codes, torch.empty(0)), UpstreamNoise(width, torch.arange(codes), 1)):
        generate_noise = kind((1, 0))
        times = []
        for number in range(repeats):
            started = time.process_time()
            generate_noise(range(chunk * number, chunk * (number + 1)))
            times.append(1000 * (time.process_time() - started) / chunk)
        medians.append(float(np.median(times)))
    return medians


def print_costs(prompts: list[str]) -> None:
    """Print the cost of both kinds of noise for each of `STEPS`."""
    columns = ("ms of noise, own", "upstream", "ms of a step of one layer", "upstream / own", "all layers")
    print(header("codes", "row", *columns), flush=True)
    for layers, codes, width in STEPS:
        target = target_of(layers, codes, width)
        own, upstream = np.array([step_times(target, prompt) for prompt in prompts]).T
        all_layers = 1 + np.median(upstream - own) / (np.median(own) * layers.count)
        noise = [f"{milliseconds:.3f}" for milliseconds in noise_times(codes, width)]
        ratio = "{:.3f} ({:.3f} to {:.3f})".format(*median_with_interval(upstream / own))
        print(row(codes, width, *noise, float(np.median(own)), ratio, f"{all_layers:.4f}"), flush=True)


def main() -> None:
    """Run the command line of this benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--costs", action="store_true", help="measure the cost of the noise")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    prompts = captions(FIRST_CAPTION, args.prompts)
    if args.costs:
        print_costs(prompts)
        return
    sys.exit(0 if check(prompts) else 1)


if __name__ == "__main__":
    main()
