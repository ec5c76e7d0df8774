"""Runner: loaded models and a recipe, and the loop that decodes jobs.

:meth:`Runner.run` is the only loop over decodings: the command line, the nodes and
:class:`~adt_core.run.pipeline.Pipeline` use it.
"""

from __future__ import annotations

import io
import math
from collections.abc import Generator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ..drafters import DRAFTERS, WITH_WINDOW, Drafter, recorded_name
from ..engine.decoding import Decoding
from ..engine.device.threads import use_one_thread_after_fork
from ..engine.request import Request
from ..errors import AdtError, Check, shown
from ..files import write
from ..models.target import EncodedPrompt, Target, suffixed
from ..models.torch_state import own_torch_state
from ..recipe import BUNDLED, Recipe
from ..trace import Trace
from ..version import VERSION
from .images import open_image, to_png, to_rgb
from .jobs import Job
from .stats import image_stats

PART_FACTOR = 8
"""Maximum number of images in one decoding, as a multiple of the batch size. A larger factor keeps more batch slots in
use, but needs more memory."""
SETTINGS_KEY = "settings_key"
"""Name of the digest of all settings (`identity.settings_key`) in records and lines."""
CAPTION = "caption"
"""Name of the complete prompt, in the PNG of an image whose prompt was truncated."""


