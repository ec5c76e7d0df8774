r"""Patterns in a stranger's tokenizer: which of them are fast on every text.

A pattern is slow where the engine goes back and tries again. It does so when something that is repeated without end is
followed by something that may fail, as in ``\s+x``, and worse where repeats stand in each other. So a pattern is fast
if behind an endless repeat only such parts stand as may be left out. Some published patterns are of no such kind, and
fast enough nevertheless; they are listed.
"""

from __future__ import annotations

import re
from typing import NamedTuple

LONGEST = 2000
"""Characters of a pattern."""
_MOST_WORK = 2**13
"""Ways to match at one place that may have to be tried, times the characters of the pattern: each takes as long."""
_MOST_TIMES = 8
_DEEPEST = 4

_CONTRACTIONS = "'s|'t|'re|'ve|'m|'ll|'d"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_LOWER, _UPPER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]", r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_WORD = r"[^\r\n\p{L}\p{N}]?"
PUBLISHED = frozenset(
    (
        r"<sentinel:[0-9]+>",  # these two: Chameleon, and so Anole and Lumina-mGPT
        r"(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
        r"\s+$",  # DeepSeek, and so Janus-Pro
        # GPT-2, with and without a last part
        rf"{_CONTRACTIONS}| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|\s+(?!\S)|\s+",
        rf"{_CONTRACTIONS}| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|\s+(?!\S)",
        # GPT-4, with numbers of one digit and of up to three
        rf"(?i:{_CONTRACTIONS})|{_WORD}\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}",
        rf"(?i:{_CONTRACTIONS})|{_WORD}\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}",
        # GPT-4o
        rf"{_WORD}{_UPPER}*{_LOWER}+(?i:{_CONTRACTIONS})?|{_WORD}{_UPPER}+{_LOWER}*(?i:{_CONTRACTIONS})?|"
        rf"\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}",
    )
)
"""Published patterns that go back over white space or within a word, in a single way."""

_ESCAPE = r"\\[pP]\{\^?\w{1,40}\}|\\[sSdDwWrnt]|\\[^a-zA-Z0-9\s]"
_ATOM = re.compile(rf"\[\^?(?:{_ESCAPE}|[^\[\]\\^])+\]|{_ESCAPE}|[^\\\[\](){{}}|?*+^$]", re.DOTALL)
"""A class of characters, an escape, or a character."""
_TIMES = re.compile(r"(?:\?|\*|\+|\{(\d{1,3})(,?)(\d{0,3})\})(?![?+*{])")
_OPEN = re.compile(r"\((?:\?i?:)?(?!\?)")


class _Part(NamedTuple):
    """Part of a pattern. shortest: characters that it takes at least. ways: to match at one place.

    endless: does it repeat something without end?
    """

    shortest: int
    ways: int
    endless: bool


class _SlowError(Exception):
    """The pattern may be slow, or is of an unknown kind."""


def is_fast(pattern: str) -> bool:
    """Is the time of a pattern in proportion to the text, whatever that is? It must not match the empty text."""
    if pattern in PUBLISHED:
        return True
    try:
        whole, end = _choice(pattern[:LONGEST], 0, 0)
    except _SlowError:
        return False
    return end == len(pattern) and whole.shortest > 0 and whole.ways * len(pattern) <= _MOST_WORK


def _choice(text: str, at: int, depth: int) -> tuple[_Part, int]:
    """Parts between ``|``, up to the end or a closing bracket; and where that is."""
    whole, at = _sequence(text, at, depth)
    while text[at : at + 1] == "|":
        other, at = _sequence(text, at + 1, depth)
        shortest = min(whole.shortest, other.shortest)
        whole = _Part(shortest, whole.ways + other.ways, whole.endless or other.endless)
    return whole, at


def _sequence(text: str, at: int, depth: int) -> tuple[_Part, int]:
    """Parts one after another."""
    whole = _Part(0, 1, False)
    while at < len(text) and text[at] not in "|)":
        part, at = _piece(text, at, depth)
        if whole.endless and part.shortest:
            raise _SlowError
        whole = _Part(whole.shortest + part.shortest, whole.ways * part.ways, whole.endless or part.endless)
    return whole, at


def _piece(text: str, at: int, depth: int) -> tuple[_Part, int]:
    """A group or an atom, with how often it is repeated."""
    opened, atom = _OPEN.match(text, at), _ATOM.match(text, at)
    if opened and depth < _DEEPEST:
        part, at = _choice(text, opened.end(), depth + 1)
        if text[at : at + 1] != ")":
            raise _SlowError
        at += 1
    elif atom:
        part, at = _Part(1, 1, False), atom.end()
    else:
        raise _SlowError
    times = _TIMES.match(text, at)
    if times:
        part, at = _repeated(part, times, bool(opened)), times.end()
    return part, at


def _repeated(part: _Part, times: re.Match, is_group: bool) -> _Part:
    """A part that is repeated. A group may only be left out, since repeats in repeats are what is slow."""
    least, most = {"?": (0, 1), "*": (0, None), "+": (1, None)}.get(times[0], (None, None))
    if least is None:
        least = int(times[1])
        most = int(times[3]) if times[3] else None
        if not times[2]:  # no comma
            most = least
    if (is_group and times[0] != "?") or max(least, most or 0) > _MOST_TIMES or (most is not None and most < least):
        raise _SlowError
    ways = 1 if most is None else part.ways * (most - least + 1)
    return _Part(part.shortest * least, ways, part.endless or most is None)
