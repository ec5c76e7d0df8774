"""A byte tokenizer with tokens of a model's own, which are found in a text by their names."""

from __future__ import annotations

from collections.abc import Iterable

from tokenizers import AddedToken, Tokenizer, decoders

from adt_core.models.target import Target
from tests.tiny import byte_tokenizer


def tokenizer_with(names: Iterable[str]) -> Tokenizer:
    """Bytes, and behind them the special tokens ``names`` in their order."""
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in names])
    return tokenizer


def spelled(target: Target, ids: Iterable[int]) -> str:
    """The text of tokens, with their names. The package itself never makes a text of tokens."""
    tokenizer = target.prompter.tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer.decode(list(ids), skip_special_tokens=False)
