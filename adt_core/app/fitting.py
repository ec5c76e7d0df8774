"""What a list does with a prompt that its model can't read: stop, cut it, or go without it."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

from ..errors import AdtError, TooLong
from .jobs import Job

STOP, CUT, SKIP = "error", "truncate", "skip"
"""What may be done with a prompt that is too long or blank. A blank one can't be cut: it is skipped then."""
WAYS = STOP, CUT, SKIP


class Fitted(NamedTuple):
    """A prompt as it is drawn; None if it is left out. note: what became of it, or ""."""

    text: str | None
    note: str = ""


def fit(job: Job, prompt: str, way: str) -> Fitted:
    """What is drawn of a prompt. Raises AdtError for one that can't be read, if that is the way."""
    try:
        return Fitted(prompt, job.check_prompt(prompt))
    except AdtError as error:
        if way not in (CUT, SKIP):
            raise
        reason = str(error).split(";")[0]  # without the remedy
        if way == CUT and isinstance(error, TooLong) and (text := _cut(job, prompt)):
            return Fitted(text, f"cut to its first {len(text)} of {len(prompt)} characters: {reason}")
        return Fitted(None, f"left out: {reason}")


def _cut(job: Job, prompt: str) -> str:
    """The longest beginning of a prompt that fits: whole words, or else letters; "" if nothing fits."""
    words = [match.end() for match in re.finditer(r"\S+", prompt)]
    return _longest(job, prompt, words) or _longest(job, prompt, range(1, words[0]))


def _longest(job: Job, prompt: str, ends: Sequence[int]) -> str:
    """The longest beginning of a prompt that fits and ends at one of ``ends``; "" if none does."""
    count = bisect_left(ends, True, key=lambda end: not _fits(job, prompt[:end]))
    return prompt[: ends[count - 1]] if count else ""


def _fits(job: Job, text: str) -> bool:
    try:
        job.check_prompt(text)
    except AdtError:
        return False
    return True
