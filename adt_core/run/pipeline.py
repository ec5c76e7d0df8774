"""The front door of the library: load a model once, and generate images from texts.

    from adt_core import Pipeline

    pipe = Pipeline.load("bundled")
    result = pipe.generate("a red house", seed=1)
    result.save("house.png")

Settings that the caller does not name have the values that the model's authors recommend, and the default drafter and
method, as on the command line and in the nodes.

:meth:`Pipeline.run` is the only loop over decodings: the command line, the nodes and :meth:`Pipeline.stream` use it.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol, overload

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ..drafters import Drafter, load_drafter
from ..engine.decoding import Decoding
from ..engine.request import Request
from ..errors import AdtError, Check, command, shown
from ..files import write
from ..models.load import find_published, load_target
from ..models.target import EncodedPrompt, Target, suffixed
from ..recipe import AUTO, BUNDLED, Loading, Recipe
from ..trace import Trace
from ..version import VERSION
from .checkpoints import default_folder
from .images import open_image, to_png, to_rgb
from .jobs import Job, JobList, PromptEntry
from .png_settings import read_values
from .previews import preview
from .resolve import Hardware, resolve_recipe
from .stats import image_stats

PART_FACTOR = 8
"""Maximum number of images in one decoding, as a multiple of the batch size.

With a larger factor, all batch slots are in use for a larger share of the time, but the decoding needs more memory."""
CAPTION = "caption"
"""Name of the complete prompt, in the PNG of an image whose prompt was truncated."""
FIXED = ("model", "drafter", *Loading.fields())
"""Options that :meth:`Pipeline.load` determines."""


@dataclass(frozen=True)
class Result:
    """A generated image.

    Attributes:
        prompt: Text of the image.
        tokens: [rows, columns] int64, code of each cell of the image.
        trace: Record of the rounds that generated the image, with statistics (`trace.report()`).
        png: Content of a PNG file with the image and its record.
        record: Settings, tokens and statistics of the image, as plain JSON types.
    """

    prompt: str
    tokens: Tensor
    trace: Trace
    png: bytes
    record: Mapping[str, Any]

    @property
    def image(self) -> Image.Image:
        """The image, RGB."""
        with open_image(io.BytesIO(self.png)) as image:
            return to_rgb(image)

    def save(self, path: str | Path) -> None:
        """Write a PNG whose metadata contains the settings, so that `Pipeline.from_png` can repeat the image.

        Raises:
            AdtError: If the path does not end in ".png", or the file can't be written.
        """
        path = Path(path)
        if path.suffix.lower() != ".png":
            raise AdtError(f"`path`: '{path}' must end in .png, because the settings are stored in the PNG.")
        write(path, self.png)


class Step(NamedTuple):
    """Progress of :meth:`Pipeline.stream` after one round.

    Attributes:
        done: Number of tokens of all images that are decided.
        total: Number of tokens of all images.
        results: Images that the round has finished, by their index in the list of prompts. Often empty.
        preview: Function that returns the complete rows of the unfinished images, by their index in the list of
            prompts. It takes the time of a pass through the image codec. Call it before the next step.
    """

    done: int
    total: int
    results: dict[int, Result]
    preview: Callable[[], dict[int, Image.Image]]


class Residency(Protocol):
    """Owner of the weights, such as ComfyUI's memory management. It loads them for the time that a run needs them."""

    def for_texts(self) -> AbstractContextManager[object]:
        """Load the text encoder."""
        ...

    def for_decoding(self, decoding: Decoding) -> AbstractContextManager[object]:
        """Load all other weights, with memory for a decoding."""
        ...


class Resident:
    """Residency of weights that stay where they are."""

    def for_texts(self) -> AbstractContextManager[object]:
        return nullcontext()

    def for_decoding(self, decoding: Decoding) -> AbstractContextManager[object]:
        return nullcontext()


@dataclass(frozen=True)
class Finished:
    """An image that a round has finished.

    Attributes:
        job: The image's job.
        pipeline: Pipeline that has decoded the image.
        decoding: Decoding of the image.
        image: Index of the image in the decoding.
    """

    job: Job
    pipeline: Pipeline
    decoding: Decoding
    image: int

    @property
    def codes(self) -> list[list[int]]:
        """Codes of the image, row by row."""
        return self.decoding.grid_codes()[self.image].tolist()

    @property
    def figures(self) -> dict[str, float]:
        """Statistics of the image."""
        return image_stats(self.decoding.trace, self.image)

    def result(self, texts: Mapping[str, str] | None = None, **more: Any) -> Result:
        """Return the result. This decodes the pixels, which takes a pass through the codec.

        Args:
            texts: Further text chunks of the PNG, by keyword.
            **more: Further entries of the record.
        """
        caption = {CAPTION: self.job.prompt} if self.job.text != self.job.prompt else {}
        return self.pipeline.result(self.decoding, self.image, self.job.text, texts, **caption, **more)


