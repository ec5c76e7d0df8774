"""From checked options to pictures on disk: what ``generate`` does behind its command line."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import torch
from torch import Tensor
from tqdm import tqdm

from ..engine.decoding import Decoding
from ..errors import AdtError
from ..files import write, write_json
from ..policies import PLAIN, CostProfile, Drafting
from ..rules.settings import Lantern
from ..rules.trace import Trace
from . import continuation, distributed
from .checkpoints import load_drafter
from .images import check_outputs, to_png
from .jobs import Job, replaced, rounds, stretches, warm_up
from .known import remark
from .options import (
    choose_device,
    default_drafter,
    drafting_of,
    lantern_of,
    models_of,
    named,
    open_target,
    sampling_of,
    suffix_of,
)
from .prompts import blank_note, present, read_all

MOST_AT_ONCE, MOST_PICTURES = 4096, 10**6
"""Bounds of what one command draws at once and in all; each picture's path is in memory."""


@dataclass(frozen=True)
class Plan:
    """Options of ``generate`` that have been checked. Nothing is loaded yet.

    paths: one per picture. parts: numbers of the prompts that one decoding takes. profile: what rounds cost, as the PNG
    says that is drawn again. note: what is to be said of the list of prompts, or "".
    """

    options: argparse.Namespace
    prompts: list[str]
    drafting: Drafting
    lantern: Lantern | None
    paths: list[Path]
    parts: list[range]
    profile: CostProfile | None = None
    note: str = ""


def plan(options: argparse.Namespace) -> Plan:
    """Check everything that can be checked before a model is loaded. Raises AdtError."""
    for name in ("batch_size", "at_once"):
        if getattr(options, name) is not None and not 1 <= getattr(options, name) <= MOST_AT_ONCE:
            option = f"--{name.replace('_', '-')}"
            raise AdtError(f"{option} is {getattr(options, name)}; it must be from 1 to {MOST_AT_ONCE}.")
    if options.output.suffix.lower() != ".png":
        raise AdtError(f"--output: '{options.output}' must end in .png.")
    options.drafter = options.drafter or default_drafter(options.model)
    drafting = drafting_of(options)
    if options.compare and not drafting.policy.needs_drafter:
        raise AdtError("--compare measures another --method against autoregressive; choose one.")
    continuation.check(options)
    distributed.check(options)
    listed = read_all(options.prompts) if options.prompts else []
    prompts = [prompt.text for prompt in present(listed)] if listed else [options.prompt]
    if not all(prompt.strip() for prompt in prompts):
        raise AdtError("--prompt is empty; describe the picture in a few words.")
    if options.ray_address is None:
        choose_device(options.device)
    count, output = len(prompts) * options.batch_size, options.output
    if count > MOST_PICTURES:
        raise AdtError(f"--batch-size: {count} pictures would be made; {MOST_PICTURES} at most are, so take fewer.")
    numbered = [output.with_name(f"{output.stem}-{number:04}.png") for number in range(1, count + 1)]
    options.at_once = options.at_once or options.batch_size
    parts = stretches(len(prompts), options.at_once, options.batch_size, options.workers)
    paths = numbered if count > 1 else [output]
    check_outputs(
        [
            *(("--output", path) for path in dict.fromkeys([output, *paths])),
            *named(options, "tokens", "trace", "report"),
        ],
        [*named(options, "prompts", "from_png", "continue_from"), *models_of(options.model, options.drafter)],
    )
    sampling_of(options)
    profile = CostProfile.from_json(options.profile) if options.profile is not None else None
    return Plan(options, prompts, drafting, lantern_of(options), paths, parts, profile, blank_note(listed))


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
        self.plan, options = plan, plan.options
        target = open_target(options, choose_device(options.device))
        drafter = load_drafter(options.drafter, target) if plan.drafting.policy.needs_drafter else None
        negative, prefix = options.negative or "", tuple(continuation.prefix_codes(options, target))
        how = sampling_of(options, target.published), plan.drafting, drafter, plan.lantern
        paths, suffix = (options.model, options.drafter), suffix_of(options, target.published)
        job = Job(target, *how, negative, prefix, *paths, plan.profile, suffix)
        notes = [*job.check(plan.prompts), remark(target, plan.prompts)]
        self.jobs = [job, replace(job, drafting=Drafting(PLAIN))] if options.compare else [job]
        drawn = target.length - target.tokens(torch.tensor([job.prefix], dtype=torch.long)).shape[1]
        self.facts = len(self.jobs) * len(plan.paths) * drawn, notes
        if options.compare:
            for job in self.jobs:
                warm_up(self._decoding(job, plan.parts[0]))

    def _decoding(self, job: Job, numbers: range) -> Decoding:
        options = self.plan.options
        indices = list(range(options.image_index, options.image_index + options.batch_size))
        prompts = [self.plan.prompts[number] for number in numbers for _ in indices]
        return job.decoding(prompts, indices * len(numbers), options.at_once)

    def __call__(self, part: int) -> Iterator[Step]:
        """Draw the part of this number, counted from 0. The first method's images become pictures."""
        numbers, results, turn = self.plan.parts[part], [], 1 if part % 2 else -1
        for job in self.jobs[::turn]:  # in turns, so that none has the quieter moments
            decoding = self._decoding(job, numbers)
            first, done = numbers[0] * self.plan.options.batch_size, decoding.done_tokens
            for finished in rounds(decoding):
                shown = finished if job is self.jobs[0] else []
                grids, known = decoding.grid_codes(), decoding.conditions()
                made = {image: known | replaced(decoding, image) for image in shown}
                pngs = {first + image: self._png(first + image, grids[[image]], made[image]) for image in shown}
                yield Step(decoding.done_tokens - done, pngs)
                done = decoding.done_tokens
            results.append(Result(decoding.grid_codes(), decoding.trace))
        yield Step(results={part: results[::turn]})

    def _png(self, number: int, codes: Tensor, conditions: dict) -> bytes:
        """The picture of this number, counted from 0. codes: [1, rows, columns]. conditions: of its decoding."""
        job, options = self.jobs[0], self.plan.options
        prompt, image = divmod(number, options.batch_size)
        settings = job.settings(self.plan.prompts[prompt], options.image_index + image, conditions)
        return to_png(job.pixels(codes)[0], settings)


