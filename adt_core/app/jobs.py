"""A job: how images are made. Only this module loops over a ``Decoding``, and it alone says what a PNG carries."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..drafters import Drafter
from ..engine.decoding import Decoding
from ..errors import AdtError, Check, shown
from ..models.target import EncodedPrompt, Target, suffixed
from ..policies.recipe import Recipe
from ..rules.noise import NOISE_VERSION
from ..version import VERSION

STRETCH = 8
"""Prompts of one decoding, per image at work: many, so that slots are filled again; not too many for the memory."""
WARM_UP = 3
"""Rounds that are decoded and thrown away before a method is timed: the first calls are slow."""


@dataclass(frozen=True)
class Job:
    """What all images of a run have in common: the loaded models, and the recipe.

    drafter: None for plain decoding.
    """

    target: Target
    recipe: Recipe = Recipe()
    drafter: Drafter | None = None

    @property
    def loaded(self) -> Recipe:
        """The recipe, with what the target is in place of how it was to be loaded."""
        return replace(self.recipe, loading=replace(self.recipe.loading, **self.target.loaded))

    def check(self, prompts: Sequence[str]) -> list[str]:
        """What is to be said of the prompts.

        Raises AdtError for one that is empty or too long, now rather than when its turn comes.
        """
        notes = []
        for number, prompt in enumerate(prompts, start=1):
            try:
                notes.append(self.check_prompt(prompt))
            except AdtError as error:
                if len(prompts) == 1:
                    raise
                raise AdtError(
                    f"`prompts`: number {number} of {len(prompts)}, {shown(prompt)}: {error.template}"
                ) from error
        if self.recipe.negative.strip():
            self.target.check_prompt(self.recipe.negative)
        return list(filter(None, notes))

    def check_prompt(self, prompt: str) -> str:
        """A sentence for who wrote the prompt, or "". AdtError if it is empty or too long."""
        return self.target.check_prompt(suffixed(prompt, self.recipe.suffix))

    def _encode(self, prompt: str) -> EncodedPrompt:
        return self.target.encode_prompt(suffixed(prompt, self.recipe.suffix))

    def decoding(
        self,
        prompts: Sequence[str],
        image_indices: list[int] | None = None,
        at_once: int | None = None,
        prefix: Tensor | None = None,
        check: Check | None = None,
        seeds: list[int] | None = None,
    ) -> Decoding:
        """A decoding of one image per prompt, which has not begun.

        image_indices, seeds: of the noise, one per image; 0 and the sampling's for all unless given. at_once: images at
        work at the same time; all unless given. prefix: codes [images, P], where images start from different ones; else
        the job's. check: called often; may raise to cancel. Raises AdtError for a prompt that is empty or too long, and
        for settings that don't fit together.
        """
        recipe, negatives = self.recipe, None
        if recipe.negative.strip():
            negatives = [self.target.encode_prompt(recipe.negative)] * len(prompts)
        if prefix is None:
            prefix = torch.tensor([recipe.kept] * len(prompts), dtype=torch.long)
        return Decoding(
            self.target,
            [self._encode(prompt) for prompt in prompts],
            negatives=negatives,
            sampling=recipe.sampling,
            drafting=recipe.drafting,
            drafter=self.drafter,
            lantern=recipe.lantern,
            image_indices=image_indices,
            seeds=seeds,
            prefix=prefix,
            at_once=at_once,
            check=check,
            profile=recipe.profile,
        )

    def pixels(self, codes: Tensor, check: Check | None = None) -> Tensor:
        """Codes [B, rows, columns] -> pixels [B, 3, H, W] in [-1, 1], on the codec's device."""
        codec = self.target.codec
        return codec.decode(codes.to(codec.codebook.device), check=check)

    def settings(self, prompt: str, image_index: int = 0, conditions: Mapping[str, Any] = {}) -> dict:
        """Everything that makes an image what it is, as plain JSON types.

        Most names are those of the recipe, so that ``--from-png`` can read them back. The others are for people.
        conditions: of its decoding, see :func:`conditions`.
        """
        return {
            "prompt": prompt,
            **self.loaded.flat(),
            "model_name": self.target.name,
            "device": self.target.decoder.embedding.device.type,
            "image_index": image_index,
            "image_tokens": self.target.length,
            **conditions,
            "noise_version": NOISE_VERSION,
            "versions": {"adt-tree": VERSION, "torch": torch.__version__, "numpy": np.__version__},
        }


@contextmanager
def drawing(decoding: Decoding) -> Iterator[Iterator[list[int]]]:
    """``with drawing(decoding) as running: for finished in running: ...`` decodes to the end.

    Each round gives the numbers of the images that are newly finished: often none. A round more comes at the end if the
    last images were finished by reading their prompts alone. The block's end frees the caches, however it ends. If all
    images are finished then, what rounds cost here is measured unless it is known.
    """
    with closing(_finished(decoding)) as running:
        yield running
    if decoding.done_tokens == decoding.total_tokens:
        decoding.measure_costs()


def rounds(decoding: Decoding) -> Generator[list[int], None, None]:
    """What :func:`drawing` runs through, for a loop that does nothing else."""
    with drawing(decoding) as running:
        yield from running


def _finished(decoding: Decoding) -> Generator[list[int], None, None]:
    waiting = list(range(decoding.images))

    def newly() -> list[int]:
        whole = (decoding.codes[:, -1] >= 0).tolist()
        done = [image for image in waiting if whole[image]]
        waiting[:] = [image for image in waiting if not whole[image]]
        return done

    for _ in decoding:
        yield newly()
    if waiting:
        yield newly()


def conditions(decoding: Decoding, image: int) -> dict:
    """The decoding's conditions, for an image's settings; if LANTERN drew it, also the share of replaced tokens."""
    if decoding.lantern is None:
        return decoding.conditions()
    rate = decoding.trace.part([image]).report()["substitution_rate"]
    return {**decoding.conditions(), "figures": {"substitution_rate": rate}}


def decode(decoding: Decoding) -> Decoding:
    """Decode to the end, and return the decoding, whose ``codes`` and ``trace`` are then complete."""
    for _ in rounds(decoding):
        pass
    return decoding


def warm_up(decoding: Decoding, count: int = WARM_UP) -> None:
    """Decode ``count`` rounds and throw them away; all rounds on a GPU, where each size of a round is slow once.

    What rounds cost here is measured if it is not known.
    """
    with closing(iter(decoding)) as running:
        for _ in islice(running, None if decoding.is_replayed else count):
            pass
    decoding.measure_costs()


def stretches(prompts: int, at_once: int, together: int = 1, workers: int = 1) -> list[range]:
    """The numbers 0 .. ``prompts`` - 1 in stretches: the prompts that one decoding takes, so that memory stays bounded.

    at_once: images at work at the same time; in a stretch, the next image takes the place of a finished one. together:
    images of a prompt. workers: engines that share the stretches; none is left without one.
    """
    company = math.ceil(at_once / together)  # prompts at work at the same time
    size = company if company == 1 else max(company, min(STRETCH * company, math.ceil(prompts / workers)))
    return [range(prompts)[first : first + size] for first in range(0, prompts, size)]
