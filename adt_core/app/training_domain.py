"""Warnings about prompts and image sizes for which a model was not trained."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from ..messages import Message, join, message
from ..models.target import Target, Words

_MAX_WORDS = 10
"""Number of unknown words that a warning lists."""
_MAX_WORD_LENGTH = 20
_MAX_REPEATED = 3
"""Number of objects in a warning about objects that are drawn too rarely."""
_MAX_ADJECTIVES = 3
"""Maximum number of words from a number to its noun, the number included, as in "two small red boats"."""
_NUMBERS = "one two three four five six seven eight nine ten".split()
_COUNTS = {number: fewer for fewer, number in zip(_NUMBERS, _NUMBERS[1:])}
"""Number -> the number below it."""
_COLLECTIVE = {"trees", "fruits"}
"""Plurals that the bundled model draws: a forest and a bowl of fruit."""
_HOLDERS = {"bouquet", "bowl", "vase"}
"""Objects that are drawn with a plural, such as "vase of flowers"."""
_MANY = {"several", "many", "few", "some", "both", "pair", "dozen", "dozens", "lots", "hundreds"}
"""Words for an indefinite number of objects."""
_LETTERS = re.compile(r"[^\W\d_]+")
_WORD_PATTERN = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")
"""Pattern of a word, which may contain digits and apostrophes."""
_TOLERANCE = 0.8
"""Two pixel counts are treated as equal if the smaller one divided by the larger one is at least this.

Sizes are rounded to complete grid cells, so images with different aspect ratios have slightly different counts."""


def domain_warning(target: Target, prompts: Sequence[str]) -> str:
    """Return a warning about the prompts of a run and the size of the target, or "" if it was trained for them."""
    return join((_prompt_warning(target, prompts), _size_warning(target)))


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
    """Return a sentence about objects that the model cannot draw, and about prompts of which it knows nothing.

    The result is "" if there is no such thing, or if the vocabulary of the model is not known.
    """
    words = target.words
    if not words:
        return ""
    missing = [(_unknown(words, prompt), _repeated(words, prompt)) for prompt in prompts]
    unknown = list(dict.fromkeys(word for listed, _ in missing for word in listed))
    repeated = list(dict.fromkeys(part for _, listed in missing for part in listed))
    known = words.things | words.scenery
    blind = sum(bool(prompt.strip()) and known.isdisjoint(_LETTERS.findall(prompt.lower())) for prompt in prompts)
    total = len(prompts)
    not_drawn = _not_drawn(unknown, repeated, sum(any(listed) for listed in missing), total)
    nothing = (
        message("prompts.nothing_known", count=blind, total=total) if total > 1 else message("prompt.nothing_known")
    )
    return join((not_drawn, nothing if blind else ""))


def _not_drawn(unknown: Sequence[str], repeated: Sequence[Message], count: int, total: int) -> str:
    """Return the sentence about unknown words and objects that are drawn too few times, in `count` of `total` prompts.

    Args:
        unknown: Unknown words of all prompts.
        repeated: Parts about objects; see `_repeated`.
    """
    if not count:
        return ""
    start = message("prompt.not_drawn") if total == 1 else message("prompts.not_drawn", count=count, total=total)
    listed = ", ".join(unknown[:_MAX_WORDS])
    things = join((listed, *repeated[:_MAX_REPEATED]), "; ")
    is_cut = len(unknown) > _MAX_WORDS or len(repeated) > _MAX_REPEATED
    return join((start, things, message("prompt.and_others") if is_cut else "", message("prompt.end")), "")


def _unknown(words: Words, prompt: str) -> list[str]:
    """Return the words of a prompt that the vocabulary lacks, in lower case and without a possessive ending."""
    unknown = []
    for text in _WORD_PATTERN.findall(prompt.lower()):
        parts = [part for part in _LETTERS.findall(text) if len(part) > 1 or not part.isascii()]  # no "k" of "4k"
        is_number = text in _COUNTS or text in _MANY
        if parts and not is_number and not any(part in words for part in parts):
            unknown.append(_shorten(re.sub("['’]s?$", "", text)))
    return unknown


def _repeated(words: Words, prompt: str) -> list[Message]:
    """Return parts such as "one of two sailboats", since a small model draws one object where a plural names several.

    Plurals that belong to one object, as in "vase of flowers", have no such part.
    """
    texts = _WORD_PATTERN.findall(prompt.lower())
    parts = []
    for i, text in enumerate(texts):
        before = texts[max(i - _MAX_ADJECTIVES, 0) : i]
        is_part = len(before) > 1 and before[-2] in _HOLDERS and before[-1] in ("of", "with")
        if text not in words.things or not text.endswith("s") or text in _COLLECTIVE or is_part:
            continue
        number = next((word for word in reversed(before) if word in _COUNTS or word.isdecimal()), "")
        if number == "1":
            continue
        missing = _COUNTS.get(number) or (str(int(number) - 1) if number else "")
        name = _shorten(text)
        some = message("prompt.fewer", missing=missing, count=number, things=name)
        parts.append(some if number else message("prompt.single", things=name))
    return parts


def _shorten(text: str) -> str:
    return text if len(text) <= _MAX_WORD_LENGTH else f"{text[: _MAX_WORD_LENGTH - 1]}…"