class Progress(NamedTuple):
    """Progress of :meth:`Pipeline.run`: the beginning of a decoding, or one of its rounds.

    Attributes:
        decoding: Decoding of the current jobs.
        jobs: Jobs of the decoding, in the order of its images.
        done: Number of tokens of all jobs of the run that are decided.
        total: Number of tokens of all jobs of the run.
        finished: Images that the round has finished. Often empty.
    """

    decoding: Decoding
    jobs: Sequence[Job]
    done: int
    total: int
    finished: Sequence[Finished] = ()


@dataclass(frozen=True)
class Pipeline:
    """Loaded models, and the settings of the images to generate. Use :meth:`load` to make one.

    Attributes:
        target: Model that generates the images, with its codec.
        recipe: Settings of the images.
        drafter: Drafter; None for plain decoding.
        given: Settings that the user has chosen, by option name; the others follow from them. None for all settings of
            `recipe`.
    """

    target: Target
    recipe: Recipe = Recipe()
    drafter: Drafter | None = None
    given: Mapping[str, Any] | None = None

    @classmethod
    def load(
        cls,
        model: str | Path = BUNDLED,
        drafter: str | Path | None = None,
        device: str | torch.device = AUTO,
        dtype: str | None = None,
        weights: str | None = None,
        **loading: Any,
    ) -> Pipeline:
        """Load a model.

        Args:
            model: "bundled", the name of an installed model in docs/models.md, or a folder.
            drafter: Folder of a drafter network, "jacobi", or "FOLDER+jacobi". None chooses the bundled drafter for the
                bundled model, else the published drafter if it is installed, else "jacobi".
            device: "auto", or the name of a torch device such as "cpu", "cuda" or "cuda:1". "auto" chooses CUDA if
                there is a CUDA device, else the CPU.
            dtype: "auto", "float32", "float64", "bfloat16" or "float16". "auto", the default, is float32 for the
                bundled model and on a CPU, else bfloat16 or what the device computes well.
            weights: "int8", "fp8" or "int4", to store the transformer's matrices with fewer bits. None stores them in
                `dtype`.
            **loading: Other options of :class:`~adt_core.recipe.Loading`, such as ``size=(512, 512)``.

        Raises:
            AdtError: If the model is not installed or can't be read, or an option is not valid.
        """
        _check_names(loading, Loading.fields())
        given = {"model": find_model(model), "drafter": drafter and str(drafter), "dtype": dtype, "weights": weights}
        given = {name: value for name, value in {**loading, **given}.items() if value is not None}
        hardware = Hardware.of(device)
        return replace(cls.of(resolve_recipe(given, hardware), hardware.device), given=given)

    @classmethod
    def of(cls, recipe: Recipe, device: torch.device) -> Pipeline:
        """Load the models of a complete recipe, as :func:`~adt_core.run.resolve.resolve_recipe` returns it.

        Raises:
            AdtError: If a model can't be read.
        """
        loading = recipe.loading
        dtype = getattr(torch, loading.dtype)
        target = load_target(loading.model, device, dtype, weights=loading.weights, exact=loading.exact == "on")
        target = target.sized(*loading.size) if loading.size else target
        return cls(with_sources(target, recipe.sources), recipe)._with_drafter()

    def _with_drafter(self) -> Pipeline:
        """Return this pipeline with the recipe's drafter, if the method needs one and none is loaded."""
        if self.drafter is not None or not self.recipe.drafting.policy.needs_drafter or self.recipe.drafter is None:
            return self
        return replace(self, drafter=load_drafter(self.recipe.drafter, self.target))

    @classmethod
    def from_png(cls, path: str | Path, device: str | torch.device = AUTO, **paths: str | Path) -> Result:
        """Generate the image of a PNG again, from the settings in the PNG.

        Args:
            path: PNG that this package or ComfyUI with this pack has saved.
            device: As in :meth:`load`.
            **paths: `model` and `drafter`. They are needed if the PNG names files that are not part of this package,
                because these paths are not trusted.

        Raises:
            AdtError: If the PNG contains no valid settings.
        """
        _check_names(paths, ("model", "drafter"))
        hardware = Hardware.of(device)
        given = {"device": str(device), **paths}
        saved = {**read_values(Path(path), given), **{name: str(value) for name, value in paths.items()}}
        return cls.of(resolve_recipe(saved, hardware), hardware.device).generate(saved["prompt"])

    def with_options(self, **options: Any) -> Pipeline:
        """Return a pipeline with the same models and other settings.

        Args:
            **options: Options of a recipe by name, such as ``seed=1`` or ``method="adt-tree"``. docs/command_line.md
                lists them.

        Raises:
            AdtError: If an option is unknown or not valid.
        """
        if not options:
            return self
        fixed = [name for name in options if name in FIXED]
        if fixed:
            raise AdtError(f"`{fixed[0]}` is an option of Pipeline.load; give it there.")
        _check_names(options, set(Recipe.names()) - set(FIXED))
        given = {**(self.recipe.flat() if self.given is None else self.given), **options}
        recipe = resolve_recipe(given, Hardware.of(self.target.decoder.embedding.device), self.target.published)
        recipe.drafting.check_options(options)
        return replace(self, recipe=recipe, given=given)._with_drafter()

    @overload
    def generate(self, prompt: str, batch_size: int = 1, check: Check | None = None, **options) -> Result: ...
    @overload
    def generate(
        self, prompt: Sequence[str], batch_size: int = 1, check: Check | None = None, **options
    ) -> list[Result]: ...
    def generate(self, prompt, batch_size=1, check=None, **options):
        """Generate one image for each text.

        Args:
            prompt: A text, or a list of texts.
            batch_size: Maximum number of images that are decoded at the same time. The default is 1, because drafting
                saves most time with one image.
            check: Cancellation callback. It is called often, and raises an exception to stop.
            **options: As in :meth:`stream`.

        Returns:
            The result of a text, or the results of a list of texts, in the same order.

        Raises:
            AdtError: If a text is empty or too long, or an option is unknown or not valid.
        """
        texts = [prompt] if isinstance(prompt, str) else list(prompt)
        results: dict[int, Result] = {}
        for step in self.stream(texts, batch_size, check, **options):
            results |= step.results
        return results[0] if isinstance(prompt, str) else [results[index] for index in sorted(results)]

    def stream(
        self,
        prompts: Sequence[str],
        batch_size: int = 1,
        check: Check | None = None,
        seed: int | Sequence[int] | None = None,
        same_noise: bool = False,
        num_images_per_prompt: int = 1,
        **options: Any,
    ) -> Generator[Step, None, None]:
        """Generate images for texts, and yield a step after every round. It can be closed at any time.

        Args:
            prompts: List of texts.
            batch_size: As in :meth:`generate`.
            check: As in :meth:`generate`.
            seed: Seed of all images, or one seed per text. With one seed for all, the noise of an image also depends on
                its number in the list, so equal texts give different images.
            same_noise: Whether the images of all texts use the same noise.
            num_images_per_prompt: Number of images of each text. The images of the first text come first.
            **options: As in :meth:`with_options`.

        Raises:
            AdtError: As in :meth:`generate`. It is raised before the first step.
        """
        if isinstance(prompts, str):
            raise AdtError(f"`prompts` is the text {shown(prompts)}, but a list of texts was expected; put it in [].")
        seeds = _seeds(seed, len(prompts))
        pipeline = self.with_options(**options, **({} if seed is None or seeds[:1] != [None] else {"seed": seed}))
        pipeline.check(prompts)
        entries = [PromptEntry(str(number), text, own) for number, (text, own) in enumerate(zip(prompts, seeds), 1)]
        jobs = JobList(entries, pipeline.recipe, num_images_per_prompt, same_noise=same_noise)
        for progress in pipeline.run(list(jobs), batch_size, check):
            if progress.decoding.trace.rounds or progress.finished:
                results = {finished.job.number - 1: finished.result() for finished in progress.finished}
                yield Step(progress.done, progress.total, results, partial(_previews, progress))

    def run(
        self,
        jobs: Sequence[Job],
        batch_size: int = 1,
        check: Check | None = None,
        residency: Residency = Resident(),
        prefix: Tensor | None = None,
        part_factor: int = PART_FACTOR,
    ) -> Generator[Progress, None, None]:
        """Decode the images of jobs, and yield the progress of every round. It can be closed at any time.

        Args:
            jobs: Images to generate. The prompts must fit the model, see `check` and `jobs.fit`.
            batch_size: Maximum number of images that are decoded at the same time.
            check: Cancellation callback. It is called often, and raises an exception to stop.
            residency: Owner of the weights.
            prefix: Codes [jobs, P] of the first P cells, which are not generated (default: the recipe's).
            part_factor: Maximum number of images in one decoding, as a multiple of the batch size.

        Raises:
            AdtError: If settings contradict each other, or memory is too small.
        """
        if type(batch_size) is not int or batch_size < 1:
            raise AdtError(f"`batch_size` is {shown(batch_size)}; it must be a whole number of 1 or more.")
        total = len(jobs) * self.target.length
        for part in split(len(jobs), batch_size, factor=part_factor):
            mine = jobs[part.start : part.stop]
            with residency.for_texts():
                kept = None if prefix is None else prefix[part.start : part.stop]
                decoding = self.decoding(
                    [job.text for job in mine],
                    [job.index for job in mine],
                    min(batch_size, len(mine)),
                    kept,
                    check,
                    [job.seed for job in mine],
                )
            before = part.start * self.target.length
            with residency.for_decoding(decoding), closing(decoding.finished()) as rounds:
                yield Progress(decoding, mine, before + decoding.done_tokens, total)
                for images in rounds:
                    finished = [Finished(mine[image], self, decoding, image) for image in images]
                    yield Progress(decoding, mine, before + decoding.done_tokens, total, finished)

    def check(self, prompts: Sequence[str]) -> list[str]:
        """Raise AdtError if a prompt or the negative prompt is empty or too long. Return remarks for the user."""
        notes = []
        for number, prompt in enumerate(prompts, start=1):
            try:
                notes.append(self.check_prompt(prompt))
            except AdtError as error:
                if len(prompts) == 1:
                    raise
                where = f"number {number} of {len(prompts)}, {shown(prompt)}"
                raise AdtError(f"`prompts`: {where}: {error.template}") from error
        if self.recipe.negative.strip():
            self.target.check_prompt(self.recipe.negative)
        return list(filter(None, notes))

    def check_prompt(self, prompt: str) -> str:
        """Raise AdtError if a prompt is empty or too long. Return a remark for the user, or ""."""
        return self.target.check_prompt(suffixed(prompt, self.recipe.suffix))

    def encode(self, prompts: Sequence[str]) -> list[EncodedPrompt]:
        """Encode prompts with the recipe's suffix. Equal prompts are encoded only once."""
        rows = {prompt: self.target.encode_prompt(suffixed(prompt, self.recipe.suffix)) for prompt in set(prompts)}
        return [rows[prompt] for prompt in prompts]

    def decoding(
        self,
        prompts: Sequence[str],
        image_indices: Sequence[int] | None = None,
        batch_size: int | None = None,
        prefix: Tensor | None = None,
        check: Check | None = None,
        seeds: Sequence[int] | None = None,
    ) -> Decoding:
        """Return a decoding of one image per prompt. No round is decoded yet.

        Args:
            prompts: Prompt of each image, without the recipe's suffix.
            image_indices: Index of each image among the images of its prompt (default: the recipe's). Images with the
                same prompt and seed differ only if their indices differ.
            batch_size: Maximum number of images that are decoded at the same time (default: all).
            prefix: Codes [images, P] of the first P cells, which are not generated (default: the recipe's).
            check: Cancellation callback. It is called often, and raises an exception to stop.
            seeds: Seed of each image (default: the recipe's).

        Raises:
            AdtError: If a prompt is empty or too long, or settings contradict each other.
        """
        recipe = self.recipe
        negative = self.target.encode_prompt(recipe.negative) if recipe.negative.strip() else None
        request = Request.of(
            self.target,
            recipe,
            self.encode(prompts),
            self.drafter if recipe.drafting.policy.needs_drafter else None,
            negatives=[negative] * len(prompts) if negative is not None else None,
            image_indices=image_indices if image_indices is not None else [recipe.image_index] * len(prompts),
            seeds=seeds,
            prefix=prefix if prefix is not None else torch.tensor([recipe.kept] * len(prompts), dtype=torch.long),
            check=check,
        )
        return Decoding(request, batch_size)

    def result(
        self, decoding: Decoding, image: int, prompt: str, texts: Mapping[str, str] | None = None, **more: Any
    ) -> Result:
        """Return the result of a finished image of a decoding.

        Args:
            image: Index of the image in the decoding.
            prompt: Prompt of the image, without the recipe's suffix.
            texts: Further text chunks of the PNG, by keyword.
            **more: Further entries of the record.
        """
        codes = decoding.grid_codes()[image]
        seed, index = decoding.request.keys[image]
        record = {
            **self.settings(prompt, index, decoding.conditions()),
            "seed": seed,
            "tokens": codes.tolist(),
            "figures": image_stats(decoding.trace, image),
            **more,
        }
        pixels = self.target.pixels(codes[None], decoding.request.check)[0]
        return Result(prompt, codes, decoding.trace.subset([image]), to_png(pixels, record, texts), record)

    def settings(self, prompt: str, image_index: int = 0, conditions: Mapping[str, Any] = {}) -> dict:
        """Return the metadata of an image's PNG, as plain JSON types.

        ``generate --from-png`` reproduces the image from the prompt, the settings of the recipe, and the device that
        generates the noise. The other values are information for users. `conditions` is the result of
        `Decoding.conditions`.
        """
        return {
            "prompt": prompt,
            **self.recipe.as_loaded(self.target.loaded).flat(),
            "model_name": self.target.name,
            "device": self.target.decoder.embedding.device.type,
            "image_index": image_index,
            "image_tokens": self.target.length,
            **conditions,
            "versions": {"adt-tree": VERSION, "torch": torch.__version__, "numpy": np.__version__},
        }


