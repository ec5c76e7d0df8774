"""Batch folders: one PNG per prompt and seed, written as soon as the image is finished, so that a batch can resume.

An image depends only on its prompt, its seed and the settings. It does not depend on the other images of the batch.
All images of a folder have the same settings. If the folder already has a PNG for a prompt and a seed, a later batch
reads that PNG and does not decode the image again.

Each PNG contains the tokens of its image and the run statistics.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, TypeGuard

import numpy as np
import torch
from torch import Tensor, nn

from ..engine.decoding import Decoding
from ..errors import AdtError, Check, UnknownFormatError
from ..files import inside, is_link, list_visible, write_in
from ..rules.upstream import noise_device
from ..settings import UPSTREAM
from ..untrusted import list_of, whole_number
from ..version import FORMAT
from .images import digest, read_pixels, read_settings, to_png, to_uint8
from .pipeline import Pipeline
from .prompts import file_name_part, slug
from .run_stats import are_run_stats
from .saved import difference


class SavedImage(NamedTuple):
    """A finished image.

    Attributes:
        prompt: The prompt, without the suffix that the recipe appends to all prompts.
        seed: Seed of the image's noise.
        path: Path of the PNG.
        pixels: [H, W, 3] uint8: height, width, RGB.
        codes: Codebook indices [rows, columns] int64 on the CPU.
        figures: Run statistics. The keys are the names that `Trace.report` uses, such as "seconds" and "tau".
    """

    prompt: str
    seed: int
    path: Path
    pixels: np.ndarray
    codes: Tensor
    figures: dict


NESTED = "sampling", "drafting", "lantern", "profile"
"""Keys of `Trace.report` whose values are settings, not run statistics."""
NUMBERS = "seconds", "tokens", "tau", "target_forwards", "mean_depth", "substitution_rate"
"""Run statistics that every finished image has."""


@dataclass(frozen=True)
class BatchFolder:
    """Folder with the images of a pipeline, one PNG per prompt and seed.

    The noise of every image uses image index 0. An image of a batch is therefore equal to the image that `generate`
    makes from the same prompt and seed.

    Attributes:
        pipeline: Loaded models and recipe. Methods that get `seed=None` use the seed of the recipe.
        folder: Path of the folder, usually from `batch_folder`.
        texts: Additional text chunks to write into each PNG, by keyword.
    """

    pipeline: Pipeline
    folder: Path
    texts: dict[str, str] = field(default_factory=dict)

    @cached_property
    def _paths(self) -> dict[str, Path]:
        """Dictionary from the digest at the end of a file name to the PNG with this name.

        Symbolic links are omitted. If `save` writes a PNG to the path of a link, the PNG replaces the link.
        """
        files = (path for path in list_visible(self.folder, "*.png") if path.is_file() and not is_link(path))
        return {path.stem.rpartition("-")[2]: path for path in files}

    def path(self, prompt: str, seed: int | None = None, place: str = "") -> Path:
        """Return the path of the PNG of a prompt and seed. The file may not exist yet.

        Args:
            seed: Seed of the image, or None for the recipe's seed.
            place: Prefix of the file name of a new file. If the PNG exists, its path is returned, whatever its prefix.
        """
        own_digest = digest(prompt if self._seed(seed) == self.pipeline.recipe.sampling.seed else [prompt, seed])
        name = "-".join(filter(None, (place, slug(prompt), own_digest))) + ".png"
        return self._paths.get(own_digest, self.folder / name)

    def find(self, prompt: str, seed: int | None = None) -> SavedImage | None:
        """Return a finished image, or None if the PNG is missing or damaged, or contains no valid settings.

        Args:
            seed: Seed of the image, or None for the recipe's seed.

        Raises:
            UnknownFormatError: If the PNG has another format number.
        """
        path = self.path(prompt, seed)
        seed = self._seed(seed)
        try:
            saved = read_settings(path)
        except UnknownFormatError:
            raise  # the caller would replace the file
        except AdtError:
            return None
        problem = difference(saved, {"prompt": prompt, "seed": seed})
        tokens = saved.get("tokens")
        figures = saved.get("figures")
        if problem or not self._are_tokens(tokens) or not _are_figures(figures):
            return None
        rows, columns = self.pipeline.target.grid
        side = self.pipeline.target.downsample
        pixels = read_pixels(path, (columns * side, rows * side))
        return None if pixels is None else SavedImage(prompt, seed, path, pixels, torch.tensor(tokens), figures)

    def _seed(self, seed: int | None) -> int:
        return self.pipeline.recipe.sampling.seed if seed is None else seed

    def _are_tokens(self, value: object) -> TypeGuard[list[list[int]]]:
        """Return whether a value is a list of rows of valid codebook indices, with the size of the target's grid."""
        rows, columns = self.pipeline.target.grid
        code = whole_number(0, self.pipeline.target.num_codes - 1)
        return list_of(list_of(code, columns, columns), rows, rows).fits(value)

    def save(
        self,
        decoding: Decoding,
        image: int,
        prompt: str,
        seed: int | None = None,
        place: str = "",
        check: Check | None = None,
    ) -> SavedImage:
        """Write the PNG of a finished image.

        Args:
            image: Index of the image in the decoding.
            seed: Seed of the image, or None for the recipe's seed.
            place: Prefix of the file name of a new file. An existing PNG is replaced under its own name.
            check: Cancellation callback. It raises an exception to stop.

        Raises:
            AdtError: If the file cannot be written.
        """
        codes = decoding.grid_codes()[image].clone()
        path = self.path(prompt, seed, place)
        pixels = self.pipeline.target.pixels(codes[None], check)[0]
        report = decoding.trace.subset([image]).report()
        own = {"seed": self._seed(seed)}
        figures = {name: value for name, value in report.items() if name not in NESTED} | own
        figures |= {"drafter": self.pipeline.recipe.drafter_name, "images_at_once": decoding.at_once}
        settings = {**self.pipeline.settings(prompt, 0, decoding.conditions()), **own}
        png = to_png(pixels, {**settings, "figures": figures, "tokens": codes.tolist()}, self.texts)
        write_in(self.folder, path.name, png)
        self._paths[path.stem.rpartition("-")[2]] = path
        return SavedImage(prompt, own["seed"], path, to_uint8(pixels), codes, figures)


