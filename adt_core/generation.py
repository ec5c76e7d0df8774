"""From checked options to pictures on disk: what ``generate`` does, apart from its command line."""

from __future__ import annotations

import argparse
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from .continuation import KEEP, kept_tokens, open_picture, to_pixels
from .decode import Decoding
from .drafters.jacobi import JacobiDrafter
from .drafters.load import JACOBI, has_window, load_drafter
from .errors import AdtError
from .images import check_writable, save_png, write_json
from .lantern import Lantern
from .models.checkpoint import BUNDLED
from .models.load import load_target
from .models.target import Target
from .prompts import read_prompts
from .sampling import NOISE_VERSION, Sampling
from .shape import Drafting
from .trace import Trace
from .version import VERSION

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
    device: torch.device

    @property
    def methods(self) -> list[Drafting]:
        """The method asked for, and for a comparison plain decoding."""
        return [self.drafting, replace(self.drafting, method="autoregressive")] if self.options.compare else [self.drafting]

    @property
    def paths(self) -> list[Path]:
        """One per picture."""
        output, count = self.options.output, len(self.prompts) * self.options.batch_size
        return [output] if count == 1 else [output.with_name(f"{output.stem}-{number:04}.png") for number in range(1, count + 1)]


def plan(options: argparse.Namespace, sampling: dict, drafting: dict, lantern: dict) -> Plan:
    """Check everything that can be checked before a model is loaded. Raises AdtError."""
    if options.batch_size < 1:
        raise AdtError(f"--batch-size is {options.batch_size}; it must be 1 or more.")
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
    prompts = read_prompts(options.prompts) if options.prompts else [options.prompt]
    if not all(prompt.strip() for prompt in prompts):
        raise AdtError("--prompt is empty; describe the picture in a few words.")
    return Plan(options, prompts, Sampling(**sampling), drafting, relaxation(**lantern), choose_device(options.device))


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
    pixels = to_pixels(open_picture(options.continue_from, "--continue-from"), rows * target.downsample, columns * target.downsample)
    keep = KEEP if options.keep is None else options.keep
    count = kept_tokens(target.grid, keep, options.keep_left or 0.0)
    if count == rows * columns:
        raise AdtError(f"--keep {keep:g} keeps all {rows} rows of tokens and leaves nothing to draw; choose less.")
    with torch.inference_mode():
        return target.codec.encode(pixels).flatten()[:count].tolist()


def relaxation(lantern_k: int, lantern_delta: float | None, lantern_lambda: float | None, max_substitution: float) -> Lantern | None:
    """LANTERN as the options ask for it; None for exact acceptance."""
    if lantern_delta is not None and lantern_lambda is not None:
        raise AdtError("--lantern-delta and --lantern-lambda are two rules; give one of them.")
    if lantern_lambda is not None:
        return Lantern(lantern_k, factor=lantern_lambda, max_substitution=max_substitution)
    return None if lantern_delta is None else Lantern(lantern_k, lantern_delta, max_substitution=max_substitution)


def default_drafter(model: str) -> str:
    """The drafter to take when none is named: the bundled model has its own, and every model can do without a network."""
    return BUNDLED if model == BUNDLED else JACOBI


def open_target(options: argparse.Namespace, device: torch.device) -> Target:
    """The target that ``--model``, ``--dtype``, ``--weights`` and ``--size`` ask for."""
    target = load_target(options.model, device, getattr(torch, options.dtype), weights=options.weights)
    return target.sized(*options.size) if options.size else target


def choose_device(name: str) -> torch.device:
    """``auto``, ``cpu`` or ``cuda`` as a device of this machine."""
    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        raise AdtError("--device cuda: this PyTorch finds no CUDA device; use --device cpu.")
    return torch.device("cuda" if available and name != "cpu" else "cpu")


