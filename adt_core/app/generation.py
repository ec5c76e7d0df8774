"""From checked options to pictures on disk: what ``generate`` does behind its command line."""

from __future__ import annotations

import argparse
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import torch
from torch import Tensor
from tqdm import tqdm

from ..drafters import JACOBI, drafter_defaults, is_network, load_drafter
from ..engine.decoding import Decoding
from ..errors import AdtError, Check
from ..models.checkpoint import BUNDLED
from ..models.load import load_target
from ..models.target import Target
from ..policies import PLAIN, Drafting, check_fit
from ..policies import options as drafting_options
from ..rules.sampling import Sampling
from ..rules.trace import Trace
from ..rules.verify import Lantern
from . import continuation, distributed
from .images import check_writable, to_png, write, write_json
from .jobs import Job, rounds, stretches, warm_up
from .prompts import read_prompts


@dataclass(frozen=True)
class Plan:
    """Options of ``generate`` that have been checked. Nothing is loaded yet."""

    options: argparse.Namespace
    prompts: list[str]
    sampling: Sampling
    drafting: Drafting
    lantern: Lantern | None

    @property
    def at_once(self) -> int:
        """Images at work at the same time: those of one prompt unless told otherwise."""
        return self.options.at_once or self.options.batch_size

    @cached_property
    def parts(self) -> list[range]:
        """Numbers of the prompts that one decoding takes."""
        return stretches(len(self.prompts), self.at_once, self.options.batch_size, self.options.workers)

    @property
    def paths(self) -> list[Path]:
        """One per picture."""
        output, count = self.options.output, len(self.prompts) * self.options.batch_size
        numbered = [output.with_name(f"{output.stem}-{number:04}.png") for number in range(1, count + 1)]
        return numbered if count > 1 else [output]


def plan(options: argparse.Namespace) -> Plan:
    """Check everything that can be checked before a model is loaded. Raises AdtError."""
    for name in ("batch_size", "at_once"):
        if getattr(options, name) is not None and getattr(options, name) < 1:
            raise AdtError(f"--{name.replace('_', '-')} is {getattr(options, name)}; it must be 1 or more.")
    if options.output.suffix.lower() != ".png":
        raise AdtError(f"--output: '{options.output}' must end in .png.")
    options.drafter = options.drafter or default_drafter(options.model)
    drafting = drafting_of(options)
    if options.compare and not drafting.policy.needs_drafter:
        raise AdtError("--compare measures another --method against autoregressive; choose one.")
    for name in ("output", "tokens", "trace", "report"):
        if getattr(options, name):
            check_writable(getattr(options, name), f"--{name}")
    continuation.check(options)
    distributed.check(options)
    prompts = read_prompts(options.prompts) if options.prompts else [options.prompt]
    if not all(prompt.strip() for prompt in prompts):
        raise AdtError("--prompt is empty; describe the picture in a few words.")
    if options.ray_address is None:
        choose_device(options.device)
    return Plan(options, prompts, sampling_of(options), drafting, lantern_of(options))


def sampling_of(options: argparse.Namespace) -> Sampling:
    """How tokens are drawn, by the options of those names."""
    return Sampling(**{field.name: getattr(options, field.name) for field in fields(Sampling)})


def drafting_of(options: argparse.Namespace) -> Drafting:
    """How drafts are made: the given options, else what suits the drafter. AdtError if these don't go together."""
    named = {name: getattr(options, name) for name in ("method", *drafting_options())}
    given = {name: value for name, value in named.items() if value is not None}
    drafting = Drafting.of({**drafter_defaults(options.drafter), **given})
    check_fit(drafting.method, is_network(options.drafter))
    return drafting


def lantern_of(options: argparse.Namespace) -> Lantern | None:
    """Relaxed acceptance as the options ask for it; None for exact acceptance."""
    delta, factor, share = options.lantern_delta, options.lantern_lambda, options.max_substitution
    if delta is not None and factor is not None:
        raise AdtError("--lantern-delta and --lantern-lambda are two rules; give one of them.")
    if factor is not None:
        return Lantern(options.lantern_k, factor=factor, max_substitution=share)
    return None if delta is None else Lantern(options.lantern_k, delta, max_substitution=share)


