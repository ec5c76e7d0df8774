"""Warnings about prompts and image sizes for which a model was not trained."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from ..messages import Message, join, message
from ..models.target import Target, Words

_MAX_PROMPTS = 3
"""Maximum number of prompts that a warning quotes."""
_MAX_PROMPT_LENGTH = 40
"""Maximum number of characters of a quoted prompt."""
_MAX_WORDS = 10
"""Maximum number of unknown words that a warning lists."""
_MAX_WORD_LENGTH = 20
"""Maximum number of characters of a listed word."""
_LETTERS = re.compile(r"[^\W\d_]+")
_WORD_PATTERN = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")
"""Pattern of a word, which may contain digits and apostrophes."""
_TOLERANCE = 0.8
"""Tolerance in comparisons of pixel counts.

Two counts are treated as equal if the smaller count divided by the larger count is at least `_TOLERANCE`. Sizes are
rounded to complete grid cells, so images with different aspect ratios have slightly different counts."""


def domain_warning(target: Target, prompts: Sequence[str]) -> str:
    """Return a warning about the image size and the prompts of a run, or "" if the model was trained for them.

    Args:
        target: Target whose grid has the image size of the run.
    """
    return join((_size_warning(target), _prompt_warning(target, prompts)))


def _size_warning(target: Target) -> str:
    """Return a sentence if the model was not trained for images with this number of pixels, else ""."""
    if target.trained is None:
        return ""
    side = target.downsample
    usual = math.sqrt(math.prod(target.usual_grid or target.grid)) * side
    smallest, largest = (round(usual * sides) for sides in target.trained)
    rows, columns = target.grid
    pixels = rows * columns * side**2
    if _TOLERANCE * smallest**2 <= pixels <= largest**2 / _TOLERANCE:
        return ""
    least = f"{smallest}x{smallest}"
    most = f"{largest}x{largest}"
    size = f"{columns * side}x{rows * side}"
    if largest > smallest:
        return message("size.untrained_range", model=target.name, smallest=least, largest=most, size=size)
    return message("size.untrained", model=target.name, usual=least, size=size)


def _prompt_warning(target: Target, prompts: Sequence[str]) -> str:
    """Return sentences about prompts that the model does not understand, and about the unknown words in these prompts.

    The result is "" if the model understands all prompts, or if the vocabulary of the model is not known.
    """
    words = target.words
    missed = [prompt for prompt in prompts if words and not _is_understood(words, prompt)]
    if not words or not missed:
        return ""
    distinct = list(dict.fromkeys(missed))
    unknown = list(dict.fromkeys(word for prompt in distinct for word in _unknown(words, prompt)))
    return join((_unknown_prompts(distinct, len(missed), len(prompts)), _unknown_words(unknown)))


def _unknown_prompts(distinct: Sequence[str], count: int, total: int) -> Message:
    """Return the sentence about prompts that the model does not understand.

    Args:
        distinct: Prompts that the model does not understand, without repetitions.
        count: Number of prompts that the model does not understand, with repetitions.
        total: Number of all prompts of the run.
    """
    quoted = ", ".join(repr(_shorten(prompt, _MAX_PROMPT_LENGTH)) for prompt in distinct[:_MAX_PROMPTS])
    if total == 1:
        return message("prompt.unknown", prompt=quoted)
    key = "prompts.unknown_and_others" if len(distinct) > _MAX_PROMPTS else "prompts.unknown"
    return message(key, count=count, total=total, prompts=quoted)


def _unknown_words(unknown: Sequence[str]) -> str:
    if not unknown:
        return ""
    key = "prompt.unknown_words_and_others" if len(unknown) > _MAX_WORDS else "prompt.unknown_words"
    return message(key, words=", ".join(unknown[:_MAX_WORDS]))


def _is_understood(words: Words, prompt: str) -> bool:
    """Return whether a model with this vocabulary understands a prompt.

    A prompt is understood in three cases: it names a known object, it names known scenery and has no unknown words, or
    it is blank.
    """
    words_in_prompt = set(_LETTERS.findall(prompt.lower()))
    if not prompt.strip() or not words.things.isdisjoint(words_in_prompt):
        return True
    return not words.scenery.isdisjoint(words_in_prompt) and not _unknown(words, prompt)


def _unknown(words: Words, prompt: str) -> list[str]:
    """Return the words of a prompt that the vocabulary lacks, in lower case."""
    unknown = []
    for text in _WORD_PATTERN.findall(prompt.lower()):
        parts = [part for part in _LETTERS.findall(text) if len(part) > 1 or not part.isascii()]  # no "k" of "4k"
        if parts and not any(part in words for part in parts):
            unknown.append(_shorten(text, _MAX_WORD_LENGTH))
    return unknown


def _shorten(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"
