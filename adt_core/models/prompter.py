"""Conversion of texts to prompts for models whose decoder reads token ids."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from tokenizers import Tokenizer

from ..errors import AdtError, PromptTooLongError
from .reading.checkpoint import TOKENIZER, Checkpoint
from .reading.tokenizer import encode, load_tokenizer, tokenizer_from_json
from .target import EncodedPrompt, Prompter, Target

MOST_CHARACTERS = 10_000
"""Maximum length of a prompt in characters, for all models. Longer prompts are rejected before they are tokenized,
because the run time of some tokenizers is quadratic in the length."""


def stripped(text: str) -> str:
    """Return a prompt without surrounding white space.

    Raises:
        AdtError: If the text is empty, longer than :data:`MOST_CHARACTERS`, or contains an unpaired surrogate.
    """
    if not text.strip():
        raise AdtError("prompt.empty")
    if len(text) > MOST_CHARACTERS:
        raise PromptTooLongError("prompt.too_many_characters", count=len(text), most=MOST_CHARACTERS)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise AdtError("prompt.half_character", position=error.start) from None
    return text.strip()


def check_length(ids: list[int], most: int, name: str) -> None:
    """Raise a PromptTooLongError if a prompt has more than ``most`` tokens."""
    if len(ids) > most:
        raise PromptTooLongError("prompt.too_long", tokens=len(ids), limit=most, model=name)


def check_ids(ids: Iterable[int], vocab_size: int, name: str) -> None:
    """Raise an AdtError if the embedding has no row for a token id of a prompt.

    Looking up a missing row on a GPU would raise a CUDA error, after which the process can't use the GPU.
    """
    largest = max(ids, default=0)
    if largest >= vocab_size:
        raise AdtError("prompt.unknown_token", name=name, largest=largest, vocab_size=vocab_size)


@dataclass
class TokenPrompter(Prompter):
    """Prompter whose rows are token ids: the BOS token, the tokens of the text, then special tokens.

    Each family whose decoder reads token ids has a subclass.

    Attributes:
        vocabulary: Token ids of special tokens, by name.
        vocab_size: Size of the model's vocabulary.
        max_positions: Maximum number of tokens of a prompt and its image together.
        row_end: Whether a token ends every row of the image.
        BOS: Name of the first token of a row.
        IN_TOKENIZER: Names of the special tokens whose ids are in tokenizer.json. If empty, ``vocabulary`` is the
            ``vocabulary_map`` of config.json.
        FOLDER: Glob patterns for the folder with the tokenizer, if it is not in the checkpoint's folder.
    """

    name: str
    tokenizer: Tokenizer
    vocabulary: dict[str, int]
    vocab_size: int
    max_positions: int
    row_end: bool

    BOS: ClassVar[str]
    IN_TOKENIZER: ClassVar[tuple[str, ...]] = ()
    FOLDER: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def of(cls, target: Target, checkpoint: Checkpoint) -> TokenPrompter:
        """Return the prompter of a target, or raise an AdtError if the tokenizer or a special token is missing."""
        folder = checkpoint.find_companion(cls.FOLDER) or checkpoint.folder
        embedded = checkpoint.embedded(TOKENIZER)
        tokenizer = tokenizer_from_json(embedded, checkpoint.path) if embedded else load_tokenizer(folder)
        ids = {name: tokenizer.token_to_id(name) for name in cls.IN_TOKENIZER}
        missing = ", ".join(name for name, number in ids.items() if number is None)
        if missing:
            raise AdtError("tokenizer.lacks", folder=folder, missing=missing)
        vocabulary: dict = ids or checkpoint.config["vocabulary_map"]
        config = target.decoder.config
        return cls(target.name, tokenizer, vocabulary, config.vocab_size, config.max_positions, target.row_end)

    def encode(self, text: str, grid: tuple[int, int]) -> EncodedPrompt:
        ids = encode(self.tokenizer, self.format_text(stripped(text), grid), self.name).ids
        suffix = self.ids(*self.suffix_tokens(grid))
        image = grid[0] * (grid[1] + self.row_end)
        check_length(ids, self.max_positions - image - 1 - len(suffix), self.name)
        row = [*self.ids(self.BOS), *ids, *suffix]
        check_ids(row, self.vocab_size, self.name)
        return EncodedPrompt(row)

    def ids(self, *names: str) -> list[int]:
        """Return the ids of the special tokens with these names."""
        return [self.vocabulary[name] for name in names]

    def format_text(self, text: str, grid: tuple[int, int]) -> str:
        """Return the text to tokenize: by default the prompt, in some families a template that contains it."""
        return text

    def suffix_tokens(self, grid: tuple[int, int]) -> tuple[str, ...]:
        """Return the names of the special tokens after the text."""
        return ()