def default_drafter(model: str) -> str:
    """The drafter where none is named: the bundled model has one; for others, the one that needs no network."""
    return BUNDLED if model == BUNDLED else JACOBI


def open_target(options: argparse.Namespace, device: torch.device, check: Check | None = None) -> Target:
    """The target that ``--model``, ``--dtype``, ``--weights`` and ``--size`` ask for."""
    target = load_target(options.model, device, getattr(torch, options.dtype), check, options.weights)
    return target.sized(*options.size) if options.size else target


def choose_device(name: str) -> torch.device:
    """``auto``, ``cpu`` or ``cuda`` as a device of this machine."""
    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        raise AdtError("--device cuda: this PyTorch finds no CUDA device; use --device cpu.")
    return torch.device("cuda" if available and name != "cpu" else "cpu")


class Result(NamedTuple):
    """A prompt's images by one method: codes [B, rows, columns] and their part of the trace.

    first: number of the first prompt of the decoding, whose rounds its prompts have in common.
    """

    codes: Tensor
    trace: Trace
    first: int


class Drawn(NamedTuple):
    """What came of a prompt: a result for each method, and the PNGs of the first one's images."""

    results: list[Result]
    pngs: list[bytes]


class Engine:
    """The models of a plan in memory; draws its parts. Raises AdtError for files and prompts that don't fit."""

    def __init__(self, plan: Plan):
        self.plan, options = plan, plan.options
        target = open_target(options, choose_device(options.device))
        job = Job(
            target,
            plan.sampling,
            plan.drafting,
            load_drafter(options.drafter, target) if plan.drafting.policy.needs_drafter else None,
            plan.lantern,
            options.negative or "",
            tuple(continuation.kept_codes(options, target)),
            options.model,
            options.drafter,
        )
        job.check(plan.prompts)
        self.jobs = [job, replace(job, drafting=Drafting(PLAIN))] if options.compare else [job]
        self._indices = list(range(options.image_index, options.image_index + options.batch_size))
        if options.compare:
            for job in self.jobs:
                warm_up(self._decoding(job, plan.parts[0]))

    def _decoding(self, job: Job, numbers: range) -> Decoding:
        prompts = [self.plan.prompts[number] for number in numbers for _ in self._indices]
        return job.decoding(prompts, self._indices * len(numbers), self.plan.at_once)

    @property
    def tokens(self) -> int:
        """Tokens that are drawn: of all images, by all methods."""
        target, kept = self.jobs[0].target, torch.tensor([self.jobs[0].kept], dtype=torch.long)
        drawn = target.length - target.tokens(kept).shape[1]
        return len(self.jobs) * len(self.plan.paths) * drawn

    def __call__(self, part: int) -> list[tuple[int, Drawn]]:
        """Draw the part of this number, counted from 0."""
        return list(self.draw(part))

    def draw(self, part: int, bar: tqdm | None = None) -> Generator[tuple[int, Drawn], None, None]:
        """Every prompt's number and what came of it, as soon as its last image is finished. bar: counts tokens."""
        numbers, decodings = self.plan.parts[part], {}
        order = list(enumerate(self.jobs))
        for i, job in order if part % 2 else order[::-1]:  # in turns, so that none has the quieter moments
            decodings[i] = self._decoding(job, numbers)
            done = decodings[i].done_tokens
            for finished in rounds(decodings[i], len(self._indices)):
                if bar is not None:
                    bar.update(decodings[i].done_tokens - done)
                    done = decodings[i].done_tokens
                if len(decodings) == len(self.jobs):
                    for place in finished:
                        yield numbers[place], self._drawn(numbers, place, [decodings[k] for k in sorted(decodings)])

    def _drawn(self, numbers: range, place: int, decodings: list[Decoding]) -> Drawn:
        """What came of the prompt that is the ``place``-th of a part."""
        first = place * len(self._indices)
        images = list(range(first, first + len(self._indices)))
        results = [Result(each.grid_codes()[images], each.trace.part(images), numbers[0]) for each in decodings]
        job, prompt = self.jobs[0], self.plan.prompts[numbers[place]]
        pixels = job.pixels(results[0].codes)
        return Drawn(results, [to_png(one, job.settings(prompt, index)) for one, index in zip(pixels, self._indices)])


