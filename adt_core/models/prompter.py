"""How texts become prompts where the decoder reads them itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tokenizers import Tokenizer

from ..errors import AdtError
from .checkpoint import Checkpoint
from .layout import load_tokenizer
from .target import Prompt, Prompter, Target


def stripped(text: str) -> str:
    """A text without white space around it. AdtError if nothing is left, or if it is no text."""
    if not text.strip():
        raise AdtError("prompt is empty; describe the picture in a few words.")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise AdtError(f"prompt has half a character at position {error.start}; type that character again.") from None
    return text.strip()


def check_length(ids: list[int], room: int, name: str) -> None:
    """AdtError if a prompt has more tokens than the model ``name`` has ``room`` for."""
    if len(ids) > room:
        raise AdtError(f"prompt is {len(ids)} tokens long, and {name} has room for {room}; shorten it.")


@dataclass
class TokenPrompter(Prompter):
    """Rows of token ids: BOS, the tokens of the request, then those named by ``behind``. Each family has a subclass.

    vocabulary: ids of named tokens. room: positions for prompt and image together.
    """

    name: str
    tokenizer: Tokenizer
    vocabulary: dict[str, int]
    room: int
    row_end: bool

    BOS: ClassVar[str]
    """Name of the first token."""
    IN_TOKENIZER: ClassVar[tuple[str, ...]] = ()
    """Named tokens to look up in the tokenizer; if there are none, the ``vocabulary_map`` of config.json has them."""

    @classmethod
    def of(cls, target: Target, checkpoint: Checkpoint) -> TokenPrompter:
        """The prompter of a target. AdtError if its tokenizer is missing or lacks a token."""
        tokenizer = load_tokenizer(checkpoint.folder)
        found = {name: tokenizer.token_to_id(name) for name in cls.IN_TOKENIZER}
        missing = ", ".join(name for name, number in found.items() if number is None)
        if missing:
            problem = f"tokenizer.json lacks {missing}; use the checkpoint's own tokenizer.json"
            raise AdtError(f"{checkpoint.folder}: {problem}.")
        vocabulary: dict = found or checkpoint.config["vocabulary_map"]
        return cls(target.name, tokenizer, vocabulary, target.decoder.config.max_positions, target.row_end)

    def encode(self, text: str, grid: tuple[int, int]) -> Prompt:
        ids = self.tokenizer.encode(self.request(stripped(text), grid), add_special_tokens=False).ids
        behind = self.ids(*self.behind(grid))
        image = grid[0] * (grid[1] + self.row_end)
        check_length(ids, self.room - image - 1 - len(behind), self.name)
        return Prompt([*self.ids(self.BOS), *ids, *behind])

    def ids(self, *names: str) -> list[int]:
        return [self.vocabulary[name] for name in names]

    def request(self, text: str, grid: tuple[int, int]) -> str:
        """What the model reads of a text."""
        return text

    def behind(self, grid: tuple[int, int]) -> tuple[str, ...]:
        """Names of the tokens behind the request."""
        return ()
