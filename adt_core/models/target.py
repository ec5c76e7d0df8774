"""Target model with its codec and prompter: the interface that the engine uses for all families.

Terms: a code is the index of an image token in the codec's codebook. The tokens of an image are its codes and, in some
families, a token that ends each row of codes. Some models first generate a small version of the image. The tokens of
this small image then precede the tokens of the image itself. The raster position of a token is its index, from 0, in
the sequence of all these tokens.

A prompt row is the prompt part of one sequence of the batch. Each image has a conditional row, which contains the text.
With classifier-free guidance, it also has an unconditional row.

In shapes, B is the number of images, n the number of tokens, and h the hidden size of the decoder.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import AdtError, Check
from ..messages import message
from ..settings import Lantern, Sampling
from .layers import Decoder
from .rotary import MropePositions, Rope, rope_tables
from .torch_state import own_torch_state
from .vq import Codec


class EncodedPrompt(list[int]):
    """Token ids of one prompt row. The logits after the last token predict the first image token.

    Attributes:
        features: [n, h] decoder inputs that replace the embeddings of the ids, in a model with a text encoder. In such
            a model, only drafters read the ids. None in other models.
        hidden: Number of tokens at the beginning of the row that are masked in attention.
        note: Message to the user, such as that the text was truncated; "" if there is none.
        mrope_positions: [k, 3] int64 M-RoPE positions of the first k tokens, relative to the first token of the image,
            in a model with M-RoPE and source images. None if all tokens have consecutive positions.
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
        """Return the row with image tokens appended. ``embedding`` [vocab_size, h] is the decoder's."""
        features = self.features
        if features is not None:
            features = torch.cat([features.to(embedding), embedding[ids]])
        return EncodedPrompt([*self, *ids], features, self.hidden, mrope_positions=self.mrope_positions)


class PublishedSampling(NamedTuple):
    """Sampling settings that the authors of a family publish. They are the defaults for its models.

    For the first four attributes, see :class:`..settings.Sampling`.

    Attributes:
        suffix: Text to append to every prompt, but not to negative prompts. Callers of ``Target.encode_prompt`` append
            it with :func:`suffixed`.
        source: Address of the page or repository that publishes the settings.
        lantern: Settings of LANTERN that its authors, or those of ADT-Tree, publish for the family; their default for
            families that they have not used.
    """

    guidance_scale: float = Sampling.guidance_scale
    temperature: float = Sampling.temperature
    top_k: int = Sampling.top_k
    top_p: float = Sampling.top_p
    suffix: str = ""
    source: str = ""
    lantern: Lantern = Lantern(neighbours=1000, delta=0.1)


def suffixed(text: str, suffix: str) -> str:
    """Return a prompt with a suffix appended. A blank prompt is returned unchanged."""
    return f"{text.rstrip()}{suffix}" if text.strip() else text


def grammar_at(grammar: Tensor | None, positions: Tensor) -> Tensor | None:
    """Return a mask that excludes, at each of the given positions of an image, the tokens not allowed there.

    Args:
        grammar: Result of :meth:`Target.grammar`.
        positions: [n] or [B, n] int64 raster positions.

    Returns:
        [n, num_tokens] or [B, n, num_tokens]: 0 for allowed tokens, -inf for others. None if all tokens are allowed.
    """
    return None if grammar is None else grammar[positions % len(grammar)]


def guidance_at(guidance: Tensor | float, positions: Tensor) -> Tensor | float:
    """Return the scale [n, 1] or [B, n, 1] at raster positions [n] or [B, n], or ``guidance`` if it is a number.

    Args:
        guidance: Result of :meth:`Target.guidance`.
    """
    return guidance[positions % len(guidance)] if isinstance(guidance, Tensor) else guidance


class Prompter:
    """Converter of texts to prompt rows. In its methods, ``grid`` contains rows and columns of the image's codes.

    Attributes:
        name: Name of the model, for error messages.
    """

    name: str

    def encode(self, text: str, grid: tuple[int, int]) -> EncodedPrompt:
        """Return the conditional row of a text, or raise an AdtError if it is empty or too long."""
        raise NotImplementedError

    def encode_with(self, text: str, grid: tuple[int, int], sources: Sequence[Tensor]) -> EncodedPrompt:
        """Return the conditional row of a text and source images, in a family that supports source images.

        Args:
            sources: [rows, columns] int64 codes of each source image.

        Raises:
            AdtError: If the text is empty or too long.
        """
        raise NotImplementedError

    def check(self, text: str, grid: tuple[int, int]) -> str:
        """Return the note that ``encode`` would attach to a prompt (:attr:`EncodedPrompt.note`), or raise its error."""
        return self.encode(text, grid).note

    def unconditional(self, prompt: EncodedPrompt, grid: tuple[int, int]) -> EncodedPrompt:
        """Return the unconditional row that guidance contrasts with a prompt."""
        raise NotImplementedError

    def check_grid(self, grid: tuple[int, int], usual: tuple[int, int]) -> str:
        """Check whether the family supports an image size.

        Args:
            usual: Grid of the model's default size.

        Returns:
            "" if the family supports the size. Otherwise a clause for an error message that states the supported sizes.
        """
        return "" if grid == usual else message("limit.fixed", rows=usual[0], columns=usual[1])


