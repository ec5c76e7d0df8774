"""What a list does with a prompt that its model can't read: stop, cut it, or go without it."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ..errors import AdtError, PromptTooLongError

RAISE, TRUNCATE, SKIP = "error", "truncate", "skip"
"""What may be done with a prompt that is too long or blank. A blank one can't be cut: it is skipped then."""
INVALID_MODES = RAISE, TRUNCATE, SKIP


class FittedPrompt(NamedTuple):
    """A prompt as it is drawn; None if it is left out. note: what became of it, or ""."""

    text: str | None
    note: str = ""


def fit_prompt(check: Callable[[str], str], prompt: str, way: str) -> FittedPrompt:
    """Return what is drawn of a prompt, and a note.

    Args:
        check: Returns a remark on a prompt, or "". Raises AdtError for a prompt that cannot be drawn.
        prompt: The prompt.
        way: One of `WAYS`.

    Raises:
        AdtError: If the prompt cannot be drawn and `way` is `STOP`.
    """
    try:
        return FittedPrompt(prompt, check(prompt))
    except AdtError as error:
        if way not in (TRUNCATE, SKIP):
            raise
        reason = str(error).rpartition(";")[0] or str(error)  # without the remedy
        if way == TRUNCATE and isinstance(error, PromptTooLongError) and (text := _cut(check, prompt)):
            reason = reason.removeprefix("Prompt too long: ")
            return FittedPrompt(text, f"truncated to its first {len(text)} of {len(prompt)} characters: {reason}")
        return FittedPrompt(None, f"left out: {reason}")


def _cut(check: Callable[[str], str], prompt: str) -> str:
    """The longest beginning of a prompt that fits: whole words, or else letters; "" if nothing fits."""
    words = [match.end() for match in re.finditer(r"\S+", prompt)]
    return _longest(check, prompt, words) or _longest(check, prompt, range(1, words[0]))


def _longest(check: Callable[[str], str], prompt: str, ends: Sequence[int]) -> str:
    """The longest beginning of a prompt that fits and ends at one of ``ends``; "" if none does."""
    count = bisect_left(ends, True, key=lambda end: not _fits(check, prompt[:end]))
    return prompt[: ends[count - 1]] if count else ""


def _fits(check: Callable[[str], str], text: str) -> bool:
    try:
        check(text)
    except AdtError:
        return False
    return True
