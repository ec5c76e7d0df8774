"""Worker of the command ``generate``: it loads the models of a plan and decodes parts of its images."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

from ..app import continuation
from ..app.args import GenerateArgs
from ..app.batch_folder import job_key
from ..app.checkpoints import load_drafter
from ..app.images import to_png
from ..app.jobs import conditions, drawing, new_decoding, warm_up
from ..app.loading import choose_device, open_target
from ..app.saved import CAPTION, SETTINGS_KEY
from ..app.training_domain import domain_warning
from ..app.truncation import RAISE, FittedPrompt, fit_prompt
from ..drafters import JACOBI
from ..engine.decoding import Decoding
from ..engine.job import Job
from ..engine.request import Request
from ..policies import PLAIN, Drafting
from ..recipe import Recipe
from .batch_size import default_batch_size
from .image_list import ImageList
from .png_folder import ImageIdentity
from .totals import image_stats

MAX_CHECKED = 1000
"""Maximum number of prompts that are compared with the model's training data before the first image."""


@dataclass(frozen=True)
class GenerationPlan:
    """Checked arguments of ``generate``, before a model is loaded.

    Attributes:
        args: Arguments as given.
        recipe: Complete recipe. The codes of source images are missing, because only the loaded model can compute them.
        images: Images of the run.
        note: Remark for the user on blank prompts, or "".
    """

    args: GenerateArgs
    recipe: Recipe
    images: ImageList
    note: str = ""


class GenerationFacts(NamedTuple):
    """Facts that are known after the models are loaded.

    Attributes:
        tokens_per_image: Number of tokens that all methods together decode for an image.
        at_once: Number of images to decode at the same time.
        identity: Properties by which existing images are recognised.
        settings: Settings for the report.
        notes: Remarks for the user.
    """

    tokens_per_image: int
    at_once: int
    identity: ImageIdentity
    settings: dict[str, Any]
    notes: list[str]


class FinishedImage(NamedTuple):
    """A finished image.

    Attributes:
        number: Number of the image.
        png: Content of its PNG.
        codes: Codebook indices, row by row.
        stats: Run statistics; with ``compare`` also "plain" (those of plain decoding) and "identical".
        trace: Report, rounds and acceptance map; {} unless the user wants traces.
        note: Remark on the prompt, or "".
    """

    number: int
    png: bytes
    codes: list[list[int]]
    stats: dict[str, Any]
    trace: dict[str, Any]
    note: str = ""


class GenerationProgress(NamedTuple):
    """Item that a worker yields.

    Attributes:
        tokens: Number of tokens that were decoded.
        images: Finished images.
        left_out: Images that are not generated, with the reason.
    """

    tokens: int = 0
    images: Sequence[FinishedImage] = ()
    left_out: dict[int, str] = {}