def run(plan: Plan) -> str:
    """Load, decode, write. Returns what to tell the user.

    Pictures are written as soon as they are decoded; the JSON files at the end.
    """
    began, parts = perf_counter(), range(len(plan.parts))
    results: dict[int, list[Result]] = {}
    with (
        distributed.engines(partial(Engine, plan), plan.options, len(parts)) as (((tokens, notes), *_), mapped),
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
    options, paths = plan.options, plan.paths
    report = {**figures(by_method[0]), "model": options.model, "drafter": options.drafter}
    name = f"{paths[0]}" + (f" to {paths[-1].name}" if len(paths) > 1 else "")
    lines = [
        f"{name}: {report['tokens']} tokens in {report['seconds']:.2f} s, {report['tokens_per_second']:.1f} tokens/s, "
        f"tau {report['tau']:.2f}, mean depth {report['mean_depth']:.2f}"
        + (f", {report['substitution_rate']:.1%} of the tokens substituted" if plan.lantern else "")
    ]
    if options.compare:
        plain, images = figures(by_method[1]), len(paths)
        same = sum(int((a == b).all()) for one, two in zip(*by_method) for a, b in zip(one.codes, two.codes))
        speedup, identical = plain["seconds"] / report["seconds"], same == images
        report |= {"plain": plain, "speedup": speedup, "identical": identical, "identical_images": same}
        lines.append(
            f"Speed-up over plain decoding ({plain['seconds']:.2f} s), measured in this run: {speedup:.2f}x; "
            + ("tokens identical" if identical else f"tokens identical in {same} of {images} images")
        )
    if distributed.wanted(options):
        report |= {"workers": options.workers, "elapsed_seconds": elapsed}
        lines.append(
            f"Seconds of all engines added up; with --workers {options.workers} the run took {elapsed:.1f} s, "
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
    options = plan.options
    if options.tokens:
        grids = [grid for result in results for grid in result.codes.tolist()]
        content = {"tokens": grids, "prompts": plan.prompts, "batch_size": options.batch_size}
        write_json(options.tokens, {**content, "seed": options.seed})
    if options.trace:
        groups = [(r.trace, first) for r in results for first in range(0, len(r.codes), options.batch_size)]
        traces = [trace.part(list(range(first, first + options.batch_size))) for trace, first in groups]
        decodings = [{"prompt": prompt, **trace.to_json()} for prompt, trace in zip(plan.prompts, traces)]
        write_json(options.trace, {"report": report, "decodings": decodings})
    if options.report:
        write_json(options.report, report)
