"""Is a seed's picture that of transformers' own ``generate``, and what does upstream's noise cost?

    python -m benchmarks.upstream [--prompts 8]
    python -m benchmarks.upstream --costs [--prompts 12] [--threads 1]

The first draws captions with the bundled model, which is a Chameleon: by ``generate`` after ``torch.manual_seed``, and
by this engine with upstream's noise, plain and drafted, at temperature 1. It ends with 1 if a token differs.

The second decodes with either noise in turns, seconds an image without its prompt. Its models are the bundled decoder
with random heads of so many codes. What a position's noise alone takes follows, for the rows of published scripts.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor
from transformers import ChameleonForConditionalGeneration, UnbatchedClassifierFreeGuidanceLogitsProcessor

from adt_core import Drafting, Sampling, load_drafter, load_target
from adt_core.app.jobs import Job, decode
from adt_core.models.checkpoint import BUNDLED, resolve
from adt_core.models.target import Target
from adt_core.policies import PLAIN
from adt_core.policies.recipe import Recipe
from adt_core.rules.noise import Own
from adt_core.rules.settings import UPSTREAM
from adt_core.rules.upstream import Upstream

from .harness import captions
from .turns import in_turns, interval

FIRST = 3900  # held-out caption of this benchmark
METHODS = {
    "plain": ("jacobi", {"method": PLAIN}),
    "ADT-Tree": (BUNDLED, {"method": "adt-tree"}),
    "network and window": (f"{BUNDLED}+jacobi", {"method": "eagle2", "depth": 8, "width": 3, "nodes": 24}),
}
CODES = 1024, 4096, 8192, 16384, 32768
ROWS = {
    "Janus-Pro, LlamaGen": (16384, 16384),
    "Anole, Lumina-mGPT": (8192, 65536),
    "Emu3-Gen": (32768, 184622),
}
"""Of published scripts: codes, and the width of the vector that they sample from."""


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


def with_codes(count: int) -> Target:
    """The bundled model with a random head of so many codes, which share the embeddings of its own."""
    target, draw = load_target(), torch.Generator().manual_seed(1)
    decoder = target.decoder
    head = torch.randn(len(decoder.head), count, generator=draw) * decoder.head.std()
    ids = decoder.image_ids[torch.arange(count) % len(decoder.image_ids)]
    decoder.head, decoder.image_ids = torch.nn.Parameter(head, requires_grad=False), ids
    target.draws_from = 0
    return target


def costs(prompts: list[str]) -> None:
    """Print seconds an image with either noise, by number of codes and method."""
    print("| codes | method | seconds an image, own | upstream | upstream / own |\n" + "|---" * 5 + "|")
    methods = {"plain": {"method": PLAIN}, "window": {"method": "eagle2", "depth": 16, "width": 1, "nodes": 16}}
    for count in CODES:
        target = with_codes(count)
        for method, options in methods.items():
            drafter = load_drafter("jacobi", target)
            jobs = {
                noise: Job(target, Recipe(Sampling(1, noise=noise), Drafting(**options)), drafter)
                for noise in ("own", UPSTREAM)
            }

            def seconds(job: Job, prompt: str) -> float:
                report = decode(job.decoding([prompt])).trace.report()
                return report["seconds"] - report["prefill_seconds"]

            runs = {noise: (lambda prompt, job=job: seconds(job, prompt)) for noise, job in jobs.items()}
            _, *turns = in_turns(runs, [prompts[0], *prompts])  # the first is uncounted: first calls are slow
            own, theirs = (np.array([turn[noise] for turn in turns]) for noise in jobs)
            print(f"| {count} | {method} | {np.median(own):.3f} | {np.median(theirs):.3f} | {interval(theirs / own)} |")


def rows(turns: int = 99) -> Iterator[tuple[str, float, float]]:
    """Milliseconds of a position's noise of our own, and of upstream's, by script."""
    for name, (codes, width) in ROWS.items():
        kinds = Own(codes, torch.empty(0)), Upstream(width, torch.arange(codes), 1)
        taken = []
        for kind in kinds:
            made, found, chunk = kind((1, 0)), [], max(2**15 // codes, 1)  # as many as an image is given at once
            for turn in range(turns):
                started = time.perf_counter()
                made(range(chunk * turn, chunk * (turn + 1)))
                found.append((time.perf_counter() - started) / chunk)
            taken.append(1000 * float(np.median(found)))
        yield name, *taken


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
    print("\n| row of | ms a position, own | upstream |\n" + "|---" * 3 + "|")
    for name, own, theirs in rows():
        print(f"| {name} | {own:.2f} | {theirs:.2f} |")


if __name__ == "__main__":
    main()
