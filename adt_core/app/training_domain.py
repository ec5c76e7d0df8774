"""Warnings about prompts and image sizes that are outside of a model's training data."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path

from ..files import LARGEST_LIST, parse_json, read_text
from ..models.target import Target, Words

_WORDS = Path(__file__).parents[1] / "bundled" / "words.json"
_THINGS = "houses, boats, balloons, mugs and the like"
_MAX_PROMPTS = 3
"""Prompts that a warning quotes."""
_MAX_PROMPT_LENGTH = 40
"""Characters of a quoted prompt."""
_MAX_WORDS = 10
"""Unknown words that a warning lists."""
_MAX_WORD_LENGTH = 20
"""Characters of a listed word."""
_LETTERS = re.compile(r"[^\W\d_]+")
_WORD_PATTERN = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")
"""Words including digits and apostrophes."""
_TOLERANCE = 0.8
"""Minimum ratio of two pixel counts that are treated as equal, because sizes such as 4:3 are rounded to cells."""


def bundled_vocabulary() -> Words:
    """Return the words in the training captions of the bundled model."""
    return Words(**{kind: frozenset(words) for kind, words in parse_json(read_text(_WORDS, LARGEST_LIST)).items()})


def domain_warning(target: Target, prompts: Sequence[str]) -> str:
    """Return a warning about the image size and the prompts of a run, or "" if the model was trained for them.

    js/texts.js recognises and translates the text.

    Args:
        target: Target with the size of the run.
        prompts: Prompts of the run.
    """
    return " ".join(filter(None, (_size_warning(target), _prompt_warning(target, prompts))))


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
    squares = f"{smallest}x{smallest}" + (f" to {largest}x{largest}" if largest > smallest else "")
    return (
        f"{target.name} was trained for images of about as many pixels as {squares}; {columns * side}x{rows * side} is "
        "outside of that, so the image may look worse."
    )


def _prompt_warning(target: Target, prompts: Sequence[str]) -> str:
    """Return sentences about the prompts that name no object of the vocabulary, and their unknown words, or ""."""
    words = target.words
    missed = [prompt for prompt in prompts if words and not _is_understood(words, prompt)]
    if not words or not missed:
        return ""
    distinct = list(dict.fromkeys(missed))
    counted = f"{len(missed)} of {len(prompts)} prompts: " if len(prompts) > 1 else ""
    named = _join([repr(_shorten(prompt, _MAX_PROMPT_LENGTH)) for prompt in distinct], _MAX_PROMPTS)
    sentence = f"This small model knows {_THINGS}, and drew something else for {counted}{named}."
    unknown = dict.fromkeys(word for prompt in distinct for word in _unknown(words, prompt))
    return sentence + (f" Unknown words: {_join(list(unknown), _MAX_WORDS)}." if unknown else "")


def _is_understood(words: Words, prompt: str) -> bool:
    """Return whether a prompt names a known object, or scenery in known words only. Blank prompts pass."""
    words_in_prompt = set(_LETTERS.findall(prompt.lower()))
    if not prompt.strip() or not words.things.isdisjoint(words_in_prompt):
        return True
    return not words.scenery.isdisjoint(words_in_prompt) and not _unknown(words, prompt)


def _unknown(words: Words, prompt: str) -> list[str]:
    """Return the words of a prompt that the vocabulary lacks, in lower case."""
    unknown = []
    for text in _WORD_PATTERN.findall(prompt.lower()):
        parts = [part for part in _LETTERS.findall(text) if len(part) > 1 or not part.isascii()]  # not the "k" of "4k"
        if parts and not any(part in words for part in parts):
            unknown.append(_shorten(text, _MAX_WORD_LENGTH))
    return unknown


def _shorten(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"


def _join(names: Sequence[str], count: int) -> str:
    return ", ".join(names[:count]) + (" and others" if len(names) > count else "")
