"""Remarks on prompts of a list that a model can read, but that their author has probably meant differently."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ..errors import shown
from .prompts import PromptEntry

MOST_LINES = 10
"""Number of lines of a prompt from which on a stray quotation mark is likely: it joins all rows up to the next one."""
_INVISIBLE = re.compile("[\u00ad\u200b\u2060\ufeff]|^[\u200c\u200d]|[\u200c\u200d]$")
"""Characters without a picture. Joiners inside a text belong to emoji and to many scripts."""
_WEIGHT = re.compile(r"\([^():]{1,200}:\s?[0-3](?:\.\d{1,3})?\)")
"""Weight in the syntax of other programs, such as "(red house:1.3)"."""
_REMARKS = (
    (
        lambda text: text.count("\n") >= MOST_LINES,
        f"has more than {MOST_LINES} lines; look for a stray quotation mark in the list",
    ),
    (_INVISIBLE.search, "contains invisible characters, which are read as part of the text"),
    (_WEIGHT.search, "contains a weight such as (text:1.3), which is read as plain text"),
)


def remarks(prompts: Iterable[PromptEntry]) -> str:
    """Return a sentence for each kind of remark, with the number of prompts and the first of them; "" if none."""
    found: dict[str, list[PromptEntry]] = {}
    for prompt in prompts:
        for is_odd, words in _REMARKS:
            if is_odd(prompt.text[:20_000]):
                found.setdefault(words, []).append(prompt)
    return " ".join(
        f"Prompt {shown(odd[0].id)}{f' and {len(odd) - 1} more' if len(odd) > 1 else ''}: {shown(odd[0].text)} {words}."
        for words, odd in found.items()
    )