class GenerationWorker:
    """Worker that loads the models of a plan and decodes images.

    Attributes:
        facts: Facts about the loaded models.

    Raises:
        AdtError: If a file or a prompt does not fit the model.
    """

    def __init__(self, plan: GenerationPlan):
        self.plan = plan
        args = plan.args
        images = plan.images
        target = open_target(plan.recipe.loading, choose_device(args.device))
        sources = continuation.source_codes(args.image_to_image, target) or plan.recipe.sources
        target = continuation.with_sources(target, sources)
        kept = continuation.prefix_codes(args.image_to_image, target) or plan.recipe.kept
        recipe = replace(plan.recipe, kept=kept, sources=sources)
        drafter = load_drafter(recipe.drafter or JACOBI, target) if recipe.drafting.policy.needs_drafter else None
        self._job = Job(target, recipe, drafter)
        self._plain = replace(self._job, recipe=replace(recipe, drafting=Drafting(PLAIN)))
        self._turns = 0
        # The prompts of a long list are checked when they are decoded, so that the first image starts soon.
        self._mode = args.inputs.invalid_prompts if images.resumes else RAISE
        first = [images.entry(number).text for number in images.numbers[:MAX_CHECKED]]
        checked = [images.entry(number).text for number in images.numbers] if self._mode == RAISE else []
        notes = [*self._job.check(checked), domain_warning(target, first), target.codec.note]
        self.facts = self._facts(first, list(dict.fromkeys(notes)))

    def _facts(self, prompts: Sequence[str], notes: list[str]) -> GenerationFacts:
        job = self._job
        target = job.target
        args = self.plan.args
        rows, columns = target.grid
        given = target.tokens(torch.tensor([job.recipe.kept], dtype=torch.long)).shape[1]
        size = columns * target.downsample, rows * target.downsample
        seed = job.recipe.sampling.seed
        fields = {name: value for name, value in job.settings("").items() if name in ("model_name", *Recipe.names())}
        compared = {name: value for name, value in fields.items() if name not in ("model", "drafter", "image_index")}
        identity = ImageIdentity(job_key(job), seed, size, compared)
        settings = Request.of(job, ["x"]).settings()
        return GenerationFacts(
            (2 if args.files.compare else 1) * (target.length - given),
            self._batch_size(prompts),
            identity,
            settings,
            notes,
        )

    def _batch_size(self, prompts: Sequence[str]) -> int:
        """Return the number of images to decode at the same time."""
        args = self.plan.args
        if args.batch.at_once is not None or not self.plan.images.resumes:
            return args.batch.at_once or args.batch.batch_size
        return default_batch_size(self._job, prompts, args.parallel.workers)

    def __call__(self, numbers: Sequence[int]) -> Iterator[GenerationProgress]:
        """Decode images with the chosen method and, with ``compare``, by plain decoding.

        Yields:
            The outcome of each round. With ``compare``, the images come last.
        """
        fitted = {number: self._fit(number) for number in numbers}
        left_out = {number: fit.note for number, fit in fitted.items() if fit.text is None}
        if left_out:
            yield GenerationProgress(left_out=left_out)
        part = _Part(self, {number: fit for number, fit in fitted.items() if fit.text is not None})
        if part.numbers and self.plan.args.files.compare:
            yield from self._compared(part)
        elif part.numbers:
            yield from self._decoded(part, self._job)

    def _fit(self, number: int) -> FittedPrompt:
        return fit_prompt(self._job.check_prompt, self.plan.images.entry(number).text, self._mode)

    def _decoded(self, part: _Part, job: Job) -> Iterator[GenerationProgress]:
        """Decode a part by one method. Yield its images as soon as they are finished, unless methods are compared."""
        decoding = part.decodings[job.recipe.drafting.method] = part.decoding(job)
        done = decoding.done_tokens
        with drawing(decoding) as running:
            for finished in running:
                images = [] if self.plan.args.files.compare else [part.image(job, image) for image in finished]
                yield GenerationProgress(decoding.done_tokens - done, images)
                done = decoding.done_tokens
        decoding.learn_costs()

    def _compared(self, part: _Part) -> Iterator[GenerationProgress]:
        jobs = [self._job, self._plain]
        if not self._turns:
            for job in jobs:
                warm_up(part.decoding(job))
        self._turns += 1
        # The order of the methods alternates, so that changes of the machine's load affect both methods.
        for job in jobs[:: 1 if self._turns % 2 else -1]:
            yield from self._decoded(part, job)
        yield GenerationProgress(
            images=[part.compared(self._job, self._plain, image) for image in range(len(part.numbers))]
        )


class _Part:
    """Images that are decoded together.

    Attributes:
        numbers: Numbers of the images.
        decodings: Decoding by each method, by its name.
    """

    def __init__(self, worker: GenerationWorker, fitted: dict[int, FittedPrompt]):
        self._plan = worker.plan
        self._facts = worker.facts
        self._fitted = fitted
        self.numbers = list(fitted)
        self.decodings: dict[str, Decoding] = {}

    def decoding(self, job: Job) -> Decoding:
        """Return a new decoding of the images."""
        prompts = [fit.text for fit in self._fitted.values() if fit.text is not None]
        indices = [self._plan.images.index(number) for number in self.numbers]
        return new_decoding(job, prompts, indices, self._facts.at_once)

    def image(self, job: Job, image: int) -> FinishedImage:
        """Return a finished image."""
        decoding = self.decodings[job.recipe.drafting.method]
        number = self.numbers[image]
        entry = self._plan.images.entry(number)
        fit = self._fitted[number]
        codes = decoding.grid_codes()[image]
        settings = job.settings(fit.text or "", self._plan.images.index(number), conditions(decoding, image))
        settings[SETTINGS_KEY] = self._facts.identity.key
        if fit.text != entry.text:
            settings[CAPTION] = entry.text
        png = to_png(job.pixels(codes[None])[0], settings)
        trace = _trace(decoding, image) if self._plan.args.files.trace else {}
        return FinishedImage(number, png, codes.tolist(), image_stats(decoding.trace, image), trace, fit.note)

    def compared(self, chosen: Job, plain: Job, image: int) -> FinishedImage:
        """Return a finished image with the statistics of plain decoding."""
        result = self.image(chosen, image)
        other = self.decodings[plain.recipe.drafting.method]
        same = other.grid_codes()[image].tolist() == result.codes
        stats = {**result.stats, "plain": image_stats(other.trace, image), "identical": same}
        return result._replace(stats=stats)


def _trace(decoding: Decoding, image: int) -> dict[str, Any]:
    """Return the trace of an image. Its rounds are numbered from 0, whatever images were decoded before it."""
    trace = decoding.trace.subset([image])
    rounds = [replace(round, index=index) for index, round in enumerate(trace.rounds)]
    return replace(trace, rounds=rounds).to_json()
