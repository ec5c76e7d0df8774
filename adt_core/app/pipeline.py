"""The front door of the library: load a model once, and generate images from texts.

    from adt_core import Pipeline

    pipe = Pipeline.load("bundled")
    result = pipe.generate("a red house", seed=1)
    result.save("house.png")

Settings that the caller does not name have the values that the model's authors recommend, and the default drafter and
method, as on the command line and in the nodes.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, overload

import torch
from PIL import Image
from torch import Tensor

from ..drafters import JACOBI
from ..engine.decoding import Decoding
from ..engine.job import Job
from ..errors import AdtError, Check, command, shown
from ..files import write
from ..models.target import Target
from ..recipe import BUNDLED, Loading, Recipe
from ..trace import Trace
from .checkpoints import find_published, load_drafter
from .download import default_folder
from .images import open_image, to_png, to_rgb, to_uint8
from .jobs import conditions, new_decoding, rounds, split
from .loading import choose_device, complete, open_target
from .png_settings import read_values

FIXED = ("model", "drafter", *Loading.fields())
"""Options that :meth:`Pipeline.load` determines."""


@dataclass(frozen=True)
class Result:
    """A generated image.

    Attributes:
        prompt: Text of the image.
        tokens: [rows, columns] int64, code of each cell of the image.
        trace: Record of the rounds that generated the image, with statistics (`trace.report()`).
        png: Content of a PNG file with the image and its settings.
    """

    prompt: str
    tokens: Tensor
    trace: Trace
    png: bytes

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
        preview: Function that returns the unfinished images, by their index in the list of prompts. It takes the time
            of a pass through the image codec. Call it before the next step.
    """

    done: int
    total: int
    results: dict[int, Result]
    preview: Callable[[], dict[int, Image.Image]]


