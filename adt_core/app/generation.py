"""From checked options to pictures on disk: what ``generate`` does, apart from its command line."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from itertools import chain, islice
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from ..drafters.jacobi import JacobiDrafter
from ..drafters.load import JACOBI, has_window, load_drafter
from ..engine.decoding import Check, Decoding
from ..errors import AdtError
from ..models.checkpoint import BUNDLED
from ..models.load import load_target
from ..models.target import Target
from ..policies.shape import Drafting
from ..rules.sampling import NOISE_VERSION, Sampling
from ..rules.trace import Trace
from ..rules.verify import Lantern
from ..version import VERSION
from . import distributed
from .jobs import STRETCH
from .continuation import KEEP, kept_tokens, open_picture, to_pixels
from .images import check_writable, to_png, write, write_json
from .prompts import read_prompts

WARM_UP = 3
"""Rounds of each method that are decoded and thrown away before a comparison: first calls are slow."""


@dataclass(frozen=True)
class Plan:
    """Options of ``generate`` that have been found to make sense, nothing loaded yet."""

    options: argparse.Namespace
    prompts: list[str]
    sampling: Sampling
    drafting: Drafting
    lantern: Lantern | None

    @property
    def device(self) -> torch.device:
        """Of the machine that asks: an engine elsewhere may have another one."""
        return choose_device(self.options.device)

    @property
    def methods(self) -> list[Drafting]:
        """The method asked for, and for a comparison plain decoding."""
        return (
            [self.drafting, replace(self.drafting, method="autoregressive")]
            if self.options.compare
            else [self.drafting]
        )

    @property
    def at_once(self) -> int:
        """Pictures in the making at the same time; those of one prompt if nothing else is asked for."""
        return self.options.at_once or self.options.batch_size

    @cached_property
    def parts(self) -> list[range]:
        """Numbers of the prompts that are drawn in one go: as pictures are finished, others take their places. No engine is left without a part."""
        company, count = math.ceil(self.at_once / self.options.batch_size), len(self.prompts)
        size = (
            company if company == 1 else max(company, min(STRETCH * company, math.ceil(count / self.options.workers)))
        )
        return [range(count)[first : first + size] for first in range(0, count, size)]

    @property
    def paths(self) -> list[Path]:
        """One per picture."""
        output, count = self.options.output, len(self.prompts) * self.options.batch_size
        return (
            [output]
            if count == 1
            else [output.with_name(f"{output.stem}-{number:04}.png") for number in range(1, count + 1)]
        )


def plan(options: argparse.Namespace, sampling: dict, drafting: dict, lantern: dict) -> Plan:
    """Check everything that can be checked before a model is loaded. Raises AdtError."""
    for name in ("batch_size", "at_once"):
        if getattr(options, name) is not None and getattr(options, name) < 1:
            raise AdtError(f"--{name.replace('_', '-')} is {getattr(options, name)}; it must be 1 or more.")
    if options.output.suffix.lower() != ".png":
        raise AdtError(f"--output: '{options.output}' must end in .png.")
    options.drafter = options.drafter or default_drafter(options.model)
    given = {name: value for name, value in drafting.items() if value is not None}
    drafting = replace(JacobiDrafter.default if has_window(options.drafter) else Drafting(), **given)
    if has_window(options.drafter):
        JacobiDrafter().check(drafting)
    if options.compare and drafting.method == "autoregressive":
        raise AdtError("--compare measures another --method against autoregressive; choose one.")
    for name in ("output", "tokens", "trace", "report"):
        if getattr(options, name):
            check_writable(getattr(options, name), f"--{name}")
    check_continuation(options)
    distributed.check(options)
    prompts = read_prompts(options.prompts) if options.prompts else [options.prompt]
    if not all(prompt.strip() for prompt in prompts):
        raise AdtError("--prompt is empty; describe the picture in a few words.")
    if options.ray_address is None:
        choose_device(options.device)
    return Plan(options, prompts, Sampling(**sampling), drafting, relaxation(**lantern))


def check_continuation(options: argparse.Namespace) -> None:
    """Raises AdtError for options that say nothing or can't be followed, and for a picture that can't be read."""
    if options.continue_from is None:
        if options.keep is not None or options.keep_left is not None:
            raise AdtError("--keep and --keep-left say how much of a picture is kept; name it with --continue-from.")
        return
    kept_tokens((1, 1), options.keep or 0.0, options.keep_left or 0.0)
    open_picture(options.continue_from, "--continue-from")


def kept_codes(options: argparse.Namespace, target: Target) -> list[int]:
    """The first tokens of every image: of the picture to continue, else those that a PNG to make again started from."""
    if options.continue_from is None:
        return options.kept or []
    rows, columns = target.grid
    pixels = to_pixels(
        open_picture(options.continue_from, "--continue-from"), rows * target.downsample, columns * target.downsample
    )
    keep = KEEP if options.keep is None else options.keep
    count = kept_tokens(target.grid, keep, options.keep_left or 0.0)
    if count == rows * columns:
        raise AdtError(f"--keep {keep:g} keeps all {rows} rows of tokens and leaves nothing to draw; choose less.")
    with torch.inference_mode():
        return target.codec.encode(pixels).flatten()[:count].tolist()


def relaxation(
    lantern_k: int, lantern_delta: float | None, lantern_lambda: float | None, max_substitution: float
) -> Lantern | None:
    """LANTERN as the options ask for it; None for exact acceptance."""
    if lantern_delta is not None and lantern_lambda is not None:
        raise AdtError("--lantern-delta and --lantern-lambda are two rules; give one of them.")
    if lantern_lambda is not None:
        return Lantern(lantern_k, factor=lantern_lambda, max_substitution=max_substitution)
    return None if lantern_delta is None else Lantern(lantern_k, lantern_delta, max_substitution=max_substitution)


def default_drafter(model: str) -> str:
    """The drafter to take when none is named: the bundled model has its own, and every model can do without a network."""
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


class Engine:
    """Target and drafter of a plan in memory; draws its parts. Raises AdtError for files and prompts that don't fit."""

    def __init__(self, plan: Plan):
        options = plan.options
        self.plan, self.target = plan, open_target(options, plan.device)
        self._drafter = load_drafter(options.drafter, self.target) if plan.drafting.method != "autoregressive" else None
        self._rows = [
            self.target.encode_prompt(prompt) for prompt in plan.prompts
        ]  # now: one that is too long should not be found after an hour
        self._negative = self.target.encode_prompt(options.negative) if options.negative else None
        self._indices = list(range(options.image_index, options.image_index + options.batch_size))
        self._kept = kept_codes(options, self.target)
        self._prefix = torch.tensor([self._kept], dtype=torch.long)
        if options.compare:
            for drafting in plan.methods:
                list(islice(self._start(plan.parts[0], drafting), WARM_UP))

    @property
    def tokens(self) -> int:
        """How many are drawn for a prompt: of all its images, by all methods."""
        return (
            len(self.plan.methods)
            * len(self._indices)
            * (self.target.length - self.target.tokens(self._prefix).shape[1])
        )

    def _start(self, numbers: range, drafting: Drafting) -> Decoding:
        plan, rows = self.plan, [self._rows[number] for number in numbers for _ in self._indices]
        return Decoding(
            self.target,
            rows,
            negatives=[self._negative] * len(rows) if self._negative else None,
            sampling=plan.sampling,
            drafting=drafting,
            drafter=self._drafter,
            lantern=plan.lantern,
            image_indices=self._indices * len(numbers),
            prefix=self._prefix.expand(len(rows), -1),
            at_once=plan.at_once,
        )

    def __call__(self, part: int) -> list[tuple[int, Drawn]]:
        """Draw the part of this number, counted from 0."""
        return list(self.draw(part))

    def draw(self, part: int, bar: tqdm | None = None) -> Iterator[tuple[int, Drawn]]:
        """Every prompt's number and what came of it, as soon as its last picture is finished. bar: for progress."""
        numbers, methods = self.plan.parts[part], list(enumerate(self.plan.methods))
        order, decodings, missing = methods if part % 2 else methods[::-1], {}, dict(enumerate(numbers))
        for i, drafting in order:
            decodings[i] = self._start(numbers, drafting)
            for _ in decode(decodings[i], bar):
                if len(decodings) == len(methods):
                    finished = [place for place in missing if (decodings[i].codes[self._images(place), -1] >= 0).all()]
                    yield from (
                        (missing.pop(place), self._drawn(numbers, place, [decodings[k] for k, _ in methods]))
                        for place in finished
                    )

    def _images(self, place: int) -> list[int]:
        """Numbers of the images of a prompt in the decoding of a part."""
        return list(range(place * len(self._indices), (place + 1) * len(self._indices)))

    def _drawn(self, numbers: range, place: int, decodings: list[Decoding]) -> Drawn:
        images = self._images(place)
        results = [
            Result(decoding.grid_codes()[images], decoding.trace.part(images), numbers[0]) for decoding in decodings
        ]
        pixels = self.target.codec.decode(results[0].codes.to(self.plan.device))
        said = [settings(self.plan, self.plan.prompts[numbers[place]], index, self._kept) for index in self._indices]
        return Drawn(results, [to_png(picture, its) for picture, its in zip(pixels, said)])


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
    return finish(plan, [results[number] for number in sorted(results)], perf_counter() - began)


