"""Handling of prompts that a model cannot read. Such a prompt raises an error, is truncated, or is skipped."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ..errors import AdtError, PromptTooLongError
from ..messages import Message, message

RAISE = "error"
TRUNCATE = "truncate"
SKIP = "skip"
INVALID_MODES = RAISE, TRUNCATE, SKIP
"""What to do with prompts that are too long or blank. `TRUNCATE` shortens long prompts and skips blank prompts."""


class FittedPrompt(NamedTuple):
    """Result of `fit_prompt`.

    Attributes:
        text: Prompt to generate an image from, or None if the prompt is skipped.
        note: Remark for the user, or "".
    """

    text: str | None
    note: str = ""


def fit_prompt(check: Callable[[str], str], prompt: str, mode: str) -> FittedPrompt:
    """Shorten or skip a prompt if the model cannot read it.

    Args:
        check: Returns a remark on a prompt, or "". It raises AdtError if the model cannot read the prompt.
        mode: One of `INVALID_MODES`.

    Raises:
        AdtError: If the model cannot read the prompt and `mode` is `RAISE`.
    """
    try:
        return FittedPrompt(prompt, check(prompt))
    except AdtError as error:
        if mode not in (TRUNCATE, SKIP):
            raise
        text = str(error).rpartition(";")[0] or str(error)  # without the remedy
        reason = Message([error.message.parts[0]._replace(text=text)])
        if mode == TRUNCATE and isinstance(error, PromptTooLongError) and (text := _truncate(check, prompt)):
            return FittedPrompt(text, _truncation_note(error, len(text), len(prompt)))
        return FittedPrompt(None, message("prompt.left_out", reason=reason))


def _truncation_note(error: PromptTooLongError, kept: int, length: int) -> str:
    """Return the note on a truncated prompt of `length` characters, whose complete text raised `error`."""
    if error.tokens is None:
        return f"truncated to its first {kept} of {length} characters: {str(error).rpartition(';')[0]}"
    return message(
        "prompt.truncation", kept=kept, length=length, tokens=error.tokens, model=error.model, limit=error.limit
    )


def _truncate(check: Callable[[str], str], prompt: str) -> str:
    """Return the longest beginning of a prompt that the model can read; "" if the model can read no beginning.

    The result ends at the end of a word if possible.
    """
    words = [match.end() for match in re.finditer(r"\S+", prompt)]
    return _longest_prefix(check, prompt, words) or _longest_prefix(check, prompt, range(1, words[0]))


def _longest_prefix(check: Callable[[str], str], prompt: str, ends: Sequence[int]) -> str:
    """Return the longest beginning that the model can read, or "". Its length is one of `ends`, in increasing order."""
    count = bisect_left(ends, True, key=lambda end: not _fits(check, prompt[:end]))
    return prompt[: ends[count - 1]] if count else ""


def _fits(check: Callable[[str], str], text: str) -> bool:
    try:
        check(text)
    except AdtError:
        return False
    return True