class Pipeline:
    """A loaded model with a drafter. Use :meth:`load` to make one.

    Attributes:
        target: Model that generates the images.
    """

    def __init__(self, target: Target, given: Mapping[str, Any], device: str):
        """Keep a loaded target and the settings that all images have in common.

        Args:
            target: Loaded target.
            given: Settings by option name. The option `drafter` names the drafter; it is loaded at the first use.
            device: "auto", "cpu" or "cuda", for the defaults of the settings.
        """
        self.target = target
        self._given = dict(given)
        self._device = device
        self._drafters: dict[str, Any] = {}

    @classmethod
    def load(
        cls,
        model: str | Path = BUNDLED,
        drafter: str | Path | None = None,
        device: str = "auto",
        dtype: str | None = None,
        weights: str | None = None,
        **loading: Any,
    ) -> Pipeline:
        """Load a model.

        Args:
            model: "bundled", the name of an installed model in docs/models.md, or a folder.
            drafter: Folder of a drafter network, "jacobi", or "FOLDER+jacobi". None chooses the bundled drafter for the
                bundled model, else the published drafter if it is installed, else "jacobi".
            device: "auto", "cpu" or "cuda". "auto" chooses CUDA if there is a CUDA device.
            dtype: "float32", "float64", "bfloat16" or "float16". The default is float32.
            weights: "int8", "fp8" or "int4", to store the transformer's matrices with fewer bits. None stores them in
                `dtype`.
            **loading: Other options of :class:`~adt_core.recipe.Loading`, such as ``size=(512, 512)``.

        Raises:
            AdtError: If the model is not installed or can't be read, or an option is not valid.
        """
        _check_names(loading, Loading.fields())
        given = {"model": find_model(model), "drafter": drafter and str(drafter), "dtype": dtype, "weights": weights}
        given = {name: value for name, value in {**loading, **given}.items() if value is not None}
        recipe = complete(given, device)
        return cls(open_target(recipe.loading, choose_device(device)), given, device)

    @classmethod
    def from_png(cls, path: str | Path, device: str = "auto", **paths: str | Path) -> Result:
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
        saved = {**read_values(Path(path), paths), **{name: str(value) for name, value in paths.items()}}
        prompt = saved.pop("prompt")
        target = open_target(complete(saved, device).loading, choose_device(device))
        return cls(target, saved, device).generate(prompt)

    @overload
    def generate(self, prompt: str, batch_size: int | None = None, check: Check | None = None, **options) -> Result: ...
    @overload
    def generate(
        self, prompt: Sequence[str], batch_size: int | None = None, check: Check | None = None, **options
    ) -> list[Result]: ...
    def generate(self, prompt, batch_size=None, check=None, **options):
        """Generate one image for each text.

        Args:
            prompt: A text, or a list of texts.
            batch_size: Maximum number of images that are decoded at the same time. The default is 1, because drafting
                saves most time with one image.
            check: Cancellation callback. It is called often, and raises an exception to stop.
            **options: Options of a recipe by name, such as ``seed=1`` or ``method="adt-tree"``. docs/command_line.md
                lists them.

        Returns:
            The result of a text, or the results of a list of texts, in the same order.

        Raises:
            AdtError: If a text is empty or too long, or an option is unknown or not valid.
        """
        texts = [prompt] if isinstance(prompt, str) else list(prompt)
        results: dict[int, Result] = {}
        for step in self.stream(texts, batch_size, check, **options):
            results |= step.results
        return results[0] if isinstance(prompt, str) else [results[index] for index in range(len(texts))]

    def stream(
        self, prompts: Sequence[str], batch_size: int | None = None, check: Check | None = None, **options: Any
    ) -> Generator[Step, None, None]:
        """Generate one image for each text, and yield a step after every round. It can be closed at any time.

        Args:
            prompts: List of texts.
            batch_size: As in :meth:`generate`.
            check: As in :meth:`generate`.
            **options: As in :meth:`generate`.

        Raises:
            AdtError: As in :meth:`generate`. It is raised before the first step.
        """
        if isinstance(prompts, str):
            raise AdtError(f"`prompts` is the text {shown(prompts)}, but a list of texts was expected; put it in [].")
        job = self.job(**options)
        job.check(prompts)
        at_once = 1 if batch_size is None else batch_size
        if at_once < 1:
            raise AdtError(f"`batch_size` is {shown(batch_size)}; it must be 1 or more.")
        total = len(prompts) * self.target.length
        before = 0
        for part in split(len(prompts), at_once):
            texts = [prompts[index] for index in part]
            indices = [job.recipe.image_index] * len(texts)
            decoding = new_decoding(job, texts, indices, min(at_once, len(texts)), check=check)
            for finished in rounds(decoding):
                results = {part[image]: _result(job, decoding, texts, image) for image in finished}
                yield Step(before + decoding.done_tokens, total, results, partial(_previews, job, decoding, part))
            before += len(texts) * self.target.length

    def job(self, **options: Any) -> Job:
        """Return the recipe that options describe, with the loaded models.

        Args:
            **options: As in :meth:`generate`.

        Raises:
            AdtError: If an option is unknown or not valid.
        """
        fixed = [name for name in options if name in FIXED]
        if fixed:
            raise AdtError(f"`{fixed[0]}` is an option of Pipeline.load; give it there.")
        _check_names(options, set(Recipe.names()) - set(FIXED))
        recipe = complete({**self._given, **options}, self._device, strict=bool(options))
        name = recipe.drafter or JACOBI
        if recipe.drafting.policy.needs_drafter and name not in self._drafters:
            self._drafters[name] = load_drafter(name, self.target)
        return Job(self.target, recipe, self._drafters[name] if recipe.drafting.policy.needs_drafter else None)


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


def _result(job: Job, decoding: Decoding, prompts: Sequence[str], image: int) -> Result:
    """Return the result of a finished image. `prompts` are the prompts of the decoding."""
    codes = decoding.grid_codes()[[image]]
    settings = job.settings(prompts[image], job.recipe.image_index, conditions(decoding, image))
    trace = decoding.trace.subset([image])
    return Result(prompts[image], codes[0], trace, to_png(job.pixels(codes)[0], settings))


def _previews(job: Job, decoding: Decoding, part: range) -> dict[int, Image.Image]:
    """Return the unfinished images of a decoding. Cells without a token have the code 0 and are grey.

    Args:
        job: Job of the decoding.
        decoding: Decoding between two rounds.
        part: Index of each image of the decoding among all images.
    """
    codes = decoding.grid_codes()
    found = {}
    for image in decoding.active:
        missing = codes[image] < 0
        pixels = job.pixels(codes[[image]].clamp_min(0))[0]
        hidden = torch.nn.functional.interpolate(missing[None, None].float(), size=pixels.shape[1:])[0, 0] > 0
        found[part[image]] = Image.fromarray(to_uint8(pixels.masked_fill(hidden.to(pixels.device), 0.0)))
    return found
