"""Is a seed's picture that of transformers' own ``generate``, and what does upstream's noise cost?

    python -m benchmarks.upstream [--prompts 8]
    python -m benchmarks.upstream --costs [--prompts 8] [--threads 1]

The first draws captions with the bundled model, which is a Chameleon: by ``generate`` after ``torch.manual_seed``, and
by this engine with upstream's noise, plain and drafted, at temperature 1. It ends with 1 if a token differs.

The second decodes plainly with either noise, a step of one and a step of the other in turns, in seconds of the
processor. A step is that of one random layer as wide as a published model's, with a head of so many codes. A ratio is
that of one caption's steps. That of all layers is computed, as if each took as long as the whole step.
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
from adt_core.app.jobs import Job, decode
from adt_core.models.layers import Decoder
from adt_core.models.reading.checkpoint import BUNDLED, resolve
from adt_core.models.target import Target
from adt_core.policies import PLAIN
from adt_core.policies.recipe import Recipe
from adt_core.rules.noise import Own
from adt_core.rules.settings import UPSTREAM
from adt_core.rules.upstream import Upstream

from .harness import captions
from .turns import head, middle, row

FIRST = 3900  # held-out caption of this benchmark
METHODS = {
    "plain": ("jacobi", {"method": PLAIN}),
    "ADT-Tree": (BUNDLED, {"method": "adt-tree"}),
    "network and window": (f"{BUNDLED}+jacobi", {"method": "eagle2", "depth": 8, "width": 3, "nodes": 24}),
}


class Layers(NamedTuple):
    """Of a published model."""

    hidden: int
    inner: int
    heads: int
    count: int


JANUS, ANOLE, EMU3 = Layers(2048, 5632, 16, 24), Layers(4096, 11008, 32, 32), Layers(4096, 14336, 32, 32)
STEPS = [
    *((JANUS, codes, codes) for codes in (1024, 4096, 8192, 16384, 32768)),
    (ANOLE, 8192, 65536),
    (EMU3, 32768, 184622),
]
"""Layers, codes, and the width of the row that a script samples from: of Janus-Pro-1B, Anole and Emu3."""
ROUNDS = 32  # of a ratio: noise of 1,024 codes is made for so many at once


# ---- the same picture ----------------------------------------------------------------------------


def generated(model: ChameleonForConditionalGeneration, target: Target, prompt: str, sampling: Sampling) -> Tensor:
    """The codes [T] that ``generate`` draws of a prompt."""
    row, ids = target.encode_prompt(prompt), target.decoder.image_ids
    other = torch.tensor([target.unconditional(row)])
    guide = UnbatchedClassifierFreeGuidanceLogitsProcessor(sampling.guidance, model, unconditional_ids=other)
    allowed = ids.tolist()
    torch.manual_seed(sampling.seed)
    drawn = model.generate(
        torch.tensor([row]),
        attention_mask=torch.ones(1, len(row), dtype=torch.long),
        logits_processor=[guide],
        prefix_allowed_tokens_fn=lambda *_: allowed,
        max_new_tokens=target.length,
        do_sample=True,
        temperature=sampling.temperature,
        top_k=0,
    )
    return drawn[0, len(row) :] - ids[0]  # codes follow each other


def check(prompts: list[str]) -> bool:
    """Draw and compare; is every token equal?"""
    target = load_target()
    model = ChameleonForConditionalGeneration.from_pretrained(resolve(BUNDLED, "target")).float().eval()
    model.model.vocabulary_mapping.__dict__["image_tokens"] = []  # which its forward forbids
    equal, passes = dict.fromkeys(METHODS, 0), {name: list[float]() for name in METHODS}
    for number, prompt in enumerate(prompts):
        sampling = Sampling(number, guidance=2.0, noise=UPSTREAM)
        with torch.inference_mode():
            theirs = generated(model, target, prompt, sampling)
        for name, (drafter, options) in METHODS.items():
            job = Job(target, Recipe(sampling, Drafting(**options)), load_drafter(drafter, target))
            decoding = decode(job.decoding([prompt]))
            equal[name] += bool(decoding.codes[0].equal(theirs))
            passes[name].append(decoding.trace.report()["tau"])
    print("| method | pictures that are transformers' in every token | tokens a pass |\n" + "|---" * 3 + "|")
    for name, count in equal.items():
        print(f"| {name} | {count} of {len(prompts)} | {np.mean(passes[name]):.2f} |")
    return all(count == len(prompts) for count in equal.values())


# ---- what it costs -------------------------------------------------------------------------------


def target_of(layers: Layers, codes: int, width: int) -> Target:
    """The bundled model with one random layer in place of its own, and a script that samples from so wide a row."""
    target, draw = load_target(), torch.Generator().manual_seed(1)
    shape = {"hidden_size": layers.hidden, "intermediate_size": layers.inner, "num_layers": 1}
    heads = {"num_heads": layers.heads, "num_kv_heads": layers.heads}
    config, ids = replace(target.decoder.config, **shape, **heads), target.decoder.image_ids
    decoder = Decoder(config, ids[torch.arange(codes) % len(ids)], codes).requires_grad_(False)
    for parameter in decoder.parameters():
        parameter.normal_(0, layers.hidden**-0.5, generator=draw)
    decoder.config = replace(config, vocab_size=width)
    target.decoder, target.draws_from = decoder, width if width > codes else 0
    return target


def step(target: Target, prompt: str) -> list[float]:
    """Milliseconds of a step with our own noise, and with upstream's."""
    plain, spent = Drafting(method=PLAIN), [0.0, 0.0]
    jobs = [Job(target, Recipe(Sampling(1, noise=noise), plain)) for noise in ("own", UPSTREAM)]
    runs = [iter(job.decoding([prompt])) for job in jobs]
    for run in runs:
        next(run)  # which reads the prompt
    for turn in range(2 * ROUNDS):
        started = time.process_time()
        next(runs[turn % 2])
        spent[turn % 2] += time.process_time() - started
    return [1000 * seconds / ROUNDS for seconds in spent]


def noise(codes: int, width: int, times: int = 30) -> list[float]:
    """Milliseconds of a position's noise alone, our own and upstream's; medians."""
    taken, chunk = [], max(2**15 // codes, 1)  # as many positions as an image is given at once
    for kind in (Own(codes, torch.empty(0)), Upstream(width, torch.arange(codes), 1)):
        made, found = kind((1, 0)), []
        for turn in range(times):
            started = time.process_time()
            made(range(chunk * turn, chunk * (turn + 1)))
            found.append(1000 * (time.process_time() - started) / chunk)
        taken.append(float(np.median(found)))
    return taken


def costs(prompts: list[str]) -> None:
    """Print what either noise costs, by the row that a script samples from."""
    names = "codes", "row", "ms of noise, own", "upstream", "ms of a step of one layer", "upstream / own", "all layers"
    print(head(*names), flush=True)
    for layers, codes, width in STEPS:
        target = target_of(layers, codes, width)
        own, theirs = np.array([step(target, prompt) for prompt in prompts]).T
        all_layers = 1 + np.median(theirs - own) / (np.median(own) * layers.count)
        cells = codes, width, *(f"{ms:.3f}" for ms in noise(codes, width)), float(np.median(own))
        print(row(*cells, "{:.3f} ({:.3f} to {:.3f})".format(*middle(theirs / own)), f"{all_layers:.4f}"), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--costs", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    prompts = captions(FIRST, args.prompts)
    if not args.costs:
        sys.exit(0 if check(prompts) else 1)
    costs(prompts)


if __name__ == "__main__":
    main()