def find_model(model: str | Path) -> str:
    """Return "bundled", or the folder of a model.

    Args:
        model: "bundled", a path, or the name of a published model that is installed in the default folder.

    Raises:
        AdtError: If there is no such file and no published model of this name is installed.
    """
    if model == BUNDLED or Path(model).exists():
        return str(model)
    row = find_published(str(model))
    if row is None:
        raise AdtError(f"`model`: there is no file or folder {shown(str(model), 300)}; docs/models.md lists names.")
    folder = default_folder() / row.name
    if not folder.exists():
        remedy = f"run this command: {command(f'download {row.name}')}"
        raise AdtError(f"`model`: {row.name} is not in {default_folder()}; {remedy}.")
    return str(folder)


def _check_names(given: Mapping[str, Any], valid: Iterable[str]) -> None:
    """Raise AdtError if an option is unknown. The message lists the valid names."""
    unknown = [name for name in given if name not in valid]
    if unknown:
        names = ", ".join(sorted(valid))
        raise AdtError(f"There is no option {shown(unknown[0])}; use one of {names}.")


def with_sources(target: Target, flat: tuple[int, ...]) -> Target:
    """Return the target with source images as part of its prompts.

    Args:
        flat: Source images as `app.continuation.source_codes` returns them; () for none.

    Raises:
        AdtError: If the numbers are not valid images, or the target does not support source images.
    """
    images = []
    while flat:
        rows, columns, *rest = (*flat, 0, 0)[: max(len(flat), 2)]
        codes = rest[: rows * columns]
        if not codes or len(codes) < rows * columns or max(codes) >= target.num_codes:
            raise AdtError("`sources` has no images of this model's tokens; use the original PNG.")
        images.append(torch.tensor(codes).view(rows, columns))
        flat = tuple(rest[len(codes) :])
    return target.with_sources(images) if images else target


