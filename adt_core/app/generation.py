"""From checked options to pictures on disk: what ``generate`` does behind its command line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import torch
from torch import Tensor
from tqdm import tqdm

from ..drafters import JACOBI
from ..engine.decoding import Decoding
from ..errors import AdtError
from ..files import write, write_json
from ..policies import PLAIN, Drafting
from ..policies.recipe import Recipe
from ..rules.trace import Trace
from . import continuation, distributed
from .args import GenerateArgs
from .checkpoints import load_drafter
from .images import check_outputs, to_png
from .jobs import Job, conditions, drawing, stretches, warm_up
from .loading import choose_device, complete, models_of, named, open_target
from .prompts import blank_note, non_blank, read_all
from .training_domain import domain_warning

MOST_PICTURES = 10**6
"""Pictures of one command; each one's path is in memory."""


@dataclass(frozen=True)
class Plan:
    """An order that has been checked. Nothing is loaded yet.

    recipe: with what is usual where nothing is asked for. How the model's authors draw is not known before it is
    loaded. paths: one per picture. parts: numbers of the prompts that one decoding takes. note: what is to be said of
    the list of prompts, or "".
    """

    order: GenerateArgs
    recipe: Recipe
    prompts: list[str]
    paths: list[Path]
    parts: list[range]
    note: str = ""


def plan(order: GenerateArgs) -> Plan:
    """Check everything that can be checked before a model is loaded. Raises AdtError."""
    files, subject, numbers = order.files, order.subject, order.numbers
    if files.output.suffix.lower() != ".png":
        raise AdtError(f"`output`: '{files.output}' must end in .png.")
    recipe = complete(order.given, order.device, strict=subject.from_png is None)
    if files.compare and not recipe.drafting.policy.needs_drafter:
        raise AdtError("`compare` needs a `method` other than autoregressive; choose one.")
    continuation.check_args(order.continuation)
    distributed.check_args(order.engines, subject.prompts)
    listed = read_all(subject.prompts) if subject.prompts else []
    prompts = [prompt.text for prompt in non_blank(listed)] if listed else [subject.prompt or ""]
    if not all(prompt.strip() for prompt in prompts):
        raise AdtError("`prompt` is empty; describe the image in a few words.")
    if order.engines.ray_address is None:
        choose_device(order.device)
    count, output = len(prompts) * numbers.batch_size, files.output
    if count > MOST_PICTURES:
        raise AdtError(
            f"`batch_size`: this makes {count} images, but at most {MOST_PICTURES} are allowed; use a smaller number."
        )
    numbered = [output.with_name(f"{output.stem}-{number:04}.png") for number in range(1, count + 1)]
    paths = numbered if count > 1 else [output]
    check_outputs(
        [*(("output", path) for path in dict.fromkeys([output, *paths])), *named(files, "tokens", "trace", "report")],
        [
            *named(subject, "prompts", "from_png"),
            *named(order.continuation, "source", "continue_from"),
            *models_of(recipe.loading.model, recipe.drafter or JACOBI),
        ],
    )
    parts = stretches(len(prompts), numbers.together, numbers.batch_size, order.engines.workers)
    return Plan(order, recipe, prompts, paths, parts, blank_note(listed))


class Result(NamedTuple):
    """A part's images by one method: codes [B, rows, columns] and their trace."""

    codes: Tensor
    trace: Trace


class Step(NamedTuple):
    """What came of a round: the tokens drawn, and PNGs of the images that it finished, by their numbers.

    results: after the last round of a part, by the part's number: a result for each method.
    """

    tokens: int = 0
    pngs: dict[int, bytes] = {}
    results: dict[int, list[Result]] = {}


class Engine:
    """The models of a plan in memory; draws its parts. Raises AdtError for files and prompts that don't fit.

    facts: tokens that are drawn, of all images, by all methods; and what is to be said of the prompts.
    """

    def __init__(self, plan: Plan):
        self.plan, order = plan, plan.order
        target = open_target(plan.recipe.loading, choose_device(order.device))
        recipe = complete(order.given, order.device, target.published)
        sources = continuation.source_codes(order.continuation, target) or recipe.sources
        target = continuation.with_sources(target, sources)
        kept = continuation.prefix_codes(order.continuation, target) or recipe.kept
        recipe = replace(recipe, kept=kept, sources=sources)
        drafter = load_drafter(recipe.drafter or JACOBI, target) if recipe.drafting.policy.needs_drafter else None
        job = Job(target, recipe, drafter)
        notes = [*job.check(plan.prompts), domain_warning(target, plan.prompts), target.codec.note]
        plain = replace(job, recipe=replace(recipe, drafting=Drafting(PLAIN)))
        self.jobs = [job, plain] if order.files.compare else [job]
        drawn = target.length - target.tokens(torch.tensor([recipe.kept], dtype=torch.long)).shape[1]
        self.facts = len(self.jobs) * len(plan.paths) * drawn, notes
        if order.files.compare:
            for job in self.jobs:
                warm_up(self._decoding(job, plan.parts[0]))

    def _decoding(self, job: Job, numbers: range) -> Decoding:
        first, size = job.recipe.image_index, self.plan.order.numbers.batch_size
        indices = list(range(first, first + size))
        prompts = [self.plan.prompts[number] for number in numbers for _ in indices]
        return job.decoding(prompts, indices * len(numbers), self.plan.order.numbers.together)

    def __call__(self, part: int) -> Iterator[Step]:
        """Draw the part of this number, counted from 0. The first method's images become pictures."""
        numbers, results = self.plan.parts[part], []
        first = numbers[0] * self.plan.order.numbers.batch_size
        turn = 1 if part % 2 else -1
        for job in self.jobs[::turn]:  # in turns, so that none has the quieter moments
            decoding = self._decoding(job, numbers)
            done = decoding.done_tokens
            with drawing(decoding) as running:
                for finished in running:
                    pictured = finished if job is self.jobs[0] else []
                    pngs = {first + image: self._png(decoding, image, first + image) for image in pictured}
                    yield Step(decoding.done_tokens - done, pngs)
                    done = decoding.done_tokens
            results.append(Result(decoding.grid_codes(), decoding.trace))
        yield Step(results={part: results[::turn]})

    def _png(self, decoding: Decoding, image: int, number: int) -> bytes:
        """An image of a decoding as a picture. number: of the picture among all, counted from 0."""
        job = self.jobs[0]
        prompt, index = divmod(number, self.plan.order.numbers.batch_size)
        made_with = conditions(decoding, image)
        settings = job.settings(self.plan.prompts[prompt], job.recipe.image_index + index, made_with)
        return to_png(job.pixels(decoding.grid_codes()[[image]])[0], settings)


