"""How texts become prompts where the transformer reads them itself."""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Tokenizer

from ..errors import AdtError
from .target import Prompt


@dataclass
class TokenPrompter:
    """Rows of named tokens before and behind the tokens of the text. A family overrides what it does in another way.

    vocabulary: ids by name, of the tokens that the family names. max_positions: of prompt and image together.
    """

    name: str
    tokenizer: Tokenizer
    vocabulary: dict[str, int]
    max_positions: int

    def encode(self, text: str, grid: tuple[int, int]) -> Prompt:
        if not text.strip():
            raise AdtError("prompt is empty; describe the picture in a few words.")
        ids = self.tokenizer.encode(self.request(text.strip(), grid), add_special_tokens=False).ids
        before, behind = ([self.vocabulary[name] for name in names] for names in (self.before(), self.behind(grid)))
        room = self.max_positions - self.tokens(grid) - len(before) - len(behind)
        if len(ids) > room:
            raise AdtError(f"prompt is {len(ids)} tokens long, and {self.name} has room for {room}; shorten it.")
        return Prompt([*before, *ids, *behind])

    def request(self, text: str, grid: tuple[int, int]) -> str:
        """What the model reads of a text."""
        return text

    def before(self) -> tuple[str, ...]:
        """Names of the tokens in front of the text."""
        raise NotImplementedError

    def behind(self, grid: tuple[int, int]) -> tuple[str, ...]:
        """Names of the tokens behind it."""
        return ()

    def tokens(self, grid: tuple[int, int]) -> int:
        """Tokens of an image."""
        return grid[0] * grid[1]

    def check_grid(self, grid: tuple[int, int], usual: tuple[int, int]) -> str:
        return "" if grid == usual else f"it draws a grid of {usual[0]} x {usual[1]} tokens only"
