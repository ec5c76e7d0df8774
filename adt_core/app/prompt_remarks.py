"""Remarks on prompts of a list that a model can read, but that their author has probably meant differently."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from ..errors import shown
from ..messages import Message, join, message
from .prompts import PromptEntry

MOST_LINES = 10
"""Number of lines of a prompt from which on a stray quotation mark is likely: it joins all rows up to the next one."""
_INVISIBLE = re.compile("[\u00ad\u200b\u2060\ufeff]|^[\u200c\u200d]|[\u200c\u200d]$")
"""Characters without a picture. Joiners inside a text belong to emoji and to many scripts."""
_WEIGHT = re.compile(r"\([^():]{1,200}:\s?[0-3](?:\.\d{1,3})?\)")
"""Weight in the syntax of other programs, such as "(red house:1.3)"."""
_REMARKS: dict[str, Callable[[str], object]] = {
    "remark.lines": lambda text: text.count("\n") >= MOST_LINES,
    "remark.invisible": _INVISIBLE.search,
    "remark.weight": _WEIGHT.search,
}
"""Key of a message -> function that returns whether the message applies to a prompt."""


def remarks(prompts: Iterable[PromptEntry]) -> str:
    """Return a sentence for each kind of remark, with the number of prompts and the first of them; "" if none."""
    found: dict[str, list[PromptEntry]] = {}
    for prompt in prompts:
        for key, is_odd in _REMARKS.items():
            if is_odd(prompt.text[:20_000]):
                found.setdefault(key, []).append(prompt)
    return join(_sentence(key, odd) for key, odd in found.items())


def _sentence(key: str, odd: list[PromptEntry]) -> Message:
    """Return the message about some prompts, which names the first of them."""
    more = message("remark.more", count=len(odd) - 1) if len(odd) > 1 else ""
    most = {"most": MOST_LINES} if key == "remark.lines" else {}
    return message(key, id=shown(odd[0].id), more=more, text=shown(odd[0].text), **most)