def run(plan: Plan) -> str:
    """Load, decode, write. Returns what to tell the user.

    Pictures are written as soon as they are decoded; the JSON files at the end.
    """
    began, parts = perf_counter(), range(len(plan.parts))
    results: dict[int, list[Result]] = {}
    with (
        distributed.start_workers(partial(Engine, plan), plan.order.engines, plan.order.device, len(parts)) as (
            ((tokens, notes), *_),
            mapped,
        ),
        tqdm(total=tokens, unit=" tokens", mininterval=0.5, leave=False) as bar,
    ):
        for step in mapped(parts):
            for number, png in step.pngs.items():
                write(plan.paths[number], png)
            results |= step.results
            bar.update(step.tokens)
    by_method = list(zip(*(results[part] for part in parts)))
    report, lines = summarise(plan, by_method, perf_counter() - began)
    write_files(plan, by_method[0], report)
    return "\n".join(filter(None, [*lines, plan.note, *notes]))


def summarise(plan: Plan, by_method: Sequence[Sequence[Result]], elapsed: float) -> tuple[dict, list[str]]:
    """The run's figures, and the lines that sum it up.

    by_method: the results of all parts, by the method asked for and, in a comparison, by plain decoding. elapsed:
    seconds of the whole run, loading and writing included.
    """
    paths, engines = plan.paths, plan.order.engines
    report = {**figures(by_method[0]), "model": plan.recipe.loading.model, "drafter": plan.recipe.drafter}
    name = f"{paths[0]}" + (f" to {paths[-1].name}" if len(paths) > 1 else "")
    lines = [
        f"{name}: {report['tokens']} tokens in {report['seconds']:.2f} s, {report['tokens_per_second']:.1f} tokens/s, "
        f"tau {report['tau']:.2f}, mean depth {report['mean_depth']:.2f}"
        + (f", {report['substitution_rate']:.1%} of the tokens substituted" if plan.recipe.lantern else "")
    ]
    if plan.order.files.compare:
        plain, images = figures(by_method[1]), len(paths)
        drafted, undrafted = (torch.cat([result.codes for result in results]) for results in by_method)
        same = int((drafted == undrafted).flatten(1).all(1).sum())
        speedup, identical = plain["seconds"] / report["seconds"], same == images
        report |= {"plain": plain, "speedup": speedup, "identical": identical, "identical_images": same}
        lines.append(
            f"Speed-up over plain decoding ({plain['seconds']:.2f} s), measured in this run: {speedup:.2f}x; "
            + ("tokens identical" if identical else f"tokens identical in {same} of {images} images")
        )
    if engines.wanted:
        report |= {"workers": engines.workers, "elapsed_seconds": elapsed}
        lines.append(
            f"Times are sums over all engines; with {engines.workers} workers the run took {elapsed:.1f} s, "
            "loading included."
        )
    return report, lines


def figures(results: Sequence[Result]) -> dict:
    """The joint figures of all parts, by the names of ``Trace.report``, and how many ``images`` they have."""
    traces = [result.trace for result in results]
    images, seconds = sum(trace.images for trace in traces), sum(trace.prefill_seconds for trace in traces)
    rounds = [round for trace in traces for round in trace.rounds]
    return {**replace(traces[0], images=images, prefill={0: seconds}, rounds=rounds).report(), "images": images}


def write_files(plan: Plan, results: Sequence[Result], report: dict) -> None:
    """Write the JSON files that were asked for."""
    files, size = plan.order.files, plan.order.numbers.batch_size
    if files.tokens:
        grids = [grid for result in results for grid in result.codes.tolist()]
        content = {"tokens": grids, "prompts": plan.prompts, "batch_size": size}
        write_json(files.tokens, {**content, "seed": plan.recipe.sampling.seed})
    if files.trace:
        groups = [(r.trace, first) for r in results for first in range(0, len(r.codes), size)]
        traces = [trace.part(list(range(first, first + size))) for trace, first in groups]
        decodings = [{"prompt": prompt, **trace.to_json()} for prompt, trace in zip(plan.prompts, traces)]
        write_json(files.trace, {"report": report, "decodings": decodings})
    if files.report:
        write_json(files.report, report)
