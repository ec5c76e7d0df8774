"""How texts become prompts where the decoder reads them itself."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from tokenizers import Tokenizer

from ..errors import AdtError, PromptTooLongError
from .reading.checkpoint import TOKENIZER, Checkpoint
from .reading.tokenizer import encode, load_tokenizer, made_of
from .target import EncodedPrompt, Prompter, Target

MOST_CHARACTERS = 10_000
"""Of a prompt. No model has room for more, and some patterns of tokenizers take time that grows with the square."""


def stripped(text: str) -> str:
    """A text without white space around it. AdtError if nothing is left, if it is far too long, or if it is no text."""
    if not text.strip():
        raise AdtError("prompt is empty; describe the image in a few words.")
    if len(text) > MOST_CHARACTERS:
        raise PromptTooLongError(
            f"prompt has {len(text)} characters, and {MOST_CHARACTERS} at most are read; shorten it."
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise AdtError(
            f"prompt contains half of a character at position {error.start}; delete that character and type it again."
        ) from None
    return text.strip()


def check_length(ids: list[int], room: int, name: str) -> None:
    """Raise PromptTooLongError if a prompt has more tokens than the model ``name`` has ``room`` for."""
    if len(ids) > room:
        raise PromptTooLongError(f"Prompt too long: {len(ids)} tokens; {name} accepts {room}; shorten it.")


def check_ids(ids: Iterable[int], size: int, name: str) -> None:
    """AdtError if a prompt has an id that the model ``name``, of ``size`` tokens, does not know."""
    largest = max(ids, default=0)
    if largest >= size:
        problem = f"prompt contains token {largest}, but {name} has only {size} tokens"
        raise AdtError(f"{problem}; use the tokenizer.json published with {name}.")


@dataclass
class TokenPrompter(Prompter):
    """Rows of token ids: BOS, the tokens of the request, then those named by ``behind``. Each family has a subclass.

    vocabulary: ids of named tokens. size: of all tokens that the model knows. room: positions for prompt and image
    together.
    """

    name: str
    tokenizer: Tokenizer
    vocabulary: dict[str, int]
    size: int
    room: int
    row_end: bool

    BOS: ClassVar[str]
    """Name of the first token."""
    IN_TOKENIZER: ClassVar[tuple[str, ...]] = ()
    """Named tokens to look up in the tokenizer; if there are none, the ``vocabulary_map`` of config.json has them."""
    FOLDER: ClassVar[tuple[str, ...]] = ()
    """Name of the tokenizer's folder beside the checkpoint, if it is not in the checkpoint's own."""

    @classmethod
    def of(cls, target: Target, checkpoint: Checkpoint) -> TokenPrompter:
        """The prompter of a target. AdtError if its tokenizer is missing or lacks a token."""
        folder, own = checkpoint.beside(cls.FOLDER) or checkpoint.folder, checkpoint.embedded(TOKENIZER)
        tokenizer = made_of(own, checkpoint.path) if own else load_tokenizer(folder)
        ids = {name: tokenizer.token_to_id(name) for name in cls.IN_TOKENIZER}
        missing = ", ".join(name for name, number in ids.items() if number is None)
        if missing:
            problem = f"tokenizer.json lacks {missing}; use the checkpoint's own tokenizer.json"
            raise AdtError(f"{folder}: {problem}.")
        vocabulary: dict = ids or checkpoint.config["vocabulary_map"]
        config = target.decoder.config
        return cls(target.name, tokenizer, vocabulary, config.vocab_size, config.max_positions, target.row_end)

    def encode(self, text: str, grid: tuple[int, int]) -> EncodedPrompt:
        ids = encode(self.tokenizer, self.request(stripped(text), grid), self.name).ids
        behind = self.ids(*self.behind(grid))
        image = grid[0] * (grid[1] + self.row_end)
        check_length(ids, self.room - image - 1 - len(behind), self.name)
        row = [*self.ids(self.BOS), *ids, *behind]
        check_ids(row, self.size, self.name)
        return EncodedPrompt(row)

    def ids(self, *names: str) -> list[int]:
        return [self.vocabulary[name] for name in names]

    def request(self, text: str, grid: tuple[int, int]) -> str:
        """What the model reads of a text."""
        return text

    def behind(self, grid: tuple[int, int]) -> tuple[str, ...]:
        """Names of the tokens behind the request."""
        return ()