@dataclass(frozen=True)
class Result:
    """A generated image.

    Attributes:
        prompt: Text of the image.
        tokens: [rows, columns] int64, code of each cell of the image.
        trace: Record of the rounds that generated the image, with statistics (`trace.report()`).
        png: Content of a PNG file with the image and its record.
        record: Settings of the image, as plain JSON types. In a list, also its tokens and statistics.
    """

    prompt: str
    tokens: Tensor
    trace: Trace
    png: bytes
    record: Mapping[str, Any]

    def __repr__(self) -> str:
        rows, columns = self.tokens.shape
        return f"Result({shown(self.prompt)}, {rows} x {columns} tokens, tau {self.trace.report()['tau']:.2f})"

    def _repr_png_(self) -> bytes:
        return self.png

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
            raise AdtError("path.not_png", path=path)
        write(path, self.png)


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
        image: Index of the image in the decoding.
    """

    job: Job
    runner: Runner
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

    def listed(self, key: str, **more: Any) -> dict[str, Any]:
        """Return the entries that the record of an image of a list has, in addition to its settings.

        The PNG of a single image has no such entries: without durations, equal images have equal files.

        Args:
            key: Digest of all settings (`identity.settings_key`).
            **more: Further statistics.
        """
        return {"tokens": self.codes, "figures": {**self.figures, **more}, SETTINGS_KEY: key}

    def result(self, texts: Mapping[str, str] | None = None, **more: Any) -> Result:
        """Return the result by :meth:`Runner.result`, which gets these arguments."""
        caption = {CAPTION: self.job.prompt} if self.job.text != self.job.prompt else {}
        return self.runner.result(self.decoding, self.image, self.job.text, texts, **caption, **more)


class Progress(NamedTuple):
    """Progress of :meth:`Runner.run`: the beginning of a decoding, or one of its rounds.

    Attributes:
        decoding: Decoding of the current jobs.
        jobs: Jobs of the decoding, in the order of its images.
        done: Number of decided tokens of all jobs of the run.
        total: Number of tokens of all jobs of the run.
        finished: Images that the round has finished. Often empty.
    """

    decoding: Decoding
    jobs: Sequence[Job]
    done: int
    total: int
    finished: Sequence[Finished] = ()


@dataclass(frozen=True)
class Runner:
    """Loaded models, and the settings of the images to generate. The drafter is None for plain decoding."""

    target: Target
    recipe: Recipe = Recipe()
    drafter: Drafter | None = None

    def run(
        self,
        jobs: Sequence[Job],
        batch_size: int = 1,
        check: Check | None = None,
        residency: Residency = Resident(),
        kept: Tensor | None = None,
        part_factor: int = PART_FACTOR,
    ) -> Generator[Progress, None, None]:
        """Decode the images of jobs, and yield the progress of every round. It can be closed at any time.

        Args:
            jobs: Images to generate. The prompts must fit the model, see `check` and `jobs.fit_jobs`.
            batch_size: Maximum number of images that are decoded at the same time.
            check: Cancellation callback. It is called often, and raises an exception to stop.
            kept: Codes [jobs, P] of the first P cells; -1 for cells to generate (default: the recipe's).
            part_factor: As `PART_FACTOR`.

        Raises:
            AdtError: If settings contradict each other, or memory is too small.
        """
        if type(batch_size) is not int or batch_size < 1:
            raise AdtError("batch_size.too_small", batch_size=shown(batch_size))
        total = len(jobs) * self.target.length
        for part in split(len(jobs), batch_size, factor=part_factor):
            mine = jobs[part.start : part.stop]
            with residency.for_texts():
                own = None if kept is None else kept[part.start : part.stop]
                decoding = self.decoding(
                    [job.text for job in mine],
                    [job.index for job in mine],
                    min(batch_size, len(mine)),
                    own,
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
                raise AdtError(
                    "prompts.at", error=error, number=number, count=len(prompts), prompt=shown(prompt)
                ) from error
        if self.recipe.negative_prompt.strip():
            self.target.check_prompt(self.recipe.negative_prompt)
        return list(filter(None, notes))

    def check_prompt(self, prompt: str) -> str:
        """Raise AdtError if a prompt is empty or too long. Return a remark for the user, or ""."""
        return self.target.check_prompt(suffixed(prompt, self.recipe.suffix))

    def encode(self, prompts: Sequence[str]) -> list[EncodedPrompt]:
        """Encode prompts with the recipe's suffix. Equal prompts are encoded only once."""
        rows = {prompt: self.target.encode_prompt(suffixed(prompt, self.recipe.suffix)) for prompt in set(prompts)}
        return [rows[prompt] for prompt in prompts]

    @own_torch_state()
    def decoding(
        self,
        prompts: Sequence[str],
        image_indices: Sequence[int] | None = None,
        batch_size: int | None = None,
        kept: Tensor | None = None,
        check: Check | None = None,
        seeds: Sequence[int] | None = None,
    ) -> Decoding:
        """Return a decoding of one image per prompt. No round is decoded yet.

        Args:
            prompts: Prompt of each image, without the recipe's suffix.
            image_indices: Index of each image's noise (default: the recipe's). Images with the same prompt and seed
                differ only if their indices differ.
            batch_size: Maximum number of images that are decoded at the same time (default: all).
            kept: As in :meth:`run`.
            check: As in :meth:`run`.
            seeds: Seed of each image (default: the recipe's).

        Raises:
            AdtError: If a prompt is empty or too long, or settings contradict each other.
        """
        use_one_thread_after_fork()
        recipe = self.recipe
        negative = self.target.encode_prompt(recipe.negative_prompt) if recipe.negative_prompt.strip() else None
        request = Request.of(
            self.target,
            recipe,
            self.encode(prompts),
            self.drafter if recipe.drafting.policy.needs_drafter else None,
            negatives=[negative] * len(prompts) if negative is not None else None,
            image_indices=image_indices if image_indices is not None else [recipe.image_index] * len(prompts),
            seeds=seeds,
            kept=kept if kept is not None else torch.tensor([recipe.kept] * len(prompts), dtype=torch.long),
            check=check,
        )
        return Decoding(request, batch_size)

    def result(
        self, decoding: Decoding, image: int, prompt: str, texts: Mapping[str, str] | None = None, **more: Any
    ) -> Result:
        """Return the result of a finished image. This decodes the pixels, which takes a pass through the codec.

        Args:
            image: Index of the image in the decoding.
            prompt: Prompt of the image, without the recipe's suffix.
            texts: Further text chunks of the PNG, by keyword.
            **more: Further entries of the record.
        """
        codes = decoding.grid_codes()[image]
        seed, index = decoding.request.keys[image]
        record = {**self.settings(prompt, index, decoding.conditions()), "seed": seed}
        if self.recipe.lantern is not None:
            record["figures"] = {"substitution_rate": image_stats(decoding.trace, image)["substitution_rate"]}
        record |= more
        pixels = self.target.pixels(codes[None], decoding.request.check)[0]
        return Result(prompt, codes, decoding.trace.subset([image]), to_png(pixels, record, texts), record)

    def settings(self, prompt: str, image_index: int = 0, conditions: Mapping[str, Any] = {}) -> dict:
        """Return the metadata of an image's PNG, as plain JSON types.

        ``generate --from-png`` reproduces the image from the prompt, the settings of the recipe, and the device that
        generates the noise. The other values, such as `Decoding.conditions`, are information for users.
        """
        recipe = self.recipe.as_loaded(self.target.loaded).flat()
        return {
            "prompt": prompt,
            **recipe,
            "model": public_name(recipe["model"]),
            "drafter": public_name(recorded_name(self.drafter, recipe["drafter"])),
            "model_name": self.target.name,
            "device": self.target.decoder.embedding.device.type,
            "image_index": image_index,
            "image_tokens": self.target.length,
            **conditions,
            "versions": {"adt-tree": VERSION, "torch": torch.__version__, "numpy": np.__version__},
        }


def public_name(path: str | None) -> str | None:
    """Return the last part of a path, because files that others may read must not name folders of this machine.

    The result differs from the names of models and drafters without files, such as "bundled".
    """
    if path is None or path in (BUNDLED, BUNDLED + WITH_WINDOW, *DRAFTERS):
        return path
    name = PurePath(path).name
    return f"./{name}" if name in (BUNDLED, BUNDLED + WITH_WINDOW, *DRAFTERS) else name


def split(images: int, batch_size: int, workers: int = 1, factor: int = PART_FACTOR) -> list[range]:
    """Divide images into parts. Each part becomes one decoding, so the memory of a decoding is bounded.

    For example, 20 images with `batch_size=2` are divided into two parts: images 0 to 15, and images 16 to 19.

    Args:
        workers: Number of workers that share the parts. Each worker gets at least one part if there are enough images.
        factor: Maximum size of a part, as a multiple of `batch_size`.

    Returns:
        For each part, the indices of its images.
    """
    share = math.ceil(images / max(workers, 1))
    size = 1 if batch_size == 1 else max(1, min(factor * batch_size, share))
    return [range(images)[first : first + size] for first in range(0, images, size)]
