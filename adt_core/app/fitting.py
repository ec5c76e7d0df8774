"""What a list does with a prompt that its model can't read: stop, cut it, or go without it."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ..errors import AdtError, TooLong

STOP, CUT, SKIP = "error", "truncate", "skip"
"""What may be done with a prompt that is too long or blank. A blank one can't be cut: it is skipped then."""
WAYS = STOP, CUT, SKIP


class Fitted(NamedTuple):
    """A prompt as it is drawn; None if it is left out. note: what became of it, or ""."""

    text: str | None
    note: str = ""


def fit(check: Callable[[str], str], prompt: str, way: str) -> Fitted:
    """Return what is drawn of a prompt, and a note.

    Args:
        check: Returns a remark on a prompt, or "". Raises AdtError for a prompt that cannot be drawn.
        prompt: The prompt.
        way: One of `WAYS`.

    Raises:
        AdtError: If the prompt cannot be drawn and `way` is `STOP`.
    """
    try:
        return Fitted(prompt, check(prompt))
    except AdtError as error:
        if way not in (CUT, SKIP):
            raise
        reason = str(error).rpartition(";")[0] or str(error)  # without the remedy
        if way == CUT and isinstance(error, TooLong) and (text := _cut(check, prompt)):
            reason = reason.removeprefix("Prompt too long: ")
            return Fitted(text, f"truncated to its first {len(text)} of {len(prompt)} characters: {reason}")
        return Fitted(None, f"left out: {reason}")


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
