"""Byte tokenizer with special tokens."""

from __future__ import annotations

from collections.abc import Iterable

from tokenizers import AddedToken, Tokenizer, decoders

from adt_core.models.target import Target
from tests.tiny import byte_tokenizer


def tokenizer_with(names: Iterable[str], vocabulary: dict[str, int] | None = None) -> Tokenizer:
    """Return a byte tokenizer with the special tokens ``names``. By default, their ids follow the ids of the bytes."""
    tokenizer = byte_tokenizer(vocabulary)
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in names])
    return tokenizer


def spelled(target: Target, ids: Iterable[int]) -> str:
    """Decode token ids to text, including special tokens. Only tests need this: the package never decodes text."""
    tokenizer = target.prompter.tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer.decode(list(ids), skip_special_tokens=False)
