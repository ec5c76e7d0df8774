"""Worker of the command ``generate``: it loads the models of a plan and decodes parts of its jobs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import AdtError, shown
from ..files import write_in
from ..policies import PLAIN, Drafting
from ..recipe import Recipe
from ..run import race
from ..run.batch_size import default_batch_size
from ..run.jobs import Job, JobList, fit_jobs
from ..run.pipeline import Pipeline, with_sources
from ..run.resolve import Hardware, resolve_recipe
from ..run.runner import Finished
from ..run.store import Identity, file_name
from ..run.truncation import RAISE
from . import continuation
from .args import GenerateArgs
from .training_domain import domain_warning

MAX_CHECKED = 1000
"""Maximum number of prompts that are compared with the model's training data before the first image."""


@dataclass(frozen=True)
class GeneratePlan:
    """Checked arguments of ``generate``, before a model is loaded.

    Attributes:
        args: Arguments as given.
        given: Values of the recipe's options, by option name.
        recipe: Recipe that `given` has on this machine. Workers on other machines resolve `given` again.
        jobs: Images of the run.
        is_list: Whether the prompts are from a file. Only the images of a list are resumed.
        note: Remarks for the user on the prompts, or "".
        mark: File in the output folder. A worker that finds it shares the folder, and writes its images itself.
    """

    args: GenerateArgs
    given: Mapping[str, Any]
    recipe: Recipe
    jobs: JobList
    is_list: bool
    note: str = ""
    mark: Path | None = None


class GenerateFacts(NamedTuple):
    """Facts that are known after the models are loaded.

    Attributes:
        tokens_per_image: Number of tokens that all methods together decode for an image.
        batch_size: Number of images to decode at the same time.
        identity: Properties by which existing images are recognised.
        settings: Settings for the report.
        notes: Remarks for the user.
    """

    tokens_per_image: int
    batch_size: int
    identity: Identity
    settings: dict[str, Any]
    notes: list[str]


class FinishedImage(NamedTuple):
    """A finished image.

    Attributes:
        job: Job of the image.
        png: Content of its PNG; None if the worker has written it.
        record: Settings, tokens and statistics of the image; with ``compare``, its statistics also have "plain" (those
            of plain decoding) and "identical".
        trace: Report, rounds and acceptance map; {} unless the user wants traces.
    """

    job: Job
    png: bytes | None
    record: Mapping[str, Any]
    trace: dict[str, Any]


class GenerateStep(NamedTuple):
    """Number of decoded tokens, finished images, and jobs that are not decoded, with the reason."""

    tokens: int = 0
    images: Sequence[FinishedImage] = ()
    left_out: dict[Job, str] = {}


