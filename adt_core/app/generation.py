"""The command ``generate``: checks the arguments, decodes the images, and writes the files.

The command divides the prompts into parts. Each part becomes one `Decoding`, so that the memory for a decoding is
bounded. Workers process the parts (see `workers`). With ``--compare``, every part is decoded twice: by the chosen
method, and by plain decoding, which uses no drafts.
"""

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
from ..engine.job import Job
from ..errors import AdtError
from ..files import write, write_json
from ..policies import PLAIN, Drafting
from ..policies.recipe import Recipe
from ..rules.trace import Trace
from . import continuation, workers
from .args import GenerateArgs, OutputArgs
from .checkpoints import load_drafter
from .images import check_outputs, to_png
from .jobs import conditions, drawing, new_decoding, split, warm_up
from .loading import choose_device, complete, given_paths, model_files, open_target
from .prompts import blank_note, non_blank, read_all
from .training_domain import domain_warning

MAX_IMAGES = 10**6
"""Maximum number of images of one command, because the paths of all images are kept in memory."""


@dataclass(frozen=True)
class GenerationPlan:
    """Checked arguments of ``generate``, before a model is loaded.

    Attributes:
        args: Arguments as given.
        recipe: Complete recipe. The codes of source images are missing, because only the loaded model can compute them.
        prompts: Text of each prompt.
        paths: Output file of each image. The images of the first prompt come first.
        parts: Indices of the prompts that are decoded together. Each part becomes one `Decoding`.
        note: Remark for the user on blank prompts, or "".
    """

    args: GenerateArgs
    recipe: Recipe
    prompts: list[str]
    paths: list[Path]
    parts: list[range]
    note: str = ""


def plan(args: GenerateArgs) -> GenerationPlan:
    """Check everything that can be checked before a model is loaded, and return the plan of the run.

    Raises:
        AdtError: If an argument is wrong.
    """
    files = args.files
    inputs = args.inputs
    batch = args.batch
    if files.output.suffix.lower() != ".png":
        raise AdtError(f"`output`: '{files.output}' must end in .png.")
    recipe = complete(args.given, args.device, strict=inputs.from_png is None)
    if files.compare and not recipe.drafting.policy.needs_drafter:
        raise AdtError("`compare` needs a `method` other than autoregressive; choose one.")
    continuation.check_args(args.image_to_image)
    workers.check_args(args.parallel, inputs.prompts)
    listed = read_all(inputs.prompts) if inputs.prompts else []
    prompts = [prompt.text for prompt in non_blank(listed)] if listed else [inputs.prompt or ""]
    if not all(prompt.strip() for prompt in prompts):
        raise AdtError("`prompt` is empty; describe the image in a few words.")
    if args.parallel.ray_address is None:
        choose_device(args.device)
    paths = _output_paths(files.output, len(prompts) * batch.batch_size)
    check_outputs(
        [*(("output", path) for path in dict.fromkeys([files.output, *paths])), *_json_outputs(files)],
        [
            *given_paths(inputs, "prompts", "from_png"),
            *given_paths(args.image_to_image, "source", "continue_from"),
            *model_files(recipe.loading.model, recipe.drafter or JACOBI),
        ],
    )
    parts = split(len(prompts), batch.max_batch_size, batch.batch_size, args.parallel.workers)
    return GenerationPlan(args, recipe, prompts, paths, parts, blank_note(listed))


def _output_paths(output: Path, count: int) -> list[Path]:
    """Return the path of each image. If there are several images, "-0001", "-0002" and so on is added to the names."""
    if count > MAX_IMAGES:
        raise AdtError(
            f"`batch_size`: this makes {count} images, but at most {MAX_IMAGES} are allowed; use a smaller number."
        )
    numbered = [output.with_name(f"{output.stem}-{number:04}.png") for number in range(1, count + 1)]
    return numbered if count > 1 else [output]


def _json_outputs(files: OutputArgs) -> list[tuple[str, Path]]:
    return given_paths(files, "tokens", "trace", "report")


class PartResult(NamedTuple):
    """Result of one part and one method.

    Attributes:
        codes: Codebook indices [B, rows, columns] int64, with B images.
        trace: Statistics of every round.
    """

    codes: Tensor
    trace: Trace


