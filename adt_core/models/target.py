"""What the engine knows of a loaded target, whatever its family."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import AdtError
from ..rules.settings import Sampling
from .layers import Decoder
from .rotary import MropePositions, Rope, rope_tables
from .vq import Codec


class EncodedPrompt(list[int]):
    """Token ids of one row of a prompt; the last one begins the image.

    features: [n, h], read instead of the ids by a model with a text encoder; the ids then only fill a drafter's input.
    hidden: how many tokens at the beginning nothing attends to. note: a sentence for who wrote the text, or "".
    places: [k, 3], of the first tokens, in a model that has places (:class:`.rotary.Places`), counted from where the
    image begins. All of them but these stand in one line.
    """

    def __init__(
        self,
        ids: Iterable[int] = (),
        features: Tensor | None = None,
        hidden: int = 0,
        note: str = "",
        places: Tensor | None = None,
    ):
        super().__init__(ids)
        self.features, self.hidden, self.note, self.places = features, hidden, note, places

    def followed_by(self, ids: list[int], embedding: Tensor) -> EncodedPrompt:
        """The row with image tokens behind it. embedding: [vocabulary, h], the decoder's."""
        features = self.features
        if features is not None:
            features = torch.cat([features.to(embedding), embedding[ids]])
        return EncodedPrompt([*self, *ids], features, self.hidden, places=self.places)


class PublishedSampling(NamedTuple):
    """How the authors of a family draw its images: what holds where the user chose nothing else.

    guidance, temperature, top_k, top_p: as in :class:`..rules.settings.Sampling`. suffix: put behind every prompt, not
    behind negative ones, by whoever encodes the prompt, with :func:`suffixed`; ``Target.encode_prompt`` does not. On
    the command line ``Job`` does it. source: where the settings are published.
    """

    guidance: float = Sampling.guidance
    temperature: float = Sampling.temperature
    top_k: int = Sampling.top_k
    top_p: float = Sampling.top_p
    suffix: str = ""
    source: str = ""


def suffixed(text: str, suffix: str) -> str:
    """A prompt with a suffix behind it. One that is blank stays so."""
    return f"{text.rstrip()}{suffix}" if text.strip() else text


def with_grammar(z: Tensor, grammar: Tensor | None, positions: Tensor) -> Tensor:
    """Logits [B, n, num_codes] at ``positions`` [n] or [B, n] -> [B, n, num_tokens], -inf for impossible tokens.

    grammar: from :meth:`Target.grammar`; None leaves the logits as they are.
    """
    return z if grammar is None else F.pad(z, (0, 1)) + grammar[positions % len(grammar)]


def guidance_at(guidance: Tensor | float, positions: Tensor) -> Tensor | float:
    """The scale at raster ``positions`` [n] or [B, n], as [..., 1]; the number itself if it is one for all.

    guidance: from :meth:`Target.guidance`.
    """
    return guidance[positions % len(guidance)] if isinstance(guidance, Tensor) else guidance


class Prompter:
    """How the texts of a family become prompts. ``grid``: rows and columns of the image's cells.

    Attributes:
        name: The model as errors call it.
    """

    name: str

    def encode(self, text: str, grid: tuple[int, int]) -> EncodedPrompt:
        """The conditional row of a text. AdtError if it is empty or too long."""
        raise NotImplementedError

    def encode_with(self, text: str, grid: tuple[int, int], sources: Sequence[Tensor]) -> EncodedPrompt:
        """The same of a text and source pictures, by the codes [rows, columns] of each, in families that take some."""
        raise NotImplementedError

    def check(self, text: str, grid: tuple[int, int]) -> str:
        """The note that ``encode`` would make of a text; raises AdtError where that would."""
        return self.encode(text, grid).note

    def unconditional(self, prompt: EncodedPrompt, grid: tuple[int, int]) -> EncodedPrompt:
        """The row without text that guidance pushes ``prompt`` away from."""
        raise NotImplementedError

    def check_grid(self, grid: tuple[int, int], usual: tuple[int, int]) -> str:
        """If the family can't draw ``grid``, what it can draw; else "". usual: the grid that the model draws best."""
        return "" if grid == usual else f"its images always have {usual[0]} x {usual[1]} tokens"


