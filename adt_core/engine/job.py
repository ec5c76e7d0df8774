"""A job: a recipe, and the loaded models that the recipe names.

A recipe (:class:`~adt_core.recipe.Recipe`) contains all settings that determine an image, except its prompt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..drafters import Drafter
from ..errors import AdtError, Check, shown
from ..models.target import EncodedPrompt, Target, suffixed
from ..recipe import Recipe
from ..version import VERSION


@dataclass(frozen=True)
class Job:
    """Everything that the images of a run have in common.

    Attributes:
        target: Model that generates the images, with its codec.
        recipe: Settings of the images.
        drafter: Drafter; None for plain decoding.
    """

    target: Target
    recipe: Recipe = Recipe()
    drafter: Drafter | None = None

    @property
    def loaded(self) -> Recipe:
        """The recipe, with the loading settings (such as the dtype) that were actually used for the target."""
        return replace(self.recipe, loading=replace(self.recipe.loading, **self.target.loaded))

    @property
    def networks(self) -> list[nn.Module]:
        """The target's decoder, and the drafter's network if it has one."""
        network = None if self.drafter is None else self.drafter.network
        return [self.target.decoder] if network is None else [self.target.decoder, network]

    def check(self, prompts: Sequence[str]) -> list[str]:
        """Check prompts before any image is generated.

        Args:
            prompts: Prompt of each image, without the recipe's suffix.

        Returns:
            Remarks for the user; empty if there are none.

        Raises:
            AdtError: If a prompt is empty or too long, or if the recipe's negative prompt is too long.
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
        """Check one prompt.

        Args:
            prompt: Text of an image, without the recipe's suffix.

        Returns:
            A remark for the user, or "".

        Raises:
            AdtError: If the prompt is empty or too long.
        """
        return self.target.check_prompt(suffixed(prompt, self.recipe.suffix))

    def encode(self, prompts: Sequence[str]) -> list[EncodedPrompt]:
        """Encode prompts with the recipe's suffix. Equal prompts are encoded only once.

        Args:
            prompts: Prompt of each image, without the recipe's suffix.

        Returns:
            Encoded prompts, one per image.

        Raises:
            AdtError: If a prompt is empty or too long.
        """
        rows = {prompt: self.target.encode_prompt(suffixed(prompt, self.recipe.suffix)) for prompt in set(prompts)}
        return [rows[prompt] for prompt in prompts]

    def encode_negative(self) -> EncodedPrompt | None:
        """Return the encoded negative prompt of the recipe; None if the recipe has no negative prompt."""
        return self.target.encode_prompt(self.recipe.negative) if self.recipe.negative.strip() else None

    def pixels(self, codes: Tensor, check: Check | None = None) -> Tensor:
        """Decode the codes of images to pixels.

        Args:
            codes: [B, rows, columns] int64, code of each cell of the grids of B images.
            check: Called often; may raise an exception to cancel.

        Returns:
            [B, 3, height, width], pixels in [-1, 1] on the codec's device.
        """
        codec = self.target.codec
        return codec.decode(codes.to(codec.codebook.device), check=check)

    def settings(self, prompt: str, image_index: int = 0, conditions: Mapping[str, Any] = {}) -> dict:
        """Return the metadata of an image's PNG, as plain JSON types.

        ``generate --from-png`` reproduces the image from the prompt, the settings of the recipe, and the device
        that generates the noise. The other values are information for users.

        Args:
            prompt: Prompt of the image, without the recipe's suffix.
            image_index: Index of the image among the images of its prompt.
            conditions: Further entries, such as the number of CPU threads (`Decoding.conditions`).
        """
        return {
            "prompt": prompt,
            **self.loaded.flat(),
            "model_name": self.target.name,
            "device": self.target.decoder.embedding.device.type,
            "image_index": image_index,
            "image_tokens": self.target.length,
            **conditions,
            "versions": {"adt-tree": VERSION, "torch": torch.__version__, "numpy": np.__version__},
        }
