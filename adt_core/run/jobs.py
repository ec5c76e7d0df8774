"""Jobs: the images of a run, each with its number, prompt and noise.

The noise of an image depends only on its seed and its noise index. So an image can be generated alone, in any batch,
and on any machine:

- A prompt with its own seed, such as from the column `seed` of a table, uses this seed and the index of the image
  among the images of its prompt.
- Every other image of a list uses the seed of the recipe and its number in the list, so images of equal prompts differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from ..errors import AdtError
from ..recipe import Recipe
from ..settings import ORIGINAL_SCRIPT
from .truncation import fit_prompt

MAX_IMAGES = 10**6
"""Maximum number of images of one run."""


RowSettings = tuple[tuple[str, Any], ...]
"""Settings of a list's row: pairs of the name of a recipe's option and its value."""


class PromptEntry(NamedTuple):
    """A prompt of a list.

    Attributes:
        id: Id in the list, or the number of the prompt.
        text: The prompt; "" if it is blank.
        seed: Seed in the list, or None.
        settings: Settings that replace the recipe's.
    """

    id: str
    text: str
    seed: int | None = None
    settings: RowSettings = ()


@dataclass(frozen=True)
class Job:
    """An image to generate.

    Attributes:
        number: Number of the image in its list, from 1.
        prompt: Complete prompt.
        index: Index of the image's noise.
        id: Id of the prompt.
        text: Prompt for the model: the complete prompt, or its beginning if it is too long.
        note: Remark for the user on the prompt, or "".
        settings: Settings that differ from the recipe's.
    """

    number: int
    prompt: str
    seed: int
    index: int = 0
    id: str = ""
    text: str = ""
    note: str = ""
    settings: RowSettings = ()


@dataclass(frozen=True)
class JobList:
    """Jobs of a list of prompts, numbered from 1. The images of the first prompt come first.

    The number of an image depends only on the list and on `per_prompt`. So shards use the same noise as the complete
    run.

    Attributes:
        prompts: Prompts of the complete list, or the single prompt.
        per_prompt: Number of images per prompt.
        shard: (I, N): this run generates every N-th image, from the I-th on.
        same_noise: Whether the noise depends only on the index of an image among the images of its prompt. The noise of
            a model's original script is always used in this way.

    Raises:
        AdtError: If there are too many images.
    """

    prompts: Sequence[PromptEntry]
    recipe: Recipe
    per_prompt: int = 1
    shard: tuple[int, int] = (1, 1)
    same_noise: bool = False

    def __post_init__(self) -> None:
        if self.count > MAX_IMAGES:
            raise AdtError("images.too_many", count=self.count, most=MAX_IMAGES)

    @property
    def count(self) -> int:
        """Number of images of all shards together."""
        return len(self.prompts) * self.per_prompt

    @property
    def numbers(self) -> range:
        """Numbers of the images of this shard."""
        return range(self.shard[0], self.count + 1, self.shard[1])

    def __len__(self) -> int:
        return len(self.numbers)

    def __iter__(self) -> Iterator[Job]:
        return map(self.job, self.numbers)

    def job(self, number: int) -> Job:
        """Return the job of the image with this number, which may belong to another shard."""
        entry = self.prompts[(number - 1) // self.per_prompt]
        has_own_noise = entry.seed is None and not self.same_noise and self.recipe.sampling.noise != ORIGINAL_SCRIPT
        index = number - 1 if has_own_noise else (number - 1) % self.per_prompt
        seed = self.recipe.sampling.seed if entry.seed is None else entry.seed
        own = Job(number, entry.text, seed, self.recipe.image_index + index, entry.id, entry.text)
        if not entry.settings:
            return own
        usual = {**self.recipe.flat(), "size": self.recipe.loading.size}
        return replace(own, settings=tuple((name, value) for name, value in entry.settings if usual[name] != value))


def fit_jobs(jobs: Iterable[Job], check: Callable[[str], str], mode: str) -> tuple[list[Job], dict[Job, str]]:
    """Shorten or leave out prompts that the model cannot read. Arguments as in :func:`.truncation.fit_prompt`.

    Returns:
        The jobs to decode; and the other jobs, with the reason of each.

    Raises:
        AdtError: If the model cannot read a prompt and `mode` is `RAISE`.
    """
    fitting = []
    left_out = {}
    for job in jobs:
        text, note = fit_prompt(check, job.prompt, mode)
        if text is None:
            left_out[job] = note
        else:
            fitting.append(replace(job, text=text, note=note))
    return fitting, left_out