def _are_figures(value: object) -> TypeGuard[dict]:
    """Return whether a value is a dictionary of valid run statistics.

    The keys "id", "prompt" and "file" are not allowed: the batch node writes the statistics into a table, and these
    names are other columns of this table.
    """
    return are_run_stats(value, NUMBERS) and value.keys().isdisjoint(("id", "prompt", "file"))


def batch_folder(root: Path, pipeline: Pipeline, name: str = "") -> Path:
    """Return the folder of a pipeline's images.

    Args:
        name: First part of the folder's name. "" selects the model's name. The second part is always
            `settings_key(pipeline)`.
    """
    return named_folder(root, settings_key(pipeline), name, pipeline.target.name)


def named_folder(root: Path, unique: str, name: str, usual: str) -> Path:
    """Return the path `root`/NAME-UNIQUE, for example `root`/janus-1b-3f2a90c4d1e7.

    Args:
        name: NAME that the user has chosen, or "".
        usual: NAME to use if `name` is "".

    Raises:
        AdtError: If the path contains a link.
    """
    return inside(root, "-".join(filter(None, (file_name_part(name or usual), unique))))


def settings_key(pipeline: Pipeline) -> str:
    """Return a digest of everything that determines a pipeline's images, except prompts and seeds.

    Two pipelines with the same digest make the same image from a prompt and a seed. The digest includes the drafter and
    its settings only with LANTERN (relaxed acceptance). Without LANTERN, the drafter does not change the image.
    """
    target = pipeline.target
    network = pipeline.drafter.network if pipeline.drafter is not None else None
    modules = (target.decoder, target.codec, target.text_encoder)
    weights = [fingerprint(module) for module in modules if module is not None]
    drafter_weights = fingerprint(network) if network is not None and pipeline.recipe.lantern is not None else None
    content = pipeline.recipe.as_loaded(target.loaded).image_settings(weights, target.grid, drafter_weights)
    content |= {"kept": list(pipeline.recipe.kept), "sources": list(pipeline.recipe.sources)}
    if pipeline.recipe.sampling.noise == UPSTREAM:
        content["noise_device"] = noise_device(target.decoder.embedding.device)
    return digest({**content, "format": FORMAT})


def fingerprint(module: nn.Module) -> str:
    """Return a digest of the first 64 elements of every parameter and floating-point buffer."""
    values = [*module.parameters(), *(buffer for buffer in module.buffers() if buffer.is_floating_point())]
    numbers = torch.cat([value.detach().flatten()[:64].to("cpu", torch.float32) for value in values])
    return hashlib.sha256(numbers.numpy().tobytes()).hexdigest()[:12]
