"""The command ``generate``: checks the arguments, decodes the images, and writes the files.

The command divides the missing images into parts. Each part becomes one `Decoding`, so that the memory for a decoding
is bounded. Workers process the parts (see `workers`), and this process writes every image as soon as it is
finished. With ``--compare``, every part is decoded twice: by the chosen method, and by plain decoding, which uses no
drafts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

from ..app import continuation, workers
from ..app.args import WEBDATASET, GenerateArgs, given_paths
from ..app.checkpoints import model_files
from ..app.defaults import choose_device, complete
from ..app.images import check_outputs
from ..app.pipeline import PART_FACTOR, split
from ..app.prompts import PromptEntry, blank_note, non_blank, read_all
from ..app.truncation import RAISE
from ..drafters import JACOBI
from ..errors import AdtError, shown
from ..files import write_json
from ..recipe import Recipe
from ..settings import UPSTREAM
from . import webdataset
from .generation_worker import FinishedImage, GenerationFacts, GenerationPlan, GenerationWorker
from .image_lines import ImageLines
from .image_list import ImageList
from .png_folder import PngFolder
from .progress import RunProgress
from .totals import Totals

MAX_LISTED = 20
"""Maximum number of invalid prompts that the summary lists."""


def plan(args: GenerateArgs) -> GenerationPlan:
    """Check everything that can be checked before a model is loaded, and return the plan of the run.

    Raises:
        AdtError: If an argument is wrong.
    """
    files = args.files
    inputs = args.inputs
    recipe = complete(args.given, args.device)
    if inputs.from_png is None:  # a PNG may contain options that the chosen method does not use
        recipe.drafting.check_options(args.given)
    if files.compare and not recipe.drafting.policy.needs_drafter:
        raise AdtError("`compare` needs a `method` other than no-drafting; choose one.")
    continuation.check_args(args.image_to_image)
    workers.check_args(args.parallel, inputs.prompts)
    images, note = _images(args, recipe)
    if recipe.sampling.noise == UPSTREAM and recipe.sampling.noise_batch is None:
        # The noise depends on the number of images per prompt, and a part may contain only some of these.
        whole = replace(recipe.sampling, noise_batch=recipe.image_index + args.batch.batch_size)
        recipe = replace(recipe, sampling=whole)
    if args.parallel.ray_address is None:
        choose_device(args.device)
    if files.format == WEBDATASET:
        webdataset.check(images)
    sources = [
        *given_paths(inputs, "prompts", "from_png"),
        *given_paths(args.image_to_image, "source", "continue_from", "mask"),
        *model_files(recipe.loading.model, recipe.drafter or JACOBI),
    ]
    lines = _line_outputs(args)
    outputs = [("output", path) for path in images.written([path for _, path in (*sources, *lines)])]
    check_outputs([*outputs, *lines], sources)
    return GenerationPlan(args, recipe, images, note)


def _images(args: GenerateArgs, recipe: Recipe) -> tuple[ImageList, str]:
    """Return the images of the run, and a remark on blank prompts or ""."""
    inputs = args.inputs
    listed = read_all(inputs.prompts) if inputs.prompts else []
    prompts = non_blank(listed) if listed else [PromptEntry("1", inputs.prompt or "")]
    if not prompts[0].text.strip():
        raise AdtError("`prompt` is empty; describe the image in a few words.")
    if inputs.invalid_prompts == RAISE and len(prompts) < len(listed):
        blank = next(prompt.id for prompt in listed if not prompt.text)
        raise AdtError(
            f"`prompts`: that with the id {shown(blank)} is empty; write it, or set `invalid_prompts` to skip."
        )
    stride = inputs.stride
    if stride != (1, 1) and not listed:
        raise AdtError("`shard` needs a list of prompts; give a file with `prompts`.")
    images = ImageList(prompts, args.files.output, args.batch.batch_size, recipe.image_index, stride, bool(listed))
    return images, blank_note(listed)


def _line_outputs(args: GenerateArgs) -> list[tuple[str, Path]]:
    files = args.files
    if files.report is not None and files.report.suffix.lower() == ".jsonl":
        raise AdtError(
            f"`report`: '{files.report}' ends in .jsonl, but the sums are one JSON object; name a .json file. The "
            "statistics of each image are written next to it, with the ending .jsonl."
        )
    per_image = [("report", files.report.with_suffix(".jsonl"))] if files.report is not None else []
    return [*given_paths(files, "tokens", "trace", "report"), *per_image]


def run(plan: GenerationPlan) -> str:
    """Load the models, decode the missing images, and write the files.

    Each image is written as soon as it is finished.

    Returns:
        Summary for the user.
    """
    began = perf_counter()
    images = plan.images
    parallel = plan.args.parallel
    build = partial(GenerationWorker, plan)
    with workers.start_workers(build, parallel, plan.args.device, len(images.numbers)) as (loaded, mapped):
        facts = _common(loaded)
        output = _Output(plan, facts)
        missing = output.folder.missing()
        at_once = min(worker.at_once for worker in loaded)
        # Ray returns the images of a part together, so its parts are small.
        factor = 1 if parallel.uses_ray else PART_FACTOR
        ranges = split(len(missing), at_once, min(parallel.workers, len(missing)), factor)
        parts = [[missing[position] for position in part] for part in ranges]
        present = len(images.numbers) - len(missing)
        with RunProgress(len(missing), facts.tokens_per_image, images.resumes, present) as progress:
            for step in mapped(parts) if parts else ():
                for image in step.images:
                    output.add(image)
                output.leave_out(step.left_out)
                progress.update(step.tokens, len(step.images), len(step.left_out))
    output.folder.finish()
    lines = output.summary(len(missing), perf_counter() - began)
    return "\n".join(filter(None, [*lines, plan.note, *output.listed(), *facts.notes]))


def _common(loaded: Sequence[GenerationFacts]) -> GenerationFacts:
    """Return the facts of all workers, which must have loaded the same weights."""
    if len({facts.identity.key for facts in loaded}) > 1:
        raise AdtError("`model`: the workers have loaded different weights; copy the same files to every machine.")
    return loaded[0]


class _Output:
    """Files and statistics of a run.

    Attributes:
        folder: Images of the run.
    """

    def __init__(self, plan: GenerationPlan, facts: GenerationFacts):
        self._plan = plan
        self._facts = facts
        files = plan.args.files
        images = plan.images
        kind = webdataset.TarFolder if files.format == WEBDATASET else PngFolder
        self.folder: PngFolder = kind(images, facts.identity, files.overwrite)
        statistics = files.report.with_suffix(".jsonl") if files.report is not None else None
        paths = {"tokens": files.tokens, "trace": files.trace, "stats": statistics}
        identity = partial(facts.identity.of, images)
        self._lines = {name: ImageLines(path, images, identity) for name, path in paths.items() if path is not None}
        self._totals = _ComparedTotals()
        self._left_out: dict[int, str] = {}
        self._notes: Counter[str] = Counter()

    def add(self, image: FinishedImage) -> None:
        """Write the lines of an image, and then the image: an image that is present has its lines."""
        content = {"tokens": {"tokens": image.codes}, "trace": image.trace, "stats": image.stats}
        for name, lines in self._lines.items():
            lines.append(image.number, content[name])
        self.folder.add(image.number, image.png, image.codes)
        self._totals.add(image.stats)
        if image.note:
            self._notes[image.note] += 1

    def leave_out(self, reasons: dict[int, str]) -> None:
        """Note images whose prompts are invalid."""
        self._left_out |= reasons
        for number in reasons:
            self.folder.leave_out(number)

    def listed(self) -> list[str]:
        """Return a line for each prompt that was left out, and for each remark on a prompt."""
        images = self._plan.images
        reasons = {images.entry(number): reason for number, reason in sorted(self._left_out.items())}
        if reasons and len(self._left_out) == len(images.numbers):
            prompt, reason = next(iter(reasons.items()))
            raise AdtError(
                f"`prompts`: no prompt of the list can be drawn; the first, {shown(prompt.text)}, is {reason}"
            )
        lines = [f"Prompt {shown(prompt.id)}, {shown(prompt.text)}: {reason}" for prompt, reason in reasons.items()]
        if len(lines) > MAX_LISTED:
            lines = [*lines[:MAX_LISTED], f"{len(lines) - MAX_LISTED} more prompts were left out."]
        return [*lines, *(f"{note} ({count} images)" if count > 1 else note for note, count in self._notes.items())]

    def summary(self, missing: int, elapsed: float) -> list[str]:
        """Finish the lines, write the report, and return the summary for the user.

        Args:
            missing: Number of images that were missing at the beginning of the run.
            elapsed: Duration of the run in seconds, including loading and writing.
        """
        images = self._plan.images
        parallel = self._plan.args.parallel
        places = {name: lines.finish() for name, lines in self._lines.items()}
        if "stats" in places:
            self._write_report(places["stats"], elapsed)
        lines = self._totals.lines(images, self._plan.recipe.lantern is not None) if self._totals.chosen.images else []
        present = len(images.numbers) - missing
        if present:
            lines.append(f"{present} of {len(images.numbers)} images were already there.")
        counts = {name: present - sum(1 for n in found) + self._totals.chosen.images for name, found in places.items()}
        if unknown := max(counts.values(), default=0):
            lines.append(f"For {unknown} images of earlier runs, the files of this run's options have no lines.")
        if parallel.uses_ray and self._totals.chosen.images:
            lines.append(
                f"Times are sums over all workers; with {parallel.workers} workers the run took {elapsed:.1f} s, "
                "loading included."
            )
        return lines

    def _write_report(self, places: dict, elapsed: float) -> None:
        files = self._plan.args.files
        parallel = self._plan.args.parallel
        recipe = self._plan.recipe
        totals = _ComparedTotals()
        for record in self._lines["stats"].records(places):
            totals.add(record)
        report: dict[str, Any] = {**self._facts.settings, **totals.report()}
        report |= {"model": recipe.loading.model, "drafter": recipe.drafter}
        if parallel.uses_ray:
            report |= {"workers": parallel.workers, "elapsed_seconds": elapsed}
        number, count = self._plan.images.shard
        path = files.report
        if path is not None:
            shard = path.with_name(f"{path.stem}-{number}-of-{count}{path.suffix}")
            write_json(path if count == 1 else shard, report)


class _ComparedTotals:
    """Statistics of the chosen method and, with ``compare``, of plain decoding.

    Attributes:
        chosen: Statistics of the chosen method.
    """

    def __init__(self) -> None:
        self.chosen = Totals()
        self._plain = Totals()
        self._same = 0

    def add(self, stats: dict) -> None:
        """Add the statistics of an image, as `FinishedImage.stats` has them."""
        self.chosen.add(stats)
        if isinstance(plain := stats.get("plain"), dict):
            self._plain.add(plain)
            self._same += stats.get("identical") is True

    def report(self) -> dict[str, Any]:
        """Return the statistics for the report."""
        report = self.chosen.report()
        if not self._plain.images:
            return report
        plain = self._plain.report()
        speedup = plain["seconds"] / report["seconds"]
        identical = self._same == self._plain.images
        return report | {"plain": plain, "speedup": speedup, "identical": identical, "identical_images": self._same}

    def lines(self, images: ImageList, is_relaxed: bool) -> list[str]:
        """Return the statistics as lines for the user."""
        report = self.report()
        first, last = (images.path(images.numbers[position]) for position in (0, -1))
        name = f"{first}" + (f" to {last.name}" if last != first else "")
        lines = [
            f"{name}: {report['tokens']} tokens in {report['seconds']:.2f} s, {report['tokens_per_second']:.1f} "
            f"tokens/s, tau {report['tau']:.2f}, mean depth {report['mean_depth']:.2f}"
            + (f", {report['substitution_rate']:.1%} of the tokens substituted" if is_relaxed else "")
        ]
        if "plain" in report:
            lines.append(
                f"Speed-up over no drafting ({report['plain']['seconds']:.2f} s), measured in this run: "
                f"{report['speedup']:.2f}x; "
                + (
                    "tokens identical"
                    if report["identical"]
                    else f"tokens identical in {self._same} of {self._plain.images} images"
                )
            )
        return lines