def run(plan: Plan) -> str:
    """Load, decode, write. Returns what to tell the user.

    Pictures are written as soon as their prompt is decoded; the JSON files at the end.
    """
    results: dict[int, list[Result]] = {}  # per prompt, one for each method
    began, paths, count = perf_counter(), plan.paths, plan.options.batch_size
    with closing(draw(plan)) as drawings:
        for number, drawn in drawings:
            results[number] = drawn.results
            for path, png in zip(paths[number * count :], drawn.pngs):
                write(path, png)
    by_method = [list(one) for one in zip(*(results[number] for number in sorted(results)))]
    report, lines = summarise(plan, by_method, perf_counter() - began)
    write_files(plan, by_method[0], report)
    return "\n".join(lines)


def draw(plan: Plan) -> Generator[tuple[int, Drawn], None, None]:
    """What came of every prompt, by its number: in the order in which engines on Ray finish, if there are any."""
    parts = range(len(plan.parts))
    if distributed.wanted(plan.options):
        with (
            distributed.engines(partial(Engine, plan), plan.options, len(parts)) as engines,
            tqdm(total=len(plan.prompts), unit=" prompts", leave=False) as bar,
        ):
            for _, drawn in engines.map(parts):
                yield from drawn
                bar.update(len(drawn))
        return
    engine = Engine(plan)
    with tqdm(total=engine.tokens, unit=" tokens", mininterval=0.5, leave=False) as bar:
        for part in parts:
            yield from engine.draw(part, bar)


def summarise(plan: Plan, by_method: list[list[Result]], elapsed: float) -> tuple[dict, list[str]]:
    """The run's figures, and the lines that sum it up.

    by_method: the results of all prompts, by the method asked for and, in a comparison, by plain decoding. elapsed:
    seconds of the whole run, loading and writing included.
    """
    options, paths = plan.options, plan.paths
    report = {**together(by_method[0]), "model": options.model, "drafter": options.drafter}
    name = f"{paths[0]}" + (f" to {paths[-1].name}" if len(paths) > 1 else "")
    lines = [
        f"{name}: {report['tokens']} tokens in {report['seconds']:.2f} s, {report['tokens_per_second']:.1f} tokens/s, "
        f"tau {report['tau']:.2f}, mean depth {report['mean_depth']:.2f}"
        + (f", {report['substitution_rate']:.1%} of the tokens substituted" if plan.lantern else "")
    ]
    if options.compare:
        plain, images = together(by_method[1]), report["images"]
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


def write_files(plan: Plan, results: list[Result], report: dict) -> None:
    """Write the JSON files that were asked for."""
    options = plan.options
    if options.tokens:
        grids = [grid for result in results for grid in result.codes.tolist()]
        content = {"tokens": grids, "prompts": plan.prompts, "batch_size": options.batch_size}
        write_json(options.tokens, {**content, "seed": plan.sampling.seed})
    if options.trace:
        decodings = [{"prompt": prompt, **result.trace.to_json()} for prompt, result in zip(plan.prompts, results)]
        write_json(options.trace, {"report": report, "decodings": decodings})
    if options.report:
        write_json(options.report, report)


def together(results: list[Result]) -> dict:
    """The joint figures of several prompts, by the names of ``Trace.report``, and how many ``images`` they have.

    A round that prompts share counts once.
    """
    traces = [result.trace for result in results]
    shared = {(result.first, round.index): round for result in results for round in result.trace.rounds}
    images = sum(trace.images for trace in traces)
    prefill = {0: sum(trace.prefill_seconds for trace in traces)}
    whole = replace(traces[0], images=images, prefill=prefill, rounds=[r for t in traces for r in t.rounds])
    return {
        **whole.report(),
        "images": images,
        "target_forwards": len(shared),
        "drafter_forwards": sum(round.drafter_forwards for round in shared.values()),
    }