def draw(plan: Plan) -> Iterator[tuple[int, Drawn]]:
    """What came of every prompt, by its number: one after another, or from engines on Ray in the order in which they finish."""
    count, parts = len(plan.prompts), range(len(plan.parts))
    if distributed.wanted(plan.options):
        with (
            distributed.engines(partial(Engine, plan), plan.options, len(parts)) as engines,
            tqdm(total=count, unit=" prompts", leave=False) as bar,
        ):
            for _, drawn in engines.map(parts):
                yield from drawn
                bar.update(len(drawn))
        return
    engine = Engine(plan)
    with tqdm(total=count * engine.tokens, unit=" tokens", mininterval=0.5, leave=False) as bar:
        for part in parts:
            yield from engine.draw(part, bar)


class Result(NamedTuple):
    """What is kept of a prompt's images: codes [B, rows, columns], their part of the trace, and the first prompt of those that had its rounds in common."""

    codes: Tensor
    trace: Trace
    first: int = 0


class Drawn(NamedTuple):
    """What came of a prompt: a result for each method, and the PNGs of the first one's images."""

    results: list[Result]
    pngs: list[bytes]


def decode(decoding: Decoding, bar: tqdm | None = None) -> Iterator[None]:
    """Decode to the end, with progress on ``bar``. Yields after every round, and once more: a prefill alone may have finished the image."""
    done = decoding.done_tokens
    for _ in chain(decoding, [None]):
        if bar is not None:
            bar.update(decoding.done_tokens - done)
        done = decoding.done_tokens
        yield