def _seeds(seed: int | Sequence[int] | None, count: int) -> list[int | None]:
    """Return the seed that each text has for itself.

    Args:
        seed: One seed for all texts, one seed per text, or None.
        count: Number of texts.
    """
    if seed is None or not isinstance(seed, Sequence):
        return [None] * count
    if len(seed) != count:
        raise AdtError(f"`seed` has {len(seed)} seeds for {count} texts; give one for each, or one for all.")
    option = Recipe.options()["seed"]
    for value in seed:
        option.check("seed", value)
    return list(seed)


def split(images: int, batch_size: int, workers: int = 1, factor: int = PART_FACTOR) -> list[range]:
    """Divide images into parts. Each part becomes one decoding, so the memory of a decoding is bounded.

    For example, 20 images with `batch_size=2` are divided into two parts: images 0 to 15, and images 16 to 19.

    Args:
        images: Number of images.
        batch_size: Maximum number of images that are decoded at the same time. Within a part, the next image takes the
            batch slot of a finished image.
        workers: Number of workers that share the parts. Each worker gets at least one part if there are enough images.
        factor: Maximum size of a part, as a multiple of `batch_size`.

    Returns:
        For each part, the indices of its images.
    """
    share = math.ceil(images / max(workers, 1))
    size = 1 if batch_size == 1 else max(1, min(factor * batch_size, share))
    return [range(images)[first : first + size] for first in range(0, images, size)]


def _previews(progress: Progress) -> dict[int, Image.Image]:
    """Return the unfinished images of a decoding between two rounds, by their index among all images."""
    decoding = progress.decoding
    return {progress.jobs[image].number - 1: preview(decoding, image) for image in decoding.active}