class GenerationProgress(NamedTuple):
    """Item that a worker yields: the outcome of a round, or, as the last item of a part, the results of the part.

    Attributes:
        tokens: Number of tokens that the round decoded.
        pngs: PNG of each image that the round finished. The key is the image's index among all images of the command.
        results: In the last item of a part, the results of the part, one per method. The key is the part's number.
            Otherwise {}.
    """

    tokens: int = 0
    pngs: dict[int, bytes] = {}
    results: dict[int, list[PartResult]] = {}


class GenerationWorker:
    """Worker that loads the models of a plan and decodes the plan's parts.

    Attributes:
        facts: Number of tokens that all methods together decode for all images, and remarks for the user.

    Raises:
        AdtError: If a file or a prompt does not fit the model.
    """

    def __init__(self, plan: GenerationPlan):
        self.plan = plan
        args = plan.args
        target = open_target(plan.recipe.loading, choose_device(args.device))
        sources = continuation.source_codes(args.image_to_image, target) or plan.recipe.sources
        target = continuation.with_sources(target, sources)
        kept = continuation.prefix_codes(args.image_to_image, target) or plan.recipe.kept
        recipe = replace(plan.recipe, kept=kept, sources=sources)
        drafter = load_drafter(recipe.drafter or JACOBI, target) if recipe.drafting.policy.needs_drafter else None
        job = Job(target, recipe, drafter)
        notes = [*job.check(plan.prompts), domain_warning(target, plan.prompts), target.codec.note]
        plain = replace(job, recipe=replace(recipe, drafting=Drafting(PLAIN)))
        self.jobs = [job, plain] if args.files.compare else [job]
        per_image = target.length - target.tokens(torch.tensor([recipe.kept], dtype=torch.long)).shape[1]
        self.facts = len(self.jobs) * len(plan.paths) * per_image, notes
        if args.files.compare:
            for job in self.jobs:
                warm_up(self._decoding(job, plan.parts[0]))

    def _decoding(self, job: Job, numbers: range) -> Decoding:
        batch = self.plan.args.batch
        first = job.recipe.image_index
        indices = list(range(first, first + batch.batch_size))
        prompts = [self.plan.prompts[number] for number in numbers for _ in indices]
        return new_decoding(job, prompts, indices * len(numbers), batch.max_batch_size)

    def __call__(self, part: int) -> Iterator[GenerationProgress]:
        """Decode a part with every method. Only the images of the first method become PNGs.

        Args:
            part: Number of the part, from 0.

        Yields:
            The outcome of each round, then the results of the part.
        """
        numbers = self.plan.parts[part]
        results = []
        first = numbers[0] * self.plan.args.batch.batch_size
        turn = 1 if part % 2 else -1
        # The order of the methods alternates, so that changes of the machine's load affect all methods.
        for job in self.jobs[::turn]:
            decoding = self._decoding(job, numbers)
            done = decoding.done_tokens
            with drawing(decoding) as running:
                for finished in running:
                    images = finished if job is self.jobs[0] else []
                    pngs = {first + image: self._png(decoding, image, first + image) for image in images}
                    yield GenerationProgress(decoding.done_tokens - done, pngs)
                    done = decoding.done_tokens
            decoding.learn_costs()
            results.append(PartResult(decoding.grid_codes(), decoding.trace))
        yield GenerationProgress(results={part: results[::turn]})

    def _png(self, decoding: Decoding, image: int, number: int) -> bytes:
        """Return the PNG of an image.

        Args:
            decoding: Decoding that contains the image.
            image: Index of the image in the decoding.
            number: Index of the image among all images of the command.
        """
        job = self.jobs[0]
        prompt, index = divmod(number, self.plan.args.batch.batch_size)
        image_index = job.recipe.image_index + index
        settings = job.settings(self.plan.prompts[prompt], image_index, conditions(decoding, image))
        return to_png(job.pixels(decoding.grid_codes()[[image]])[0], settings)


