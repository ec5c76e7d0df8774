"""The front door of the library: load a model once, and generate images from texts.

    from adt_core import Pipeline

    pipe = Pipeline.load("bundled")
    result = pipe.generate("a red house", seed=1)
    result.save("house.png")

Settings that the caller does not name have the values that the model's authors recommend, and the default drafter and
method, as on the command line and in the nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import torch
from PIL import Image
from torch import Tensor

from ..drafters import load_drafter
from ..errors import AdtError, Check, command, shown
from ..models.load import find_published, load_target
from ..models.target import Target
from ..recipe import AUTO, BUNDLED, Loading, Placement, Recipe
from ..settings import MAX_BATCH_SIZE, RAM, Option, plain
from .extensions import add_installed
from .images import read_settings
from .jobs import MAX_IMAGES, JobList, PromptEntry, RowSettings
from .masks import kept_of, mask_cells, open_rgb
from .model_files import default_folder
from .png_settings import read_values
from .previews import preview
from .resolve import Hardware, choose_device, resolve_recipe
from .runner import Progress, Result, Runner

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .options import ImageOptions, ListOptions, LoadingOptions, PngOptions, RecipeOptions

SET_BY_LOAD = ("model", "drafter", *Loading.fields())
"""Options that :meth:`Pipeline.load` determines."""
_PRECISION = ("dtype", "exact", "weights")
_COUNTS = {
    "batch_size": Option(1, "", int, 1, MAX_BATCH_SIZE),
    "num_images_per_prompt": Option(1, "", int, 1, MAX_IMAGES),
}


class Step(NamedTuple):
    """Progress of :meth:`Pipeline.stream` after one round.

    Attributes:
        done: Number of decided tokens of all images.
        total: Number of tokens of all images.
        results: Images that the round has finished, by their index in the list of prompts. Often empty.
        preview: Returns the complete rows of the unfinished images, in the same form, after a pass through the image
            codec. Call it before the next step.
    """

    done: int
    total: int
    results: dict[int, Result]
    preview: Callable[[], dict[int, Image.Image]]

    def __repr__(self) -> str:
        return f"Step({self.done} of {self.total} tokens, results {self.results})"


@dataclass(frozen=True)
class Pipeline(Runner):
    """Loaded models, and the settings of the images to generate. Use :meth:`load` to make one.

    Attributes:
        given: Settings that the user has chosen, by option name; the others follow from them. None for all settings of
            `recipe`.
    """

    given: Mapping[str, Any] | None = None

    def __repr__(self) -> str:
        sampling = self.recipe.sampling
        return f"Pipeline({self.target.name}, drafter {self.recipe.drafter_name}, {self.recipe.drafting}, {sampling})"

    @classmethod
    def load(
        cls,
        model: str | Path = BUNDLED,
        drafter: str | Path | None = None,
        device: str | torch.device = AUTO,
        dtype: str | None = None,
        weights: str | None = None,
        device_memory: float | None = None,
        memory: str = RAM,
        **loading: Unpack[LoadingOptions],
    ) -> Pipeline:
        """Load a model.

        Args:
            model: "bundled", the name of an installed model in docs/models.md, or a folder.
            drafter: Folder of a drafter network, "jacobi", or "FOLDER+jacobi". None chooses the bundled drafter for the
                bundled model, else the published drafter if it is installed, else "jacobi".
            device: "auto", or the name of a torch device such as "cpu" or "cuda:1". "auto" chooses CUDA if it is
                available.
            dtype: "auto", "float32", "float64", "bfloat16" or "float16". "auto", the default, is float32 for the
                bundled model and on a CPU, else bfloat16 or what the device computes well.
            weights: "int8", "fp8" or "int4", to store the transformer's matrices with fewer bits; None for `dtype`.
            device_memory: GiB of a CUDA GPU to use; None for its free memory. Other layers are copied in each pass.
            memory: "ram", or "disk" to read layers that don't fit from the model's files in each pass, which is slow.
            **loading: Other options of :class:`~adt_core.recipe.Loading`, such as ``size=(512, 512)``.

        Raises:
            AdtError: If the model is not installed or can't be read, or an option is not valid.
        """
        add_installed()
        _check_names(loading, Loading.fields())
        given: dict[str, Any] = {
            "model": find_model(model),
            "drafter": drafter and str(drafter),
            "dtype": dtype,
            "weights": weights,
        }
        given = {name: value for name, value in {**loading, **given}.items() if value is not None}
        placement = Placement(str(device), plain(device_memory), memory)
        recipe = resolve_recipe(given, Hardware.of(device))
        return replace(cls.of(recipe, placement), given=given)

    @classmethod
    def of(cls, recipe: Recipe, placement: Placement = Placement()) -> Pipeline:
        """Load the models of a complete recipe (:func:`.resolve_recipe`). Raise AdtError if a model can't be read."""
        loading = recipe.loading
        target = load_target(
            loading.model,
            choose_device(placement.device),
            getattr(torch, loading.dtype),
            weights=loading.weights,
            exact=loading.exact == "on",
            device_memory=placement.device_bytes,
            memory=placement.memory,
        )
        target = target.sized(*loading.size) if loading.size else target
        return cls(with_sources(target, recipe.sources), recipe)._with_drafter()

    def _with_drafter(self) -> Pipeline:
        """Return this pipeline with the recipe's drafter, if the method needs one and none is loaded."""
        if self.drafter is not None or not self.recipe.drafting.policy.needs_drafter or self.recipe.drafter is None:
            return self
        return replace(self, drafter=load_drafter(self.recipe.drafter, self.target))

    @classmethod
    def from_png(cls, path: str | Path, device: str | torch.device = AUTO, **options: Unpack[PngOptions]) -> Result:
        """Load the model of a PNG, and generate its image again from the settings in the PNG.

        Args:
            path: PNG that this package or ComfyUI with this pack has saved.
            device: As in :meth:`load`.
            **options: Options that replace those in the PNG, such as ``method="adt-tree"``. `model` and `drafter` are
                needed if the PNG names files that are not part of this package, because these paths are not trusted.

        Raises:
            AdtError: If the PNG contains no valid settings, or an option is unknown or not valid.
        """
        add_installed()
        _check_names(options, Recipe.names())
        paths: dict[str, Any] = {name: str(value) for name, value in options.items() if name in ("model", "drafter")}
        given: dict[str, Any] = {**options, **paths}
        hardware = Hardware.of(device)
        saved = {**read_values(Path(path), {"device": str(device), **given}), **given}
        return cls.of(resolve_recipe(saved, hardware), Placement(str(device))).generate(saved["prompt"])

    def repeat(self, path: str | Path, **options: Unpack[ImageOptions]) -> Result:
        """Generate the image of a PNG again with the loaded models.

            pipe.repeat("house.png", method="adt-tree")

        Args:
            path: PNG that this package or ComfyUI with this pack has saved, with this model.
            **options: Options that replace those in the PNG.

        Raises:
            AdtError: If the PNG contains no valid settings, or another model or precision is loaded.
        """
        loading = self.recipe.as_loaded(self.target.loaded).loading.flat()
        saved = _saved_by(self, Path(path), loading, options)
        prompt = saved.pop("prompt")
        size = saved.get("size")
        chosen = {**saved, **loading, "drafter": self.recipe.drafter, "size": size}
        pipeline = replace(self, target=self.target.sized(*size) if size else self.target, given=chosen)
        changed: dict[str, Any] = {"seed": saved["seed"], **options}
        return pipeline.with_options(**changed).generate(prompt)

    def with_options(self, **options: Unpack[ImageOptions]) -> Pipeline:
        """Return a pipeline with the same models and other settings.

        Args:
            **options: Options of a recipe by name, such as ``seed=1`` or ``method="adt-tree"``. docs/command_line.md
                lists them.

        Raises:
            AdtError: If an option is unknown or not valid.
        """
        if not options:
            return self
        if fixed := [name for name in options if name in SET_BY_LOAD]:
            raise AdtError("pipeline.load_option", input=fixed[0])
        _check_names(options, set(Recipe.names()) - set(SET_BY_LOAD))
        given = {**(self.recipe.flat() if self.given is None else self.given), **options}
        hardware = Hardware.of(self.target.decoder.embedding.device)
        recipe = resolve_recipe(given, hardware, self.target.published_sampling)
        recipe.drafting.check_options(options)
        return replace(self, recipe=recipe, given=given)._with_drafter()

    def of_row(self, settings: RowSettings) -> Pipeline:
        """Return a pipeline with a row's settings. Raise AdtError if the model does not support the size."""
        pipeline = self.with_options(**{name: value for name, value in settings if name != "size"})
        size = dict(settings).get("size")
        return replace(pipeline, target=self.target.sized(*size)) if size else pipeline

    def keep(self, image: str | Path, mask: str | Path | Tensor) -> tuple[int, ...]:
        """Return the option `kept`, with which only a part of an existing image is generated.

            pipe.generate("a green door", kept=pipe.keep("house.png", "mask.png"))

        Args:
            image: Image file. If it has another size than the model's images, it is cropped and resized.
            mask: Image file in which the part to generate is white and the part to keep is black, or a tensor
                [height, width] with 1 and 0. The mask is rounded to whole tokens.

        Raises:
            AdtError: If a file can't be read, or the mask is empty.
        """
        generated = mask_cells(mask, self.target)
        return kept_of(open_rgb(Path(image), "image"), generated, self.target)

    @overload
    def generate(  # type: ignore[overload-overlap]  # a text is also an iterable of texts
        self, prompt: str, batch_size: int = 1, check: Check | None = None, **options: Unpack[ListOptions]
    ) -> Result: ...
    @overload
    def generate(
        self, prompt: Iterable[str], batch_size: int = 1, check: Check | None = None, **options: Unpack[ListOptions]
    ) -> list[Result]: ...
    def generate(
        self,
        prompt: str | Iterable[str],
        batch_size: int = 1,
        check: Check | None = None,
        **options: Unpack[ListOptions],
    ) -> Result | list[Result]:
        """Generate one image for each text.

        Args:
            prompt: A text, or a list of texts; any iterable of texts is a list.
            batch_size: Maximum number of images that are decoded at the same time. The default is 1, because drafting
                saves most time with one image.
            check: Cancellation callback. It is called often, and raises an exception to stop.
            **options: As in :meth:`stream`.

        Returns:
            The result of a text, or the results of a list of texts, in the same order.

        Raises:
            AdtError: If a text is empty or too long, or an option is unknown or not valid.
        """
        texts = [prompt] if isinstance(prompt, str) else _texts("prompt", prompt)
        results: dict[int, Result] = {}
        for step in self.stream(texts, batch_size, check, **options):
            results |= step.results
        return results[0] if isinstance(prompt, str) else [results[index] for index in sorted(results)]

    def stream(
        self,
        prompts: Iterable[str],
        batch_size: int = 1,
        check: Check | None = None,
        seed: int | Sequence[int] | None = None,
        same_noise: bool = False,
        num_images_per_prompt: int = 1,
        **options: Unpack[RecipeOptions],
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
            AdtError: As in :meth:`generate`, before the first step.
        """
        if isinstance(prompts, str):
            raise AdtError("prompts.one_text", text=shown(prompts))
        texts = _texts("prompts", prompts)
        batch_size = _count("batch_size", batch_size)
        num_images_per_prompt = _count("num_images_per_prompt", num_images_per_prompt)
        seeds = _seeds(plain(seed), len(texts))
        own = seeds if isinstance(seeds, list) else [None] * len(texts)
        common: dict[str, Any] = {} if seeds is None or seeds is own else {"seed": seeds}
        pipeline = self.with_options(**options, **common)
        pipeline.check(texts)
        entries = [PromptEntry(str(number), text, seed) for number, (text, seed) in enumerate(zip(texts, own), 1)]
        jobs = JobList(entries, pipeline.recipe, num_images_per_prompt, same_noise=same_noise)
        for progress in pipeline.run(list(jobs), batch_size, check):
            if progress.decoding.trace.rounds or progress.finished:
                results = {finished.job.number - 1: finished.result() for finished in progress.finished}
                yield Step(progress.done, progress.total, results, partial(_previews, progress))


def _saved_by(pipeline: Pipeline, path: Path, loading: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a PNG, some of them replaced by `options`. See :meth:`Pipeline.repeat`.

    Raises:
        AdtError: If the PNG contains no valid settings, or `loading` has another model or precision.
    """
    device = pipeline.target.decoder.embedding.device
    given = {"model": loading["model"], "drafter": pipeline.recipe.drafter or "", "device": str(device), **options}
    saved = read_values(path, given)
    made = {"model_name": read_settings(path).get("model_name"), **saved}
    for name, here in {"model_name": pipeline.target.name, **{name: loading[name] for name in _PRECISION}}.items():
        if made.get(name) != here:
            raise AdtError(
                "png.other_model", path=path, part=name.replace("_", " "), saved=shown(made.get(name)), here=shown(here)
            )
    return saved


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
        raise AdtError("model.no_file", path=shown(str(model), 300))
    folder = default_folder() / row.name
    if not folder.exists():
        raise AdtError(
            "model.not_installed", model=row.name, folder=default_folder(), command=command(f"download {row.name}")
        )
    return str(folder)


def _check_names(given: Mapping[str, Any], valid: Iterable[str]) -> None:
    """Raise AdtError, with the valid names, if an option is unknown."""
    unknown = [name for name in given if name not in valid]
    if unknown:
        names = ", ".join(sorted(valid))
        raise AdtError("option.unknown", name=shown(unknown[0]), names=names)


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
            raise AdtError("sources.none")
        images.append(torch.tensor(codes).view(rows, columns))
        flat = tuple(rest[len(codes) :])
    return target.with_sources(images) if images else target


def _texts(name: str, prompts: Iterable[str]) -> list[str]:
    """Return the texts of an argument. Raise AdtError if it is not a list of texts."""
    texts = list(prompts) if isinstance(prompts, Iterable) else [prompts]
    wrong = [text for text in texts if not isinstance(text, str)]
    if wrong:
        raise AdtError("text.expected", input=name, value=shown(wrong[0]))
    return texts


def _count(name: str, value: int) -> int:
    count = plain(value)
    _COUNTS[name].check(name, count)
    return count


def _seeds(seed: Any, count: int) -> Any:
    """Return one seed for all texts, a checked list with one seed per text, or None. `count` is the number of texts."""
    if not isinstance(seed, list | tuple):
        return seed
    if len(seed) != count:
        raise AdtError("seed.lengths", count=len(seed), texts=count)
    option = Recipe.options()["seed"]
    for value in seed:
        option.check("seed", value)
    return list(seed)


def _previews(progress: Progress) -> dict[int, Image.Image]:
    """Return the unfinished images of a decoding between two rounds, by their index among all images."""
    decoding = progress.decoding
    return {progress.jobs[image].number - 1: preview(decoding, image) for image in decoding.active}