def settings(plan: Plan, prompt: str, index: int, kept: list[int]) -> dict:
    """Everything that makes an image what it is, by the names of the options: what its PNG carries."""
    options = plan.options
    return {
        "prompt": prompt,
        **{name: getattr(options, name) for name in ("negative", "model", "drafter", "dtype", "weights", "size")},
        "device": plan.device.type,
        **asdict(plan.sampling),
        "image_index": index,
        "kept": kept,
        **asdict(plan.drafting),
        **{
            name: getattr(options, name)
            for name in ("lantern_k", "lantern_delta", "lantern_lambda", "max_substitution")
        },
        "noise_version": NOISE_VERSION,
        "versions": {"adt-tree": VERSION, "torch": torch.__version__, "numpy": np.__version__},
    }


def finish(plan: Plan, results: list[list[Result]], elapsed: float) -> str:
    """Write the JSON files, and sum the run up in a line; in another one each if methods were compared, and if engines shared the work.

    elapsed: seconds of the whole run, loading and writing included.
    """
    options, chosen = plan.options, [pair[0] for pair in results]
    report = {**together(chosen), "model": options.model, "drafter": options.drafter}
    images = report["images"]
    name = f"{plan.paths[0]}" + (f" to {plan.paths[-1].name}" if len(plan.paths) > 1 else "")
    lines = [
        f"{name}: {report['tokens']} tokens in {report['seconds']:.2f} s, {report['tokens_per_second']:.1f} tokens/s, "
        f"tau {report['tau']:.2f}, mean depth {report['mean_depth']:.2f}"
        + (f", {report['substitution_rate']:.1%} of the tokens substituted" if plan.lantern else "")
    ]
    if options.compare:
        plain = together([pair[1] for pair in results])
        same = sum(int((a == b).all()) for one, other in results for a, b in zip(one.codes, other.codes))
        speedup, identical = plain["seconds"] / report["seconds"], same == images
        report |= {"plain": plain, "speedup": speedup, "identical": identical, "identical_images": same}
        lines.append(
            f"Speed-up over plain decoding ({plain['seconds']:.2f} s), measured in this run: {speedup:.2f}x; "
            + ("tokens identical" if identical else f"tokens identical in {same} of {images} images")
        )
    if distributed.wanted(options):
        report |= {"workers": options.workers, "elapsed_seconds": elapsed}
        lines.append(
            f"Seconds of all engines added up; with --workers {options.workers} the run took {elapsed:.1f} s, loading included."
        )
    if options.tokens:
        write_json(
            options.tokens,
            {
                "tokens": [grid for result in chosen for grid in result.codes.tolist()],
                "prompts": plan.prompts,
                "batch_size": options.batch_size,
                "seed": plan.sampling.seed,
            },
        )
    if options.trace:
        decodings = [{"prompt": prompt, **result.trace.to_json()} for prompt, result in zip(plan.prompts, chosen)]
        write_json(options.trace, {"report": report, "decodings": decodings})
    if options.report:
        write_json(options.report, report)
    return "\n".join(lines)


def together(results: list[Result]) -> dict:
    """The joint figures of several prompts, by the names of ``Trace.report``, and how many ``images`` they have. Rounds that prompts share count once."""
    traces = [result.trace for result in results]
    rounds = {(result.first, round.index): round for result in results for round in result.trace.rounds}
    images = sum(trace.images for trace in traces)
    whole = replace(
        traces[0],
        images=images,
        prefill={0: sum(trace.prefill_seconds for trace in traces)},
        rounds=[r for t in traces for r in t.rounds],
    )
    return {
        **whole.report(),
        "images": images,
        "target_forwards": len(rounds),
        "drafter_forwards": sum(round.drafter_forwards for round in rounds.values()),
    }
