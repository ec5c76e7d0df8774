"""Handling of prompts in a list that a model cannot read: raise an error, truncate the prompt, or skip it."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ..errors import AdtError, PromptTooLongError
from ..messages import message

RAISE = "error"
TRUNCATE = "truncate"
SKIP = "skip"
INVALID_MODES = RAISE, TRUNCATE, SKIP
"""Modes for prompts that are too long or blank. A blank prompt cannot be truncated, so `TRUNCATE` skips it."""


class FittedPrompt(NamedTuple):
    """Result of `fit_prompt`.

    Attributes:
        text: Text to draw, or None if the prompt is skipped.
        note: Remark for the user, or "".
    """

    text: str | None
    note: str = ""


def fit_prompt(check: Callable[[str], str], prompt: str, mode: str) -> FittedPrompt:
    """Return the text to draw for a prompt, and a note.

    Args:
        check: Returns a remark on a prompt, or "". Raises AdtError for a prompt that cannot be drawn.
        prompt: The prompt.
        mode: One of `INVALID_MODES`.

    Raises:
        AdtError: If the prompt cannot be drawn and `mode` is `RAISE`.
    """
    try:
        return FittedPrompt(prompt, check(prompt))
    except AdtError as error:
        if mode not in (TRUNCATE, SKIP):
            raise
        reason = str(error).rpartition(";")[0] or str(error)  # without the remedy
        if mode == TRUNCATE and isinstance(error, PromptTooLongError) and (text := _truncate(check, prompt)):
            return FittedPrompt(text, _truncation_note(error, len(text), len(prompt)))
        return FittedPrompt(None, f"left out: {reason}")


def _truncation_note(error: PromptTooLongError, kept: int, length: int) -> str:
    """Return the note on a prompt of `length` characters, of which `kept` are drawn."""
    if error.tokens is None:
        return f"truncated to its first {kept} of {length} characters: {str(error).rpartition(';')[0]}"
    return message(
        "prompt.truncation",
        kept=kept,
        length=length,
        tokens=error.tokens,
        model=error.model,
        limit=error.limit,
    )


def _truncate(check: Callable[[str], str], prompt: str) -> str:
    """Return the longest prefix of a prompt that fits, in complete words if possible, or ""."""
    words = [match.end() for match in re.finditer(r"\S+", prompt)]
    return _longest_prefix(check, prompt, words) or _longest_prefix(check, prompt, range(1, words[0]))


def _longest_prefix(check: Callable[[str], str], prompt: str, ends: Sequence[int]) -> str:
    """Return the longest prefix of a prompt that fits and ends at one of `ends`, or ""."""
    count = bisect_left(ends, True, key=lambda end: not _fits(check, prompt[:end]))
    return prompt[: ends[count - 1]] if count else ""


def _fits(check: Callable[[str], str], text: str) -> bool:
    try:
        check(text)
    except AdtError:
        return False
    return True
