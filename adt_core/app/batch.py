"""An image for each prompt of a list, saved as soon as it is finished: a batch that was stopped goes on where it was.

An image depends on its prompt, its seed and the settings alone. So a folder belongs to the settings, and holds one PNG
for each prompt and seed, which also carries its tokens and figures. What has its PNG there is done, whichever list
asked for it and whatever it was decoded together with.
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
from ..errors import AdtError, Check
from ..files import inside, is_link, write_in
from ..rules.noise import NOISE_VERSION
from ..rules.settings import UPSTREAM
from ..rules.upstream import maker
from ..untrusted import list_of, whole_number
from .images import digest, read_pixels, read_settings, to_png, to_uint8
from .jobs import Job
from .prompts import file_name_part, slug
from .run_stats import are_run_stats


class SavedImage(NamedTuple):
    """A finished image. pixels: [H, W, 3], the bytes of its PNG. codes: [rows, columns] int64 on the CPU. figures: by
    the names of ``Trace.report``."""

    prompt: str
    seed: int
    path: Path
    pixels: np.ndarray
    codes: Tensor
    figures: dict


NESTED = "sampling", "drafting", "lantern", "profile"
"""Entries of a report that are no figures."""
NUMBERS = "seconds", "tokens", "tau", "target_forwards", "mean_depth", "substitution_rate"
"""Figures that every finished image has."""


@dataclass(frozen=True)
class BatchFolder:
    """The images of a job in a folder, one for each prompt and seed. Without seeds, the job's seed is used.

    Each image is the same as if it were decoded alone: all have the image index 0 in the noise. folder: usually
    :func:`home`. texts: further text chunks of the PNGs, by name.
    """

    job: Job
    folder: Path
    texts: dict[str, str] = field(default_factory=dict)

    @cached_property
    def _paths(self) -> dict[str, Path]:
        """The PNGs in the folder, by the digest at the end of their names. Links don't count: they are replaced."""
        files = (path for path in self.folder.glob("*.png") if path.is_file() and not is_link(path))
        return {path.stem.rpartition("-")[2]: path for path in files}

    def path(self, prompt: str, seed: int | None = None, place: str = "") -> Path:
        """Where an image lies, or will. place: what the name of a new file begins with."""
        mine = digest(prompt if self._seed(seed) == self.job.recipe.sampling.seed else [prompt, seed])
        name = "-".join(filter(None, (place, slug(prompt), mine))) + ".png"
        return self._paths.get(mine, self.folder / name)

    def find(self, prompt: str, seed: int | None = None) -> SavedImage | None:
        """An image that is done. None if it is missing or damaged, or was saved anew without its settings."""
        path = self.path(prompt, seed)
        try:
            saved = read_settings(path)
        except AdtError:
            return None
        seed = self._seed(seed)
        tokens, figures = saved.get("tokens"), saved.get("figures")
        is_ours = (saved.get("prompt"), saved.get("seed")) == (prompt, seed)
        if not is_ours or not self._are_tokens(tokens) or not _are_figures(figures):
            return None
        pixels = read_pixels(path, self._size)
        return None if pixels is None else SavedImage(prompt, seed, path, pixels, torch.tensor(tokens), figures)

    def _seed(self, seed: int | None) -> int:
        return self.job.recipe.sampling.seed if seed is None else seed

    @property
    def _size(self) -> tuple[int, int]:
        """Width and height of an image, in pixels."""
        rows, columns = self.job.target.grid
        return columns * self.job.target.downsample, rows * self.job.target.downsample

    def _are_tokens(self, value: object) -> TypeGuard[list[list[int]]]:
        """Are they codes of the target, for every cell of its grid?"""
        (rows, columns), codes = self.job.target.grid, self.job.target.num_codes
        return list_of(list_of(whole_number(0, codes - 1), columns, columns), rows, rows).fits(value)

    def save(
        self,
        decoding: Decoding,
        image: int,
        prompt: str,
        seed: int | None = None,
        place: str = "",
        check: Check | None = None,
    ) -> SavedImage:
        """Write the PNG of a finished image of a decoding.

        image: its number in the decoding. place: what the file's name begins with. Raises AdtError if it
        can't be written.
        """
        codes, path = decoding.grid_codes()[image].clone(), self.path(prompt, seed, place)
        pixels = self.job.pixels(codes[None], check)[0]
        report = decoding.trace.part([image]).report()
        own = {"seed": self._seed(seed)}
        figures = {name: value for name, value in report.items() if name not in NESTED} | own
        figures |= {"drafter": self.job.recipe.drafter_name, "images_at_once": decoding.at_once}
        settings = {**self.job.settings(prompt, 0, decoding.conditions()), **own}
        png = to_png(pixels, {**settings, "figures": figures, "tokens": codes.tolist()}, self.texts)
        write_in(self.folder, path.name, png)
        self._paths[path.stem.rpartition("-")[2]] = path
        return SavedImage(prompt, own["seed"], path, to_uint8(pixels), codes, figures)


def _are_figures(value: object) -> TypeGuard[dict]:
    """Are they figures of a finished image?"""
    return are_run_stats(value, NUMBERS) and value.keys().isdisjoint(("id", "prompt", "file"))


def batch_folder(root: Path, job: Job, name: str = "") -> Path:
    """The job's folder below ``root``. It is called by ``name``, the model's unless given, and by :func:`key`."""
    return named_folder(root, job_key(job), name, job.target.name)


def named_folder(root: Path, unique: str, name: str, usual: str) -> Path:
    """The folder NAME-UNIQUE below ``root``. usual: the name where none is given. Raises as :func:`inside`.

    Earlier versions called it UNIQUE alone. Such a folder is used again if no name is given.
    """
    is_earlier = not name and (root / unique).is_dir()
    return inside(root, unique if is_earlier else "-".join(filter(None, (file_name_part(name or usual), unique))))


def job_key(job: Job) -> str:
    """What the name of the job's folder ends with: the same for jobs that give the same images. Drafting counts under
    LANTERN alone."""
    target, network = job.target, job.drafter.network if job.drafter is not None else None
    modules = (target.decoder, target.codec, target.text_encoder)
    weights = [fingerprint(module) for module in modules if module is not None]
    of_network = fingerprint(network) if network is not None and job.recipe.lantern is not None else None
    made = job.loaded.image(weights, target.grid, of_network)
    if job.recipe.sampling.noise == UPSTREAM:
        made["noise_device"] = maker(target.decoder.embedding.device)
    return digest({**made, "noise_version": NOISE_VERSION})


def fingerprint(module: nn.Module) -> str:
    """Tells modules apart: a digest of the first numbers of every parameter and every floating-point buffer."""
    values = [*module.parameters(), *(buffer for buffer in module.buffers() if buffer.is_floating_point())]
    numbers = torch.cat([value.detach().flatten()[:64].to("cpu", torch.float32) for value in values])
    return hashlib.sha256(numbers.numpy().tobytes()).hexdigest()[:12]