class GenerateWorker:
    """Worker that loads the models of a plan and decodes images.

    Raises:
        AdtError: If a file or a prompt does not fit the model.
    """

    def __init__(self, plan: GeneratePlan):
        self._plan = plan
        args = plan.args
        recipe = resolve_recipe(plan.given, Hardware.of(args.placement.device))
        loaded = Pipeline.of(recipe, args.placement)
        given = continuation.source_codes(args.image_to_image, loaded.target)
        sources = given or loaded.recipe.sources
        target = with_sources(loaded.target, given) if given else loaded.target
        kept = continuation.kept_codes(args.image_to_image, target) or loaded.recipe.kept
        recipe = replace(loaded.recipe, kept=kept, sources=sources)
        self._pipeline = replace(loaded, target=target, recipe=recipe)
        self._turns = 0
        self._writes = plan.mark is not None and plan.mark.exists()
        self._check_rows()
        # The prompts of a long list are checked when they are decoded, so that the first image starts soon.
        self._mode = args.inputs.invalid_prompts if plan.is_list else RAISE
        prompts = [job.prompt for job in plan.jobs]
        notes = [
            *self._pipeline.check(prompts if self._mode == RAISE else []),
            domain_warning(target, prompts[:MAX_CHECKED]),
            target.codec.note,
        ]
        self.facts = self._facts(prompts, list(dict.fromkeys(notes)))

    def _check_rows(self) -> None:
        """Raise AdtError if the model does not support a size or a negative prompt of the list."""
        target = self._pipeline.target
        checked: dict[str, set[Any]] = {"size": set(), "negative_prompt": set()}
        for job in self._plan.jobs:
            for name, value in job.settings:
                if name in checked and value not in checked[name]:
                    checked[name].add(value)
                    try:
                        _ = target.sized(*value) if name == "size" else target.check_prompt(value)
                    except AdtError as error:
                        raise AdtError("prompts.in_row", id=shown(job.id), error=error) from error
        recipe = self._pipeline.recipe
        if checked["size"] and (recipe.kept or recipe.sources):
            raise AdtError("prompts.sizes")

    def _facts(self, prompts: Sequence[str], notes: list[str]) -> GenerateFacts:
        pipeline = self._pipeline
        target = pipeline.target
        args = self._plan.args
        methods = 2 if args.files.compare else 1
        if args.batch.batch_size is not None or not self._plan.is_list:
            batch_size = args.batch.batch_size or args.batch.num_images_per_prompt
        else:
            batch_size = default_batch_size(pipeline, prompts, args.parallel.workers, args.placement.device_bytes)
        request = pipeline.decoding(["x"]).request
        tokens = target.length - int(request.kept.given.sum())
        is_recognised = self._plan.is_list or any((args.files.tokens, args.files.trace, args.files.report))
        identity = Identity.of(pipeline, has_key=is_recognised)
        return GenerateFacts(methods * tokens, batch_size, identity, request.settings(), notes)

    def __call__(self, numbers: Sequence[int]) -> Iterator[GenerateStep]:
        """Decode images with the chosen method and, with ``compare``, by plain decoding.

        Yields:
            The outcome of each round. With ``compare``, the images come last.
        """
        jobs = sorted(map(self._plan.jobs.job, numbers), key=_row)
        for _, mine in groupby(jobs, key=_row):
            yield from self._row(list(mine))

    def _row(self, jobs: Sequence[Job]) -> Iterator[GenerateStep]:
        """Decode images with equal settings."""
        pipeline = self._pipeline.of_row(jobs[0].settings)
        jobs, left_out = fit_jobs(jobs, pipeline.check_prompt, self._mode)
        if left_out:
            yield GenerateStep(left_out=left_out)
        if jobs and self._plan.args.files.compare:
            yield from self._compared(jobs, pipeline)
        elif jobs:
            for tokens, finished in self._decoded(jobs, pipeline):
                yield GenerateStep(tokens, [self._image(image) for image in finished])

    def _decoded(self, jobs: Sequence[Job], pipeline: Pipeline) -> Iterator[tuple[int, Sequence[Finished]]]:
        """Decode images by one method. Yield the number of new tokens and the finished images of each round."""
        done = None
        with closing(pipeline.run(jobs, self.facts.batch_size)) as running:
            for progress in running:
                yield progress.done - (progress.done if done is None else done), progress.finished
                done = progress.done

    def _compared(self, jobs: Sequence[Job], chosen: Pipeline) -> Iterator[GenerateStep]:
        pipelines = [chosen, replace(chosen, recipe=replace(chosen.recipe, drafting=Drafting(PLAIN)))]
        if not self._turns:
            texts = [job.text for job in jobs]
            race.warm_up(pipeline.decoding(texts, batch_size=self.facts.batch_size) for pipeline in pipelines)
        images: dict[str, dict[Job, Finished]] = {}
        for pipeline in race.order(pipelines, self._turns):
            mine = images[pipeline.recipe.drafting.method] = {}
            for tokens, finished in self._decoded(jobs, pipeline):
                mine |= {image.job: image for image in finished}
                yield GenerateStep(tokens)
        self._turns += 1
        drafted = images[chosen.recipe.drafting.method]
        yield GenerateStep(images=[self._image(drafted[job], images[PLAIN][job]) for job in jobs])

    def _image(self, finished: Finished, plain: Finished | None = None) -> FinishedImage:
        """Return a finished image, with the statistics of the same image by plain decoding if it was compared."""
        compared = {}
        if plain is not None:
            compared = {"plain": plain.figures, "identical": plain.codes == finished.codes}
        listed = finished.listed(self.facts.identity.of_job(finished.job).key, **compared)
        result = finished.result(**(listed if self._plan.is_list else {}))
        trace: dict[str, Any] = {}
        if self._plan.args.files.trace:  # its rounds are numbered from 0, whatever images were decoded before it
            rounds = [replace(round, index=index) for index, round in enumerate(result.trace.rounds)]
            trace = replace(result.trace, rounds=rounds).to_json()
        png = result.png
        if self._writes:
            write_in(self._plan.args.files.output, file_name(finished.job.number), png)
        return FinishedImage(finished.job, None if self._writes else png, {**result.record, **listed}, trace)


def _row(job: Job) -> str:
    """Return a key by which jobs with equal settings are decoded together."""
    return repr(job.settings)
