"""What a small model knows, and what is said of prompts that ask for nothing of that."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from ..errors import shown
from ..files import LARGEST_LIST, parse_json, read_text
from ..models.target import Target

_WORDS = Path(__file__).parents[1] / "bundled" / "words.json"
_NAMED = 3
"""Prompts that a remark names."""


def bundled_words() -> frozenset[str]:
    """The words with which a prompt asks for something that the bundled model can draw."""
    return frozenset(parse_json(read_text(_WORDS, LARGEST_LIST)))


def remark(target: Target, prompts: Sequence[str]) -> str:
    """A sentence for who wrote prompts that were drawn, or "": which of them ask for nothing that the model knows.

    js/words.js translates it, and finds it by its words.
    """
    unknown = [prompt for prompt in prompts if not _asks_for_known(target, prompt)]
    if not unknown:
        return ""
    distinct = list(dict.fromkeys(unknown))
    named = ", ".join(map(shown, distinct[:_NAMED])) + (" and others" if len(distinct) > _NAMED else "")
    counted = f"{len(unknown)} of {len(prompts)} prompts: " if len(prompts) > 1 else ""
    things = "houses, boats, balloons, mugs and the like"
    return f"This small model knows {things}, and drew something else for {counted}{named}."


def _asks_for_known(target: Target, prompt: str) -> bool:
    """A model that has no list of words may know all. A blank prompt asks for nothing, and that is said elsewhere."""
    words = re.findall(r"[^\W\d_]+", prompt.lower())
    return not target.words or not prompt.strip() or not target.words.isdisjoint(words)
