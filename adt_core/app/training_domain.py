"""Remarks on prompts and sizes that a model was not trained for."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path

from ..files import LARGEST_LIST, parse_json, read_text
from ..models.target import Target, Words

_WORDS = Path(__file__).parents[1] / "bundled" / "words.json"
_THINGS = "houses, boats, balloons, mugs and the like"
_NAMED = 3
"""Prompts that a remark names."""
_QUOTED = 40
"""Characters of such a prompt."""
_LISTED = 10
"""Unknown words that a remark lists."""
_LONGEST = 20
"""Characters of such a word."""
_LETTERS = re.compile(r"[^\W\d_]+")
_TEXTS = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")
"""Words as they are listed: with digits and apostrophes."""
_ABOUT = 0.8
"""Least ratio of two numbers of pixels that count as equal: shapes such as 4:3 are rounded to cells."""


def bundled_vocabulary() -> Words:
    """Return the words that the bundled model is taught."""
    return Words(**{kind: frozenset(words) for kind, words in parse_json(read_text(_WORDS, LARGEST_LIST)).items()})


def domain_warning(target: Target, prompts: Sequence[str]) -> str:
    """Return the remarks on a run's size and prompts, or "" if the model was trained for them.

    js/words.js translates it, and finds it by its words.
    """
    return " ".join(filter(None, (_size_remark(target), _prompt_remark(target, prompts))))


def _size_remark(target: Target) -> str:
    """Return a sentence if the model was not trained for images of as many pixels as the target's, else ""."""
    if target.trained is None:
        return ""
    side = target.downsample
    usual = math.sqrt(math.prod(target.usual_grid or target.grid)) * side
    least, most = (round(usual * sides) for sides in target.trained)
    rows, columns = target.grid
    pixels = rows * columns * side**2
    if _ABOUT * least**2 <= pixels <= most**2 / _ABOUT:
        return ""
    squares = f"{least}x{least}" + (f" to {most}x{most}" if most > least else "")
    return (
        f"{target.name} was trained for images of about as many pixels as {squares}; {columns * side}x{rows * side} is "
        "outside of that, so the image may look worse."
    )


def _prompt_remark(target: Target, prompts: Sequence[str]) -> str:
    """Return sentences that name the prompts that ask for no thing that the model knows, and their unknown words."""
    words = target.words
    missed = [prompt for prompt in prompts if words and not _is_understood(words, prompt)]
    if not words or not missed:
        return ""
    distinct = list(dict.fromkeys(missed))
    counted = f"{len(missed)} of {len(prompts)} prompts: " if len(prompts) > 1 else ""
    named = _listed([repr(_cut(prompt, _QUOTED)) for prompt in distinct], _NAMED)
    sentence = f"This small model knows {_THINGS}, and drew something else for {counted}{named}."
    unknown = dict.fromkeys(word for prompt in distinct for word in _unknown(words, prompt))
    return sentence + (f" Unknown words: {_listed(list(unknown), _LISTED)}." if unknown else "")


def _is_understood(words: Words, prompt: str) -> bool:
    """Return whether the prompt names a thing, or is about scenery in known words. Blank ones are refused elsewhere."""
    asked = set(_LETTERS.findall(prompt.lower()))
    if not prompt.strip() or not words.things.isdisjoint(asked):
        return True
    return not words.scenery.isdisjoint(asked) and not _unknown(words, prompt)


def _unknown(words: Words, prompt: str) -> list[str]:
    """Return the words of a prompt that the model passes over, in lower case."""
    unknown = []
    for text in _TEXTS.findall(prompt.lower()):
        parts = [part for part in _LETTERS.findall(text) if len(part) > 1 or not part.isascii()]  # not the "k" of "4k"
        if parts and not any(part in words for part in parts):
            unknown.append(_cut(text, _LONGEST))
    return unknown


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _listed(names: Sequence[str], most: int) -> str:
    return ", ".join(names[:most]) + (" and others" if len(names) > most else "")