class Words(NamedTuple):
    """All words that a model with a small vocabulary understands, in lower case.

    Attributes:
        things: Nouns for the things that the model can generate, such as "house".
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
    """Target model and the size of its images. The small image is one that some models generate first (GLM-Image).

    Attributes:
        name: Name of the checkpoint.
        family: Name of its :class:`.family.Family`.
        decoder: The transformer.
        codec: Image tokenizer.
        grid: Rows and columns of the image's codes.
        row_end: Whether each row of codes is followed by an end token (Lumina-mGPT, Emu3). The end token is the last of
            ``decoder.image_ids``. It is forced at the end of a row and not allowed elsewhere.
        text_encoder: Text encoder, if the model has one.
        usual_grid: Grid of the model's default size, if :meth:`sized` set the size of the images. Otherwise None:
            ``grid`` is then the grid of the default size.
        guidance_of: Function that returns the guidance scale at every position. Its arguments are the requested scale
            and the grid. None if the scale does not depend on the position.
        lead_of: Function that returns rows and columns of the small image. Its argument is the grid of the image. None
            if the model generates no small image.
        sources: [rows, columns] int64 codes of each source image; see :meth:`with_sources`.
        published_sampling: Sampling settings that the model's authors publish.
        trained: Range of image sizes in the training data, as in :class:`.family.Family`.
        words: All words that the model understands, if its vocabulary is small.
        script_vocab_size: Length of the logits from which the authors' published script samples, where tokens other
            than codes are -inf. 0 if these logits contain only the codes.
        script_header: Number of tokens that the script samples before the first image token. In this package, these
            tokens are part of the prompt.
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
    published_sampling: PublishedSampling = PublishedSampling()
    trained: tuple[float, float] | None = None
    words: Words | None = None
    script_vocab_size: int = 0
    script_header: int = 0
    prompter: Prompter = field(init=False)

    def sized(self, width: int, height: int) -> Target:
        """Return the same model for another image size in pixels, or raise an AdtError if it is not supported."""
        side = self.downsample
        max_positions = self.decoder.config.max_positions
        resized = copy(self)
        resized.grid = (height // side, width // side)
        resized.usual_grid = self.usual_grid or self.grid
        if height % side or width % side:
            problem: str = message("limit.multiples", side=side)
        else:
            problem = self.prompter.check_grid(resized.grid, resized.usual_grid)
        if not problem and resized.length >= max_positions:
            problem = message("limit.too_many_tokens", count=resized.length, limit=max_positions)
        if problem:
            rows, columns = resized.usual_grid
            usual = f"{columns * side}x{rows * side}"
            size = f"{width}x{height}"
            raise AdtError("size.unsupported", size=size, model=self.name, problem=problem, usual=usual)
        return resized

    @property
    def loaded(self) -> dict[str, Any]:
        """Settings with which the model was loaded. Keys are field names of a recipe, the saved settings of an image.

        The value of ``tiled`` depends on the current device of the weights.
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
        """Size of the codebook."""
        return self.decoder.head.shape[1]

    @property
    def num_tokens(self) -> int:
        """Number of different image tokens: the codes, and the token that ends a row if there is one."""
        return self.num_codes + self.row_end

    @property
    def script_layout(self) -> tuple[int, Tensor]:
        """Length of the logits from which the authors' script samples, and index [num_tokens] of each token in them."""
        ids = self.decoder.image_ids
        if self.script_vocab_size:
            return self.script_vocab_size, ids
        return len(ids), torch.arange(len(ids), device=ids.device)

    @property
    def columns(self) -> int:
        """Number of tokens per row of the image, including the token that ends the row."""
        return self.grid[1] + self.row_end

    @property
    def lead(self) -> tuple[int, int]:
        """Rows and columns of the small image; (0, 0) if there is none."""
        return self.lead_of(self.grid) if self.lead_of is not None else (0, 0)

    @property
    def length(self) -> int:
        """Number of tokens of an image, including the small image."""
        return math.prod(self.lead) + self.grid[0] * self.columns

    @property
    def num_cells(self) -> int:
        """Number of codes of an image, including the small image, but without the tokens that end rows."""
        return self.length - self.grid[0] * self.row_end

    @property
    def mrope_positions(self) -> MropePositions | None:
        """M-RoPE positions of prompt and image; None in a model without M-RoPE."""
        config = self.decoder.config
        return MropePositions.of(config, [self.lead, self.grid]) if config.mrope_section is not None else None

    @property
    def rope(self) -> Rope:
        """Tables of :func:`.rotary.rope_tables`, on the device of the weights."""
        positions = self.mrope_positions
        return rope_tables(self.decoder.config, self.decoder.embedding, None if positions is None else positions.table)

    @property
    def downsample(self) -> int:
        """Side of the square of pixels that one code represents, in pixels."""
        return self.codec.downsample

    def check_prompt(self, text: str) -> str:
        """Return the note of a prompt or raise the errors of :meth:`encode_prompt`, without running a text encoder."""
        return self.encode_prompt(text).note if self.sources else self.prompter.check(text, self.grid)

    @own_torch_state()
    def encode_prompt(self, text: str) -> EncodedPrompt:
        """Return the conditional row of a text, or raise an AdtError if it is empty or too long."""
        if self.sources:
            return self.prompter.encode_with(text, self.grid, self.sources)
        return self.prompter.encode(text, self.grid)

    def with_sources(self, sources: Sequence[Tensor]) -> Target:
        """Return the same model with source images in every prompt. With source images, it generates no small image.

        Args:
            sources: [rows, columns] int64 codes of each source image.

        Raises:
            AdtError: If the model generates images only from text.
        """
        if self.lead_of is None:
            raise AdtError("model.no_source", model=self.name)
        target = copy(self)
        target.sources = sources
        target.lead_of = None
        return target

    def unconditional(self, prompt: EncodedPrompt) -> EncodedPrompt:
        """Return the unconditional row that guidance contrasts with ``prompt``."""
        return self.prompter.unconditional(prompt, self.grid)

    def cells(self, codes: Tensor) -> Tensor:
        """Return the codes of the image [B, rows, columns], given all tokens [B, length]."""
        return codes[:, math.prod(self.lead) :].view(len(codes), self.grid[0], self.columns)[..., : self.grid[1]]

    def small(self, codes: Tensor) -> Tensor:
        """Return the codes of the small image [B, rows, columns], given all tokens [B, length]."""
        return codes[:, : math.prod(self.lead)].view(len(codes), *self.lead)

    def pixels(self, codes: Tensor, check: Check | None = None) -> Tensor:
        """Decode codes [B, rows, columns] to pixels [B, 3, height, width] in [-1, 1], on the codec's device."""
        return self.codec.decode(codes.to(self.codec.codebook.device), check=check)

    def kept(self, cells: Tensor, generated: Tensor, small: Tensor | None = None) -> Tensor:
        """Return the codes of an existing image of which some cells are generated again, in the order of generation.

        A cell of the small image is generated if at least half of its area is generated.

        Args:
            cells: [B, rows, columns] int64 codes of the image.
            generated: [B or 1, rows, columns] bool, whether each cell is generated.
            small: [B, rows, columns] codes of the small image (default: codes of ``cells`` at regular distances).

        Returns:
            [B, num_cells] int64, first the codes of the small image, then those of the image; -1 for cells to generate.
        """
        kept = torch.where(generated, -1, cells).flatten(1)
        if not math.prod(self.lead):
            return kept
        if small is None:
            # a small image of 2 x 3 codes for an image of 4 x 4: rows 0 and 2, columns 0, 1 and 2
            rows, columns = (torch.arange(few) * many // few for few, many in zip(self.lead, self.grid))
            small = cells[:, rows[:, None], columns]
        share = F.adaptive_avg_pool2d(generated.float(), self.lead)
        return torch.cat([torch.where(share >= 0.5, -1, small).flatten(1), kept], 1)

    def tokens(self, cells: Tensor) -> Tensor:
        """Insert the tokens that end the rows, if any, into codes [B, num_cells]; -1 is a token to generate."""
        if not self.row_end:
            return cells
        rows = cells.unflatten(1, self.grid)
        ends = torch.where(rows[..., -1:] < 0, -1, self.num_codes)
        return torch.cat([rows, ends], 2).flatten(1)

    def guidance(self, scale: float, like: Tensor) -> Tensor | float:
        """Return the guidance scale at every position: [length, 1], like the tensor ``like`` in dtype and device.

        If all positions have the same scale, ``scale`` itself is returned.
        """
        if self.guidance_of is None or scale == 1:
            return scale
        return like.new_tensor(self.guidance_of(scale, self.grid))[:, None]

    def grammar(self, like: Tensor) -> Tensor | None:
        """Return a mask to add to logits, which excludes the tokens that are not allowed in each column of the image.

        Returns:
            [columns, num_tokens]: 0 for allowed tokens, -inf for others. None if all tokens are allowed. It has the
            dtype and device of ``like``.
        """
        if not self.row_end:
            return None
        table = like.new_zeros(self.columns, self.num_tokens)
        table[:-1, -1] = table[-1, :-1] = -math.inf
        return table
