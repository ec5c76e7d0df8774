"""Target model of any family, as the engine uses it."""

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

    Attributes:
        features: [n, h] that a model with a text encoder reads instead of the ids. The ids are then only inputs of
            drafters.
        hidden: Number of tokens at the beginning that are masked.
        note: Sentence for the author of the text, such as that it was truncated; "" if there is none.
        mrope_positions: [k, 3] int64 of the first k tokens, relative to the first token of the image, in a model with
            M-RoPE and source images; None if all tokens have consecutive positions.
    """

    def __init__(
        self,
        ids: Iterable[int] = (),
        features: Tensor | None = None,
        hidden: int = 0,
        note: str = "",
        mrope_positions: Tensor | None = None,
    ):
        super().__init__(ids)
        self.features = features
        self.hidden = hidden
        self.note = note
        self.mrope_positions = mrope_positions

    def followed_by(self, ids: list[int], embedding: Tensor) -> EncodedPrompt:
        """Return the row with image tokens appended.

        Args:
            ids: Token ids of the image tokens.
            embedding: [vocab_size, h], the decoder's.
        """
        features = self.features
        if features is not None:
            features = torch.cat([features.to(embedding), embedding[ids]])
        return EncodedPrompt([*self, *ids], features, self.hidden, mrope_positions=self.mrope_positions)


class PublishedSampling(NamedTuple):
    """Sampling settings that the authors of a family publish, the defaults for its models.

    Attributes:
        guidance: As in :class:`..rules.settings.Sampling`.
        temperature: As in :class:`..rules.settings.Sampling`.
        top_k: As in :class:`..rules.settings.Sampling`.
        top_p: As in :class:`..rules.settings.Sampling`.
        suffix: Appended to every prompt, but not to negative prompts. Callers of ``Target.encode_prompt`` append it
            with :func:`suffixed`.
        source: Where the settings are published.
    """

    guidance: float = Sampling.guidance
    temperature: float = Sampling.temperature
    top_k: int = Sampling.top_k
    top_p: float = Sampling.top_p
    suffix: str = ""
    source: str = ""


def suffixed(text: str, suffix: str) -> str:
    """Return a prompt with a suffix; a blank prompt is returned unchanged."""
    return f"{text.rstrip()}{suffix}" if text.strip() else text


def grammar_at(grammar: Tensor | None, positions: Tensor) -> Tensor | None:
    """Return the mask of impossible tokens at some positions.

    Args:
        grammar: Result of :meth:`Target.grammar`.
        positions: [n] or [B, n] int64 raster positions.

    Returns:
        [n, num_tokens] or [B, n, num_tokens], 0 for possible and -inf for impossible tokens; None if all are possible.
    """
    return None if grammar is None else grammar[positions % len(grammar)]


def guidance_at(guidance: Tensor | float, positions: Tensor) -> Tensor | float:
    """Return the guidance scale at some positions.

    Args:
        guidance: Result of :meth:`Target.guidance`.
        positions: [n] or [B, n] int64 raster positions.

    Returns:
        The scale of each position, [n, 1] or [B, n, 1], or the number itself if it is the same everywhere.
    """
    return guidance[positions % len(guidance)] if isinstance(guidance, Tensor) else guidance


class Prompter:
    """Converter of texts to prompt rows.

    The argument ``grid`` of its methods holds the rows and columns of the image's codes.

    Attributes:
        name: Name of the model in error messages.
    """

    name: str

    def encode(self, text: str, grid: tuple[int, int]) -> EncodedPrompt:
        """Return the conditional row of a text.

        Args:
            text: The prompt.
            grid: Rows and columns of the image's codes.

        Raises:
            AdtError: If the text is empty or too long.
        """
        raise NotImplementedError

    def encode_with(self, text: str, grid: tuple[int, int], sources: Sequence[Tensor]) -> EncodedPrompt:
        """Return the conditional row of a text and source images, in a family that supports them.

        Args:
            text: The prompt.
            grid: Rows and columns of the image's codes.
            sources: [rows, columns] int64 codes of each source image.

        Raises:
            AdtError: If the text is empty or too long.
        """
        raise NotImplementedError

    def check(self, text: str, grid: tuple[int, int]) -> str:
        """Return the note that ``encode`` attaches to a prompt.

        Args:
            text: The prompt.
            grid: Rows and columns of the image's codes.

        Raises:
            AdtError: If the text is empty or too long.
        """
        return self.encode(text, grid).note

    def unconditional(self, prompt: EncodedPrompt, grid: tuple[int, int]) -> EncodedPrompt:
        """Return the unconditional row that guidance contrasts with a prompt.

        Args:
            prompt: The conditional row.
            grid: Rows and columns of the image's codes.
        """
        raise NotImplementedError

    def check_grid(self, grid: tuple[int, int], usual: tuple[int, int]) -> str:
        """Return which sizes the family supports if ``grid`` is not one of them, else "".

        Args:
            grid: Rows and columns of the image's codes.
            usual: Grid of the model's default size.
        """
        return "" if grid == usual else f"its images always have {usual[0]} x {usual[1]} tokens"


class Words(NamedTuple):
    """Vocabulary of a model that understands only few words, in lower case.

    Attributes:
        things: Nouns of things that it can generate, such as "house".
        scenery: Words for surroundings, such as "snow" or "city".
        others: Colours, positions, and function words such as "the".
    """

    things: frozenset[str]
    scenery: frozenset[str]
    others: frozenset[str]

    def __contains__(self, word: object) -> bool:
        return any(word in words for words in self)


@dataclass
class Target:
    """Target model and the size of its images.

    Some models generate a small version of the image first (GLM-Image), "the small image" below.

    Attributes:
        name: Name of the checkpoint.
        family: Name of its :class:`.family.Family`.
        decoder: The transformer.
        codec: Image tokenizer.
        grid: Rows and columns of the image's codes.
        row_end: Whether a token ends every row of codes (Lumina-mGPT, Emu3). It is the last of ``decoder.image_ids``,
            forced at the end of a row and impossible elsewhere.
        text_encoder: Text encoder, if the model has one.
        usual_grid: Grid of the model's default size, if ``grid`` is another one.
        guidance_of: Function that returns the guidance scale at every position, from the requested scale and the grid,
            in models whose scale depends on the position.
        lead_of: Function that returns rows and columns of the small image, from the grid of the image.
        sources: [rows, columns] int64 codes of the source images of every prompt; see :meth:`with_sources`.
        published: Sampling settings of its authors.
        trained: Smallest and largest side of its training images, as in :class:`.family.Family`.
        words: Vocabulary, if the model understands only few words.
        script_vocab_size: Length of the logits that its authors' script samples from, in which tokens other than codes
            are -inf; 0 if they are only the codes.
        script_header: Number of tokens that the authors' script samples before the first image token, and that are part
            of the prompt here.
        prompter: Converter of texts to prompt rows.
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
    script_vocab_size: int = 0
    script_header: int = 0
    prompter: Prompter = field(init=False)

    def sized(self, width: int, height: int) -> Target:
        """Return the same model for another image size.

        Args:
            width: Pixels.
            height: Pixels.

        Raises:
            AdtError: If the model does not support the size.
        """
        side = self.downsample
        max_positions = self.decoder.config.max_positions
        resized = copy(self)
        resized.grid = (height // side, width // side)
        resized.usual_grid = self.usual_grid or self.grid
        if height % side or width % side:
            problem = f"both sides must be multiples of {side}"
        else:
            problem = self.prompter.check_grid(resized.grid, resized.usual_grid)
        if not problem and resized.length >= max_positions:
            problem = f"that is {resized.length} tokens, but it accepts {max_positions} including the prompt"
        if problem:
            rows, columns = resized.usual_grid
            usual = f"{columns * side}x{rows * side}"
            raise AdtError(f"size is {width}x{height}, which {self.name} does not support: {problem}; try {usual}.")
        return resized

    @property
    def loaded(self) -> dict[str, Any]:
        """Loading settings, by the fields of a recipe. ``tiled`` is valid for the current device."""
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
        """Size of the codebook."""
        return self.decoder.head.shape[1]

    @property
    def num_tokens(self) -> int:
        """Number of different tokens: the codes, and the end of a row if there is one."""
        return self.num_codes + self.row_end

    @property
    def script_layout(self) -> tuple[int, Tensor]:
        """Length of the logits that the authors' script samples from, and each token's index in them [num_tokens]."""
        ids = self.decoder.image_ids
        return (
            (self.script_vocab_size, ids)
            if self.script_vocab_size
            else (len(ids), torch.arange(len(ids), device=ids.device))
        )

    @property
    def columns(self) -> int:
        """Tokens per row of the image, including the token that ends it."""
        return self.grid[1] + self.row_end

    @property
    def lead(self) -> tuple[int, int]:
        """Rows and columns of the small image that is generated first; (0, 0) if there is none."""
        return self.lead_of(self.grid) if self.lead_of is not None else (0, 0)

    @property
    def length(self) -> int:
        """Number of tokens of an image, including the small image."""
        return math.prod(self.lead) + self.grid[0] * self.columns

    @property
    def num_cells(self) -> int:
        """Number of codes of an image, including the small image: its tokens without the ends of rows."""
        return self.length - self.grid[0] * self.row_end

    @property
    def mrope_positions(self) -> MropePositions | None:
        """M-RoPE positions of prompt and image, in a model with M-RoPE."""
        config = self.decoder.config
        return MropePositions.of(config, [self.lead, self.grid]) if config.mrope_section is not None else None

    @property
    def rope(self) -> Rope:
        """Rotary tables, on the device of the weights."""
        positions = self.mrope_positions
        return rope_tables(self.decoder.config, self.decoder.embedding, None if positions is None else positions.table)

    @property
    def downsample(self) -> int:
        """Pixels per side of a code."""
        return self.codec.downsample

    def check_prompt(self, text: str) -> str:
        """Return :attr:`EncodedPrompt.note` of a text, or raise its errors, without running a text encoder."""
        return self.encode_prompt(text).note if self.sources else self.prompter.check(text, self.grid)

    def encode_prompt(self, text: str) -> EncodedPrompt:
        """Return the conditional row of a text, or raise an AdtError if it is empty or too long."""
        if self.sources:
            return self.prompter.encode_with(text, self.grid, self.sources)
        return self.prompter.encode(text, self.grid)

    def with_sources(self, sources: Sequence[Tensor]) -> Target:
        """Return the same model with source images in every prompt. It then generates no small image.

        Args:
            sources: [rows, columns] int64 codes of each source image.

        Raises:
            AdtError: If the model generates images only from text.
        """
        if self.lead_of is None:
            raise AdtError(
                f"a source image was given, but {self.name} generates images from text only; remove the source image."
            )
        target = copy(self)
        target.sources = sources
        target.lead_of = None
        return target

    def unconditional(self, prompt: EncodedPrompt) -> EncodedPrompt:
        """Return the unconditional row that guidance contrasts with ``prompt``."""
        return self.prompter.unconditional(prompt, self.grid)

    def cells(self, codes: Tensor) -> Tensor:
        """Return the codes of the image [B, rows, columns] from its tokens [B, length]."""
        return codes[:, math.prod(self.lead) :].view(len(codes), self.grid[0], self.columns)[..., : self.grid[1]]

    def small(self, codes: Tensor) -> Tensor:
        """Return the codes of the small image [B, rows, columns] from the image's tokens [B, length]."""
        return codes[:, : math.prod(self.lead)].view(len(codes), *self.lead)

    def beginning(self, cells: Tensor, count: int, small: Tensor | None = None) -> Tensor:
        """Return the codes that are kept of an image, in the order of generation.

        Args:
            cells: [B, rows, columns] int64 codes of the image.
            count: Number of its codes to keep.
            small: [B, rows, columns] int64 codes of its small image; by default sampled evenly from ``cells``.

        Returns:
            [B, P] int64: the codes of the small image, then the kept ones.
        """
        kept = cells.flatten(1)[:, :count]
        if not (count and math.prod(self.lead)):
            return kept
        if small is None:
            # 2 of 4 rows -> rows 0 and 2; 3 of 4 columns -> columns 0, 1 and 2
            rows, columns = (torch.arange(few) * many // few for few, many in zip(self.lead, self.grid))
            small = cells[:, rows[:, None], columns]
        return torch.cat([small.flatten(1), kept], 1)

    def tokens(self, cells: Tensor) -> Tensor:
        """Return the tokens of an image's first codes [B, P], with an end token after every complete row."""
        if not self.row_end:
            return cells
        rows = cells.split(self.grid[1], 1)
        ended = [F.pad(row, (0, 1), value=self.num_codes) if row.shape[1] == self.grid[1] else row for row in rows]
        return torch.cat(ended, 1)

    def guidance(self, scale: float, like: Tensor) -> Tensor | float:
        """Return the guidance scale at every position.

        Args:
            scale: Requested scale.
            like: Tensor that sets dtype and device.

        Returns:
            [length, 1], or the number itself if it is the same everywhere.
        """
        if self.guidance_of is None or scale == 1:
            return scale
        return like.new_tensor(self.guidance_of(scale, self.grid))[:, None]

    def grammar(self, like: Tensor) -> Tensor | None:
        """Return the mask of impossible tokens in each column of the image, to add to logits.

        Args:
            like: Tensor that sets dtype and device.

        Returns:
            [columns, num_tokens], 0 for possible and -inf for impossible tokens; None if all tokens are possible.
        """
        if not self.row_end:
            return None
        table = like.new_zeros(self.columns, self.num_tokens)
        table[:-1, -1] = table[-1, :-1] = -math.inf
        return table