class Words(NamedTuple):
    """Words that a model understands, in lower case, if these are few.

    Attributes:
        things: Nouns of things that it can draw, such as "house".
        scenery: Words for what is around things, such as "snow" or "city".
        others: Colours, places, and words that ask for nothing, such as "the".
    """

    things: frozenset[str]
    scenery: frozenset[str]
    others: frozenset[str]

    def __contains__(self, word: object) -> bool:
        return any(word in words for words in self)


@dataclass
class Target:
    """A target model. Its weights: ``decoder`` (the transformer), ``codec`` and, if it has one, ``text_encoder``.

    grid: rows and columns of the image's cells. usual_grid: the one that the model draws best, if that is another.
    row_end: a token ends every row of cells (Lumina-mGPT, Emu3). It is the last of ``decoder.image_ids``, forced at the
    end of a row and impossible elsewhere. guidance_of: if guidance changes with the position, its scale at every one,
    by the scale that is asked for and the grid. lead_of: if a small picture is written before the image, its rows and
    columns, by those of the image (GLM-Image). sources: codes [rows, columns] of the pictures that every image is made
    of, see :meth:`with_sources`. published: how its authors draw. trained: sizes that it was trained for, as its family
    states them. words: those of a model that knows few. draws_from: how wide the vector is that its authors' script
    samples from, other tokens at minus infinity; 0 if it is the codes alone. drawn_before: tokens of an image that the
    script draws before the first that we draw, and that stand in our prompts.
    """

    name: str
    family: str
    decoder: Decoder
    codec: Codec
    grid: tuple[int, int]
    row_end: bool = False
    text_encoder: nn.Module | None = None
    usual_grid: tuple[int, int] | None = None
    guidance_of: Callable[[float, tuple[int, int]], list[float]] | None = None
    lead_of: Callable[[tuple[int, int]], tuple[int, int]] | None = None
    sources: Sequence[Tensor] = ()
    published: PublishedSampling = PublishedSampling()
    trained: tuple[float, float] | None = None
    words: Words | None = None
    draws_from: int = 0
    drawn_before: int = 0
    prompter: Prompter = field(init=False)

    def sized(self, width: int, height: int) -> Target:
        """The same model for images of ``width`` x ``height`` pixels. AdtError if it can't draw them."""
        side, room = self.downsample, self.decoder.config.max_positions
        resized = copy(self)
        resized.grid, resized.usual_grid = (height // side, width // side), self.usual_grid or self.grid
        if height % side or width % side:
            problem = f"both sides must be multiples of {side}"
        else:
            problem = self.prompter.check_grid(resized.grid, resized.usual_grid)
        if not problem and resized.length >= room:
            problem = f"that is {resized.length} tokens, but it accepts {room} including the prompt"
        if problem:
            rows, columns = resized.usual_grid
            usual = f"{columns * side}x{rows * side}"
            raise AdtError(f"size is {width}x{height}, which {self.name} does not support: {problem}; try {usual}.")
        return resized

    @property
    def loaded(self) -> dict[str, Any]:
        """How it was loaded, by the fields of a recipe's loading; ``tiled`` holds where it is now.

        size: None if it is the usual one.
        """
        rows, columns = self.grid
        return {
            "dtype": str(self.decoder.dtype).removeprefix("torch."),
            "exact": "on" if self.decoder.exact else "off",
            "tiled": self.decoder.tile > 0,
            "weights": self.decoder.weights,
            "size": (columns * self.downsample, rows * self.downsample) if self.usual_grid else None,
        }

    @property
    def num_codes(self) -> int:
        return self.decoder.head.shape[1]

    @property
    def num_tokens(self) -> int:
        """Kinds of tokens: the codes, and the end of a row if there is one."""
        return self.num_codes + self.row_end

    @property
    def script_row(self) -> tuple[int, Tensor]:
        """How wide the vector is that its authors' script samples from, and where in it every token is [num_tokens]."""
        ids = self.decoder.image_ids
        return (self.draws_from, ids) if self.draws_from else (len(ids), torch.arange(len(ids), device=ids.device))

    @property
    def columns(self) -> int:
        """Tokens per row of the image, its end included."""
        return self.grid[1] + self.row_end

    @property
    def lead(self) -> tuple[int, int]:
        """Rows and columns of the small picture that is written before the image; (0, 0) if there is none."""
        return self.lead_of(self.grid) if self.lead_of is not None else (0, 0)

    @property
    def length(self) -> int:
        """Tokens of an image, and of the small picture before it."""
        return math.prod(self.lead) + self.grid[0] * self.columns

    @property
    def num_cells(self) -> int:
        """The same without the ends of rows."""
        return self.length - self.grid[0] * self.row_end

    @property
    def places(self) -> MropePositions | None:
        """Where tokens are, in a model whose rotations go by that."""
        config = self.decoder.config
        return MropePositions.of(config, [self.lead, self.grid]) if config.axes is not None else None

    @property
    def rope(self) -> Rope:
        """The rotary tables, where the weights are."""
        places = self.places
        return rope_tables(self.decoder.config, self.decoder.embedding, None if places is None else places.table)

    @property
    def downsample(self) -> int:
        """Pixels per side of a cell."""
        return self.codec.downsample

    def check_prompt(self, text: str) -> str:
        """A sentence for who wrote the text, or "". AdtError if it is empty or too long. No text encoder works."""
        return self.encode_prompt(text).note if self.sources else self.prompter.check(text, self.grid)

    def encode_prompt(self, text: str) -> EncodedPrompt:
        """The conditional row of a text. AdtError if it is empty or too long."""
        if self.sources:
            return self.prompter.encode_with(text, self.grid, self.sources)
        return self.prompter.encode(text, self.grid)

    def with_sources(self, sources: Sequence[Tensor]) -> Target:
        """The same model for images that are made of pictures, whose codes [rows, columns] stand in every prompt.

        Then no small picture is written before the image. AdtError if it draws from texts alone.
        """
        if self.lead_of is None:
            raise AdtError(
                f"a source image was given, but {self.name} generates images from text only; remove the source image."
            )
        alone = copy(self)
        alone.sources, alone.lead_of = sources, None
        return alone

    def unconditional(self, prompt: EncodedPrompt) -> EncodedPrompt:
        """The row without text that guidance pushes ``prompt`` away from."""
        return self.prompter.unconditional(prompt, self.grid)

    def cells(self, codes: Tensor) -> Tensor:
        """Tokens [B, length] -> codes of the grid [B, rows, columns]."""
        return codes[:, math.prod(self.lead) :].view(len(codes), self.grid[0], self.columns)[..., : self.grid[1]]

    def small(self, codes: Tensor) -> Tensor:
        """Tokens [B, length] -> codes of the small picture before the image [B, rows, columns]."""
        return codes[:, : math.prod(self.lead)].view(len(codes), *self.lead)

    def beginning(self, cells: Tensor, count: int, small: Tensor | None = None) -> Tensor:
        """The codes that an image begins with if the first ``count`` of its cells are kept, [B, P].

        cells: [B, rows, columns]. small: of the small picture before it; if not given, cells of the image, evenly
        spread.
        """
        kept = cells.flatten(1)[:, :count]
        if not (count and math.prod(self.lead)):
            return kept
        if small is None:
            at = [torch.arange(few) * many // few for few, many in zip(self.lead, self.grid)]
            small = cells[:, at[0][:, None], at[1]]
        return torch.cat([small.flatten(1), kept], 1)

    def tokens(self, cells: Tensor) -> Tensor:
        """Codes that an image begins with [B, P] -> their tokens, with an end behind every whole row."""
        if not self.row_end:
            return cells
        rows = cells.split(self.grid[1], 1)
        ended = [F.pad(row, (0, 1), value=self.num_codes) if row.shape[1] == self.grid[1] else row for row in rows]
        return torch.cat(ended, 1)

    def guidance(self, scale: float, like: Tensor) -> Tensor | float:
        """The scale of guidance at every position [length, 1] in ``like``'s dtype and device; or one for all."""
        if self.guidance_of is None or scale == 1:
            return scale
        return like.new_tensor(self.guidance_of(scale, self.grid))[:, None]

    def grammar(self, like: Tensor) -> Tensor | None:
        """Added to the logits in each column [columns, num_tokens]: 0 or -inf. None if all tokens are possible."""
        if not self.row_end:
            return None
        table = like.new_zeros(self.columns, self.num_tokens)
        table[:-1, -1] = table[-1, :-1] = -math.inf
        return table