def run(plan: Plan) -> str:
    """Load, decode, write. Returns what to tell the user.

    Pictures are written as soon as their prompt is decoded; the JSON files at the end.
    """
    options = plan.options
    target = open_target(options, plan.device)
    drafter = load_drafter(options.drafter, target) if plan.drafting.method != "autoregressive" else None
    rows = [target.encode_prompt(prompt) for prompt in plan.prompts]
    negatives = [target.encode_prompt(options.negative)] * options.batch_size if options.negative else None
    indices = list(range(options.image_index, options.image_index + options.batch_size))
    kept = kept_codes(options, target)
    prefix = torch.tensor([kept] * len(indices), dtype=torch.long)

    def start(row: list[int], drafting: Drafting) -> Decoding:
        return Decoding(target, [row] * len(indices), negatives=negatives, sampling=plan.sampling, drafting=drafting,
                        drafter=drafter, lantern=plan.lantern, image_indices=indices, prefix=prefix)

    methods, paths = plan.methods, iter(plan.paths)
    if options.compare:
        for drafting in methods:
            list(islice(start(rows[0], drafting), WARM_UP))
    results: list[list[Result]] = []  # per prompt, one for each method
    total = len(rows) * len(methods) * len(indices) * (target.length - target.tokens(prefix).shape[1])
    with tqdm(total=total, unit=" tokens", mininterval=0.5, leave=False) as bar:
        for number, row in enumerate(rows):
            order = list(enumerate(methods))
            decoded = {i: decode(start(row, drafting), bar) for i, drafting in (order if number % 2 else reversed(order))}
            results.append([decoded[i] for i, _ in order])
            pixels = target.codec.decode(decoded[0].codes.to(plan.device))
            for picture, index in zip(pixels, indices):
                save_png(next(paths), picture, settings(plan, plan.prompts[number], index, kept))
    return finish(plan, results)


class Result(NamedTuple):
    """What is kept of a finished decoding: codes [B, rows, columns] and the trace."""

    codes: Tensor
    trace: Trace


def decode(decoding: Decoding, bar: tqdm) -> Result:
    """Decode to the end, with progress on ``bar``."""
    done = decoding.done_tokens
    for _ in decoding:
        bar.update(decoding.done_tokens - done)
        done = decoding.done_tokens
    return Result(decoding.grid_codes(), decoding.trace)


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
        **{name: getattr(options, name) for name in ("lantern_k", "lantern_delta", "lantern_lambda", "max_substitution")},
        "noise_version": NOISE_VERSION,
        "versions": {"adt-tree": VERSION, "torch": torch.__version__, "numpy": np.__version__},
    }


def finish(plan: Plan, results: list[list[Result]]) -> str:
    """Write the JSON files, and sum the run up in a line, or two if methods were compared."""
    options, chosen = plan.options, [pair[0] for pair in results]
    trace = together([result.trace for result in chosen])
    report = {**trace.report(), "images": trace.images, "model": options.model, "drafter": options.drafter}
    name = f"{plan.paths[0]}" + (f" to {plan.paths[-1].name}" if len(plan.paths) > 1 else "")
    lines = [f"{name}: {report['tokens']} tokens in {report['seconds']:.2f} s, {report['tokens_per_second']:.1f} tokens/s, "
             f"tau {report['tau']:.2f}, mean depth {report['mean_depth']:.2f}"
             + (f", {report['substitution_rate']:.1%} of the tokens substituted" if plan.lantern else "")]
    if options.compare:
        plain = together([pair[1].trace for pair in results]).report()
        same = sum(int((a == b).all()) for one, other in results for a, b in zip(one.codes, other.codes))
        speedup, identical = plain["seconds"] / report["seconds"], same == trace.images
        report |= {"plain": plain, "speedup": speedup, "identical": identical, "identical_images": same}
        lines.append(f"Speed-up over plain decoding ({plain['seconds']:.2f} s), measured in this run: {speedup:.2f}x; "
                     + ("tokens identical" if identical else f"tokens identical in {same} of {trace.images} images"))
    if options.tokens:
        write_json(options.tokens, {"tokens": [grid for result in chosen for grid in result.codes.tolist()],
                                    "prompts": plan.prompts, "batch_size": options.batch_size, "seed": plan.sampling.seed})
    if options.trace:
        decodings = [{"prompt": prompt, **result.trace.to_json()} for prompt, result in zip(plan.prompts, chosen)]
        write_json(options.trace, {"report": report, "decodings": decodings})
    if options.report:
        write_json(options.report, report)
    return "\n".join(lines)


def together(traces: list[Trace]) -> Trace:
    """One trace with the rounds of several decodings, for their joint figures."""
    first = traces[0]
    return replace(first, images=sum(t.images for t in traces), prefill_seconds=sum(t.prefill_seconds for t in traces),
                   rounds=[round for t in traces for round in t.rounds])