def run(plan: GenerationPlan) -> str:
    """Load the models, decode the images, and write the files.

    Each image is written as soon as it is finished. The JSON files are written at the end.

    Returns:
        Summary for the user.
    """
    began = perf_counter()
    parts = range(len(plan.parts))
    results: dict[int, list[PartResult]] = {}
    with (
        workers.start_workers(partial(GenerationWorker, plan), plan.args.parallel, plan.args.device, len(parts)) as (
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


def summarise(
    plan: GenerationPlan, by_method: Sequence[Sequence[PartResult]], elapsed: float
) -> tuple[dict, list[str]]:
    """Summarise a run.

    Args:
        plan: Arguments of the run.
        by_method: Item 0 has the results of all parts by the chosen method. With ``compare``, item 1 has the results of
            all parts by plain decoding.
        elapsed: Duration of the run in seconds, including loading and writing.

    Returns:
        Statistics for the report, and lines for the user.
    """
    paths = plan.paths
    parallel = plan.args.parallel
    report = {**figures(by_method[0]), "model": plan.recipe.loading.model, "drafter": plan.recipe.drafter}
    name = f"{paths[0]}" + (f" to {paths[-1].name}" if len(paths) > 1 else "")
    lines = [
        f"{name}: {report['tokens']} tokens in {report['seconds']:.2f} s, {report['tokens_per_second']:.1f} tokens/s, "
        f"tau {report['tau']:.2f}, mean depth {report['mean_depth']:.2f}"
        + (f", {report['substitution_rate']:.1%} of the tokens substituted" if plan.recipe.lantern else "")
    ]
    if plan.args.files.compare:
        comparison, line = _compare(report["seconds"], by_method)
        report |= comparison
        lines.append(line)
    if parallel.uses_ray:
        report |= {"workers": parallel.workers, "elapsed_seconds": elapsed}
        lines.append(
            f"Times are sums over all workers; with {parallel.workers} workers the run took {elapsed:.1f} s, "
            "loading included."
        )
    return report, lines


def _compare(seconds: float, by_method: Sequence[Sequence[PartResult]]) -> tuple[dict, str]:
    """Compare the chosen method with plain decoding.

    Args:
        seconds: Decoding time of the chosen method.
        by_method: Item 0 has the results of the chosen method, item 1 the results of plain decoding.

    Returns:
        Statistics for the report, and a line for the user.
    """
    plain = figures(by_method[1])
    drafted, undrafted = (torch.cat([result.codes for result in results]) for results in by_method)
    images = len(drafted)
    same = int((drafted == undrafted).flatten(1).all(1).sum())
    speedup = plain["seconds"] / seconds
    identical = same == images
    line = f"Speed-up over plain decoding ({plain['seconds']:.2f} s), measured in this run: {speedup:.2f}x; " + (
        "tokens identical" if identical else f"tokens identical in {same} of {images} images"
    )
    return {"plain": plain, "speedup": speedup, "identical": identical, "identical_images": same}, line


def figures(results: Sequence[PartResult]) -> dict:
    """Return the statistics of all parts together.

    Args:
        results: Results of all parts by one method.

    Returns:
        The dictionary that ``Trace.report`` makes, with the key ``images`` added: the number of images.
    """
    traces = [result.trace for result in results]
    images = sum(trace.images for trace in traces)
    seconds = sum(trace.prefill_seconds for trace in traces)
    rounds = [round for trace in traces for round in trace.rounds]
    return {**replace(traces[0], images=images, prefill={0: seconds}, rounds=rounds).report(), "images": images}


def write_files(plan: GenerationPlan, results: Sequence[PartResult], report: dict) -> None:
    """Write the JSON files that the arguments name: tokens, trace and report."""
    files = plan.args.files
    size = plan.args.batch.batch_size
    if files.tokens:
        grids = [grid for result in results for grid in result.codes.tolist()]
        content = {"tokens": grids, "prompts": plan.prompts, "batch_size": size}
        write_json(files.tokens, {**content, "seed": plan.recipe.sampling.seed})
    if files.trace:
        groups = [(r.trace, first) for r in results for first in range(0, len(r.codes), size)]
        traces = [trace.subset(list(range(first, first + size))) for trace, first in groups]
        decodings = [{"prompt": prompt, **trace.to_json()} for prompt, trace in zip(plan.prompts, traces)]
        write_json(files.trace, {"report": report, "decodings": decodings})
    if files.report:
        write_json(files.report, report)
