"""What the engine knows of a loaded target, whatever its family."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import AdtError
from .checkpoint import Checkpoint, Entry
from .layers import Decoder
from .vq import Codec


class Prompt(list[int]):
    """Token ids of one row of a prompt, the begin-of-image token at last.

    A model that is conditioned on a text encoder has ``features`` [n, h] in place of its tokens, and ids only for a drafter to fill the places
    with. Nothing attends to the first ``hidden`` of them.
    """

    features: Tensor | None = None
    hidden: int = 0

    def followed_by(self, ids: list[int], embedding: Tensor) -> Prompt:
        """The row with image tokens behind it. embedding: [vocabulary, h], the decoder's."""
        longer = Prompt([*self, *ids])
        longer.hidden = self.hidden
        if self.features is not None:
            longer.features = torch.cat([self.features.to(embedding), embedding[ids]])
        return longer


def with_grammar(z: Tensor, grammar: Tensor | None, positions: Tensor) -> Tensor:
    """Logits [B, n, num_codes] of the tokens at raster ``positions`` [n] or [B, n] -> [B, n, num_tokens], -inf where a token is impossible.

    grammar: :meth:`Target.grammar`; without one, the logits as they are.
    """
    return z if grammar is None else F.pad(z, (0, 1)) + grammar[positions % len(grammar)]


class Prompter(Protocol):
    """How the texts of a family become prompts."""

    def encode(self, text: str, grid: tuple[int, int]) -> Prompt:
        """The conditional row for an image of ``grid`` cells (rows, columns). AdtError if the text is empty or too long."""

    def unconditional(self, prompt: Prompt, grid: tuple[int, int]) -> Prompt:
        """The row without text that guidance pushes ``prompt`` away from."""

    def check_grid(self, grid: tuple[int, int], usual: tuple[int, int]) -> str:
        """Why the family can't draw ``grid``, where ``usual`` is what it draws best: what it can draw, in words. Empty if it can."""


@dataclass
class Target:
    """A target model: ``decoder`` (the transformer) and ``codec`` (the image tokenizer) are the weights.

    grid: rows and columns of cells, one code each. row_end: behind each row stands one more token, which says nothing but that the row has ended
    (Lumina-mGPT, Emu3): it is the last of ``decoder.image_ids``, forced where it belongs and impossible elsewhere.
    usual_grid: that of the model, where ``grid`` is another. text_encoder: weights that read the prompt, where the decoder doesn't (LlamaGen).
    """

    name: str
    family: str
    decoder: Decoder
    codec: Codec
    grid: tuple[int, int]
    row_end: bool = False
    text_encoder: nn.Module | None = None
    usual_grid: tuple[int, int] | None = None
    prompter: Prompter = field(init=False)

    def sized(self, width: int, height: int) -> Target:
        """The same model for images of ``width`` x ``height`` pixels. AdtError if it can't draw them."""
        side, resized = self.downsample, copy(self)
        resized.grid, resized.usual_grid = (height // side, width // side), self.usual_grid or self.grid
        if height % side or width % side:
            problem = f"both sides must be multiples of {side}"
        else:
            problem = self.prompter.check_grid(resized.grid, resized.usual_grid)
        if not problem and resized.length >= self.decoder.config.max_positions:
            problem = f"that is {resized.length} tokens, and it has room for {self.decoder.config.max_positions} with the prompt"
        if problem:
            raise AdtError(f"size is {width}x{height}, which {self.name} can't draw: {problem}.")
        return resized

    @property
    def num_codes(self) -> int:
        return self.decoder.head.shape[1]

    @property
    def num_tokens(self) -> int:
        """The codes, and the end of a row if there is one."""
        return self.num_codes + self.row_end

    @property
    def columns(self) -> int:
        """Tokens in a row of the raster, its end included."""
        return self.grid[1] + self.row_end

    @property
    def length(self) -> int:
        """Tokens of an image."""
        return self.grid[0] * self.columns

    @property
    def downsample(self) -> int:
        """Pixels per token side."""
        return self.codec.config.downsample

    def encode_prompt(self, text: str) -> Prompt:
        """The conditional row of a text. AdtError if it is empty or too long."""
        return self.prompter.encode(text, self.grid)

    def unconditional(self, prompt: Prompt) -> Prompt:
        """The row without text that guidance pushes ``prompt`` away from."""
        return self.prompter.unconditional(prompt, self.grid)

    def cells(self, codes: Tensor) -> Tensor:
        """Tokens [B, length] -> codes of the grid [B, rows, columns]."""
        return codes.view(len(codes), self.grid[0], self.columns)[..., : self.grid[1]]

    def tokens(self, cells: Tensor) -> Tensor:
        """Codes of the first cells of the grid [B, P] -> the tokens that they are, the ends of whole rows included."""
        if not self.row_end:
            return cells
        whole = cells.shape[1] // self.grid[1] * self.grid[1]
        rows = (
            F.pad(cells[:, :whole].unflatten(1, (-1, self.grid[1])), (0, 1), value=self.num_codes)
            if whole
            else cells[:, :0]
        )
        return torch.cat([rows.flatten(1), cells[:, whole:]], 1)

    def grammar(self, like: Tensor) -> Tensor | None:
        """What is added to the logits of the tokens in each column of the raster, [columns, num_tokens]: 0 or -inf; None if nothing is ever impossible."""
        if not self.row_end:
            return None
        table = like.new_zeros(self.columns, self.num_tokens)
        table[:-1, -1] = table[-1, :-1] = -math.inf
        return table


class Family(NamedTuple):
    """A family of models: what ``models/load.py`` and ``inspect`` need to know of it.

    recognises: is a checkpoint one of the family? skeleton: the target that its files describe, built where the default device says, not yet filled and
    without its prompter; AdtError if its configuration makes no sense. entries: where its parameters come from. prompter: what reads its
    prompts; AdtError if a tokenizer is missing. unneeded: beginnings of the names of tensors that are
    in such checkpoints and that drawing does not need. remedies: what to do when tensors are missing whose names begin so.
    """

    name: str
    recognises: Callable[[Checkpoint], bool]
    skeleton: Callable[[Checkpoint], Target]
    entries: Callable[[Target, Checkpoint], list[Entry]]
    prompter: Callable[[Target, Checkpoint], Prompter]
    unneeded: tuple[str, ...] = ()
    remedies: Mapping[str, str] = MappingProxyType({})
