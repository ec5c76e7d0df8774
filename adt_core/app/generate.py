"""The command ``generate``: checks the arguments, runs the jobs, and writes the files.

Workers (see `workers`) decode parts of the jobs, and this process stores every image as soon as it is finished. With
``--compare``, every part is decoded twice: by the chosen method, and by plain decoding, which uses no drafts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any
from uuid import uuid4

from ..drafters import JACOBI
from ..errors import AdtError, shown
from ..files import write, write_in, write_json
from ..recipe import AUTO
from ..run import tars
from ..run.images import check_outputs
from ..run.jobs import Job, JobList, PromptEntry
from ..run.lines import ImageLines, check_lines, shard_path
from ..run.model_files import model_files
from ..run.resolve import Hardware, resolve_recipe
from ..run.runner import PART_FACTOR, public_name, split
from ..run.stats import ComparedTotals
from ..run.store import PngStore, Store, clashing_images
from ..run.truncation import RAISE
from ..settings import ORIGINAL_SCRIPT
from . import continuation, workers
from .args import WEBDATASET, GenerateArgs, given_paths
from .generate_worker import FinishedImage, GenerateFacts, GeneratePlan, GenerateWorker
from .manifest import MANIFEST, check_manifest, write_manifest
from .progress import RunProgress
from .prompt_remarks import remarks
from .prompts import blank_note, non_blank, read_all

MAX_LISTED = 20
"""Number of invalid prompts that the summary lists."""
_IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff")
"""Suffixes that the folder of a list may not have: the user probably expects one image."""


def plan(args: GenerateArgs) -> GeneratePlan:
    """Check everything that can be checked before a model is loaded, and return the plan of the run.

    Raises:
        AdtError: If an argument is wrong.
    """
    continuation.check_args(args.image_to_image)
    workers.check_args(args.parallel, args.inputs.prompts)
    hardware = Hardware.of(args.placement.device if args.parallel.ray_address is None else AUTO)
    recipe = resolve_recipe(args.given, hardware)
    given = args.given
    if args.inputs.from_png is None:  # a PNG may contain options that the chosen method does not use
        recipe.drafting.check_options(given)
    if args.files.compare and not recipe.drafting.policy.needs_drafter:
        raise AdtError("compare.no_method")
    if recipe.sampling.noise == ORIGINAL_SCRIPT and recipe.sampling.noise_batch is None:
        # The noise depends on the number of images per prompt, and a part may contain only some of these.
        given = {**given, "noise_batch": recipe.image_index + args.batch.num_images_per_prompt}
        recipe = resolve_recipe(given, hardware)
    entries, note = _entries(args)
    is_list = args.inputs.prompts is not None
    shard = args.inputs.stride
    if shard != (1, 1) and not is_list:
        raise AdtError("shard.without_list")
    jobs = JobList(entries, recipe, args.batch.num_images_per_prompt, shard, args.batch.same_noise)
    checked = GeneratePlan(args, given, recipe, jobs, is_list, note)
    _check_files(checked)
    return checked


def _entries(args: GenerateArgs) -> tuple[list[PromptEntry], str]:
    """Return the prompts of the run, and remarks on them or ""."""
    inputs = args.inputs
    if inputs.prompts is None:
        if not (inputs.prompt or "").strip():
            raise AdtError("prompt.empty")
        entry = PromptEntry("1", inputs.prompt or "")
        return [entry], remarks([entry])
    listed = read_all(inputs.prompts)
    prompts = non_blank(listed)
    if inputs.invalid_prompts == RAISE and len(prompts) < len(listed):
        blank = next(prompt.id for prompt in listed if not prompt.text)
        raise AdtError("prompts.one_empty", id=shown(blank))
    return prompts, "\n".join(filter(None, [blank_note(listed), remarks(prompts)]))


def _check_files(plan: GeneratePlan) -> None:
    """Raise AdtError if an output file cannot be written, or would replace an input file or a foreign file."""
    files = plan.args.files
    suffix = files.output.suffix.lower()
    if plan.is_list and suffix in _IMAGE_SUFFIXES:
        raise AdtError("output.is_image", path=files.output)
    if not plan.is_list and suffix != ".png":
        raise AdtError("output.not_png", path=files.output)
    for name, path in given_paths(files, "tokens", "trace", "report"):
        if not path.name:
            raise AdtError("file.is_folder", input=name, path=path)
    if files.format == WEBDATASET and not plan.is_list:
        raise AdtError("webdataset.without_list")
    sources = [
        *given_paths(plan.args.inputs, "prompts", "from_png"),
        *given_paths(plan.args.image_to_image, "source", "continue_from", "mask"),
        *model_files(plan.recipe.loading.model, plan.recipe.drafter or JACOBI),
    ]
    lines = _line_outputs(plan)
    others = [path for _, path in (*sources, *lines)]
    check_outputs([*(("output", path) for path in _images(plan, others)), *lines], sources)
    for name, path in _line_files(plan).items():
        check_lines(shard_path(path, plan.jobs.shard), name)


def _images(plan: GeneratePlan, others: Sequence[Path]) -> list[Path]:
    """Return the paths of images, tars, the index and the manifest that could be one of the other files of the run."""
    files = plan.args.files
    if not plan.is_list:
        return [_single_path(files.output, plan.jobs, number) for number in plan.jobs.numbers]
    found = list(clashing_images(files.output, plan.jobs.count, others))
    if files.format == WEBDATASET:
        tars.check(files.output)
        return found + tars.clashing_files(files.output, others)
    check_manifest(files.output)
    return [*found, files.output / MANIFEST]


def _line_files(plan: GeneratePlan) -> dict[str, Path]:
    """Return the files with one line per image, by the name of the option."""
    files = plan.args.files
    named = {"tokens": files.tokens, "trace": files.trace}
    if files.report is not None:
        named["report"] = files.report.with_suffix(".jsonl")
    return {name: path for name, path in named.items() if path is not None}


def _line_outputs(plan: GeneratePlan) -> list[tuple[str, Path]]:
    """Return the reports and the files with lines, both of all shards together and of this shard."""
    report = plan.args.files.report
    if report is not None and report.suffix.lower() == ".jsonl":
        raise AdtError("report.is_lines", path=report)
    named = [*_line_files(plan).items(), *([("report", report)] if report is not None else [])]
    return [(name, path) for name, file in named for path in {file: 0, shard_path(file, plan.jobs.shard): 0}]


def run(plan: GeneratePlan, copy: Callable[[], None] = lambda: None) -> str:
    """Load the models, decode the missing images, write each as soon as it is finished, and return a summary.

    Args:
        copy: Called after the images of each step are written.
    """
    began = perf_counter()
    jobs = plan.jobs
    parallel = plan.args.parallel
    if not len(jobs):
        number, count = jobs.shard
        return f"Shard {number} of {count} has no images, because the list has only {jobs.count}; nothing to do."
    device = plan.args.placement.device
    with (
        _marked(plan) as marked,
        workers.start_workers(partial(GenerateWorker, marked), parallel, device, len(jobs)) as (loaded, mapped),
    ):
        facts = loaded[0]
        if len({worker.identity.key for worker in loaded}) > 1:
            raise AdtError("workers.other_weights")
        output = _Output(plan, facts)
        missing = output.missing()
        missing.sort(key=lambda number: repr(jobs.job(number).settings))  # equal settings share a batch
        batch_size = min(worker.batch_size for worker in loaded)
        # Ray returns the images of a part together, so its parts are small.
        factor = 1 if parallel.uses_ray else PART_FACTOR
        ranges = split(len(missing), batch_size, min(parallel.workers, len(missing)), factor)
        parts = [[missing[position] for position in part] for part in ranges]
        with RunProgress(len(missing), facts.tokens_per_image, plan.is_list, len(jobs) - len(missing)) as progress:
            for step in mapped(parts) if parts else ():
                for image in step.images:
                    output.add(image)
                if step.images:
                    copy()
                output.leave_out(step.left_out)
                progress.update(step.tokens, len(step.images), len(step.left_out))
    lines = output.finish(len(missing), perf_counter() - began)
    return "\n".join(filter(None, [*lines, plan.note, *output.listed(), *facts.notes]))


@contextmanager
def _marked(plan: GeneratePlan) -> Iterator[GeneratePlan]:
    """Create a file in the output folder, by which workers on Ray find out whether they share this folder."""
    if not plan.args.parallel.uses_ray:
        yield plan
        return
    output = plan.args.files.output.absolute()
    mark = f".adt-tree-{uuid4().hex}.shared"
    write_in(output, mark, b"")
    try:
        yield replace(plan, mark=output / mark)
    finally:
        (output / mark).unlink(missing_ok=True)
        with suppress(OSError):  # it has images
            output.rmdir()


class _SingleFiles:
    """Store of the images of a single prompt, which are always generated."""

    def __init__(self, jobs: JobList, output: Path):
        self._jobs = jobs
        self._output = output
        self._records: dict[int, Mapping[str, Any]] = {}

    def missing(self) -> list[int]:
        return list(self._jobs.numbers)

    def add(self, job: Job, png: bytes | None, record: Mapping[str, Any]) -> None:
        self._records[job.number] = record
        if png is not None:
            write(_single_path(self._output, self._jobs, job.number), png)

    def leave_out(self, number: int) -> None:
        pass

    def finish(self) -> None:
        pass

    def records(self) -> Iterator[tuple[int, Mapping[str, Any]]]:
        yield from sorted(self._records.items())


def _single_path(output: Path, jobs: JobList, number: int) -> Path:
    """Return the path of an image of a single prompt. Several images are numbered, such as boat-0002.png."""
    return output.with_name(f"{output.stem}-{number:04}.png") if jobs.count > 1 else output


class _Output:
    """Files and remarks of a run."""

    def __init__(self, plan: GeneratePlan, facts: GenerateFacts):
        self._plan = plan
        self._facts = facts
        files = plan.args.files
        if plan.is_list:
            kind = tars.TarStore if files.format == WEBDATASET else PngStore
            self._store: Store = kind(plan.jobs, files.output, facts.identity, files.overwrite)
        else:
            self._store = _SingleFiles(plan.jobs, files.output)
        self._lines = {
            name: ImageLines(path, plan.jobs, facts.identity.expected) for name, path in _line_files(plan).items()
        }
        self._left_out: dict[Job, str] = {}
        self._notes: Counter[str] = Counter()
        self._totals = ComparedTotals()
        self._added = 0

    def missing(self) -> list[int]:
        """Return the numbers of the images to generate.

        Raises:
            AdtError: If a file is not the image of its name, or an image that is present was not compared.
        """
        missing = self._store.missing()
        if self._plan.args.files.compare and len(missing) < len(self._plan.jobs):
            uncompared = next((n for n, record in self._store.records() if "plain" not in record["figures"]), None)
            if uncompared is not None:
                raise AdtError("compare.not_compared", number=uncompared)
        return missing

    def add(self, image: FinishedImage) -> None:
        """Write the lines of an image and the image. If the lines can't be written, write the image nevertheless."""
        content = {**_line_contents(image.record), "trace": image.trace}
        try:
            for name, lines in self._lines.items():
                lines.append(image.job, content[name])
        finally:
            self._store.add(image.job, image.png, image.record)
        self._totals.add(image.record["figures"])
        self._added += 1
        if image.job.note:
            self._notes[image.job.note] += 1

    def leave_out(self, reasons: dict[Job, str]) -> None:
        """Note images whose prompts are invalid."""
        self._left_out |= reasons
        for job in reasons:
            self._store.leave_out(job.number)

    def listed(self) -> list[str]:
        """Return a line for each prompt that was left out, and for each remark on a prompt."""
        reasons = sorted(self._left_out.items(), key=lambda item: item[0].number)
        if reasons and len(reasons) == self._plan.jobs.count:
            job, reason = reasons[0]
            raise AdtError("prompts.none_possible", prompt=shown(job.prompt), reason=reason)
        lines = [f"Prompt {shown(job.id)}, {shown(job.prompt)}: {reason}" for job, reason in reasons]
        if len(lines) > MAX_LISTED:
            lines = [*lines[:MAX_LISTED], f"{len(lines) - MAX_LISTED} more prompts were left out."]
        return [*lines, *(f"{note} ({count} images)" if count > 1 else note for note, count in self._notes.items())]

    def finish(self, missing: int, elapsed: float) -> list[str]:
        """Finish the files, write the report of all images of the list, and return the summary for the user.

        Args:
            missing: Number of images that were missing at the beginning of the run.
            elapsed: Duration of the run in seconds, including loading and writing.
        """
        plan = self._plan
        self._store.finish()
        files = plan.args.files
        if plan.is_list and files.format != WEBDATASET and files.output.is_dir():
            write_manifest(files.output, plan.jobs)
        without = 0
        for name, file in self._lines.items():
            known = () if name == "trace" else self._store.records()
            found = file.finish((number, _line_contents(record)[name]) for number, record in known)
            without = max(without, len(plan.jobs) - len(self._left_out) - len(found))
        self._write_report(elapsed)
        lines = _total_lines(self._totals, plan) if self._added else []
        if present := len(plan.jobs) - missing:
            lines.append(f"{present} of {len(plan.jobs)} images were already there.")
        if without > 0:
            lines.append(f"For {without} images of earlier runs, the file of `trace` has no lines.")
        if plan.args.parallel.uses_ray and self._added:
            lines.append(
                f"Times are sums over all workers; with {plan.args.parallel.workers} workers the run took "
                f"{elapsed:.1f} s, loading included."
            )
        return lines

    def _write_report(self, elapsed: float) -> None:
        """Write the report of all images of the list, including earlier runs."""
        path = self._plan.args.files.report
        if path is None:
            return
        totals = ComparedTotals()
        for _, record in self._store.records():
            totals.add(record["figures"])
        parallel = self._plan.args.parallel
        recipe = self._plan.recipe
        report: dict[str, Any] = {**self._facts.settings, **totals.report()}
        report |= {"model": public_name(recipe.loading.model), "drafter": public_name(recipe.drafter)}
        if parallel.uses_ray:
            report |= {"workers": parallel.workers, "elapsed_seconds": elapsed}
        write_json(shard_path(path, self._plan.jobs.shard), report)


def _line_contents(record: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the contents of an image's lines that its record has, by the name of the option."""
    return {"tokens": {"tokens": record["tokens"]}, "report": record["figures"]}


def _total_lines(totals: ComparedTotals, plan: GeneratePlan) -> list[str]:
    """Return the statistics of this run's images as lines for the user."""
    report = totals.report()
    is_relaxed = plan.recipe.lantern is not None
    lines = [
        f"{plan.args.files.output}: {report['tokens']} tokens in {report['seconds']:.2f} s, "
        f"{report['tokens_per_second']:.1f} tokens/s, tau {report['tau']:.2f} "
        f"({report['accepted_per_round']:.2f} accepted drafts per pass), mean depth {report['mean_depth']:.2f}"
        + (f", {report['substitution_rate']:.1%} of the tokens substituted" if is_relaxed else "")
    ]
    if "plain" in report:
        same = "" if report["identical"] else f" in {totals.same} of {totals.images} images"
        lines.append(
            f"Speed-up over no drafting ({report['plain']['seconds']:.2f} s), measured in this run: "
            f"{report['speedup']:.2f}x; tokens identical{same}"
        )
    return lines
