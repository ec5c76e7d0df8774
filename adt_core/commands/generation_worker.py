"""Worker of the command ``generate``: it loads the models of a plan and decodes parts of its images."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from ..app import continuation
from ..app.args import GenerateArgs
from ..app.batch_folder import settings_key
from ..app.pipeline import Pipeline
from ..app.saved import CAPTION, SETTINGS_KEY
from ..app.training_domain import domain_warning
from ..app.truncation import RAISE, FittedPrompt, fit_prompt
from ..engine.decoding import Decoding
from ..policies import PLAIN, Drafting
from ..recipe import Recipe
from ..trace import Trace
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
        stats: Run statistics; with ``compare`` also "plain" (of plain decoding) and "identical".
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
        loaded = Pipeline.of(plan.recipe, args.device)
        sources = continuation.source_codes(args.image_to_image, loaded.target) or plan.recipe.sources
        target = continuation.with_sources(loaded.target, sources)
        kept = continuation.kept_codes(args.image_to_image, target) or plan.recipe.kept
        recipe = replace(plan.recipe, kept=kept, sources=sources)
        self._pipeline = replace(loaded, target=target, recipe=recipe)
        self._plain = replace(self._pipeline, recipe=replace(recipe, drafting=Drafting(PLAIN)))
        self._turns = 0
        # The prompts of a long list are checked when they are decoded, so that the first image starts soon.
        self._mode = args.inputs.invalid_prompts if images.resumes else RAISE
        first = [images.entry(number).text for number in images.numbers[:MAX_CHECKED]]
        checked = [images.entry(number).text for number in images.numbers] if self._mode == RAISE else []
        notes = [*self._pipeline.check(checked), domain_warning(target, first), target.codec.note]
        self.facts = self._facts(first, list(dict.fromkeys(notes)))

    def _facts(self, prompts: Sequence[str], notes: list[str]) -> GenerationFacts:
        pipeline = self._pipeline
        target = pipeline.target
        args = self.plan.args
        rows, columns = target.grid
        size = columns * target.downsample, rows * target.downsample
        seed = pipeline.recipe.sampling.seed
        fields = {
            name: value for name, value in pipeline.settings("").items() if name in ("model_name", *Recipe.names())
        }
        compared = {name: value for name, value in fields.items() if name not in ("model", "drafter", "image_index")}
        identity = ImageIdentity(settings_key(pipeline), seed, size, compared)
        request = pipeline.decoding(["x"]).request
        given = int(request.kept.given.sum())
        settings = request.settings()
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
        return default_batch_size(self._pipeline, prompts, args.parallel.workers)

    def __call__(self, numbers: Sequence[int]) -> Iterator[GenerationProgress]:
        """Decode images with the chosen method and, with ``compare``, by plain decoding.

        Yields:
            The outcome of each round. With ``compare``, the images come last.
        """
        texts = {number: self.plan.images.entry(number).text for number in numbers}
        fitted = {number: fit_prompt(self._pipeline.check_prompt, texts[number], self._mode) for number in numbers}
        left_out = {number: fit.note for number, fit in fitted.items() if fit.text is None}
        if left_out:
            yield GenerationProgress(left_out=left_out)
        part = _Part(self, {number: fit for number, fit in fitted.items() if fit.text is not None})
        if part.numbers and self.plan.args.files.compare:
            yield from self._compared(part)
        elif part.numbers:
            yield from self._decoded(part, self._pipeline)

    def _decoded(self, part: _Part, pipeline: Pipeline) -> Iterator[GenerationProgress]:
        """Decode a part by one method. Yield its images as soon as they are finished, unless methods are compared."""
        decoding = part.decodings[pipeline.recipe.drafting.method] = part.decoding(pipeline)
        done = decoding.done_tokens
        with closing(decoding.finished()) as running:
            for finished in running:
                images = [] if self.plan.args.files.compare else [part.image(pipeline, image) for image in finished]
                yield GenerationProgress(decoding.done_tokens - done, images)
                done = decoding.done_tokens

    def _compared(self, part: _Part) -> Iterator[GenerationProgress]:
        pipelines = [self._pipeline, self._plain]
        if not self._turns:
            for pipeline in pipelines:
                part.decoding(pipeline).warm_up()
        self._turns += 1
        # The order of the methods alternates, so that changes of the machine's load affect both methods.
        for pipeline in pipelines[:: 1 if self._turns % 2 else -1]:
            yield from self._decoded(part, pipeline)
        yield GenerationProgress(
            images=[part.compared(self._pipeline, self._plain, image) for image in range(len(part.numbers))]
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

    def decoding(self, pipeline: Pipeline) -> Decoding:
        """Return a new decoding of the images."""
        prompts = [fit.text for fit in self._fitted.values() if fit.text is not None]
        indices = [self._plan.images.index(number) for number in self.numbers]
        return pipeline.decoding(prompts, indices, self._facts.at_once)

    def image(self, pipeline: Pipeline, image: int) -> FinishedImage:
        """Return a finished image."""
        decoding = self.decodings[pipeline.recipe.drafting.method]
        number = self.numbers[image]
        entry = self._plan.images.entry(number)
        fit = self._fitted[number]
        more = {SETTINGS_KEY: self._facts.identity.key} | ({CAPTION: entry.text} if fit.text != entry.text else {})
        result = pipeline.result(decoding, image, fit.text or "", **more)
        trace = _trace(result.trace) if self._plan.args.files.trace else {}
        stats = image_stats(decoding.trace, image)
        return FinishedImage(number, result.png, result.tokens.tolist(), stats, trace, fit.note)

    def compared(self, chosen: Pipeline, plain: Pipeline, image: int) -> FinishedImage:
        """Return a finished image with the statistics of plain decoding."""
        result = self.image(chosen, image)
        other = self.decodings[plain.recipe.drafting.method]
        same = other.grid_codes()[image].tolist() == result.codes
        stats = {**result.stats, "plain": image_stats(other.trace, image), "identical": same}
        return result._replace(stats=stats)


def _trace(trace: Trace) -> dict[str, Any]:
    """Return the trace of an image. Its rounds are numbered from 0, whatever images were decoded before it."""
    rounds = [replace(round, index=index) for index, round in enumerate(trace.rounds)]
    return replace(trace, rounds=rounds).to_json()
