"""Remarks on prompts and sizes that a model was not trained for."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path

from ..errors import shown
from ..files import LARGEST_LIST, parse_json, read_text
from ..models.target import Target

_WORDS = Path(__file__).parents[1] / "bundled" / "words.json"
_NAMED = 3
"""Prompts that a remark names."""
_ABOUT = 0.8
"""Least ratio of two numbers of pixels that count as equal: shapes such as 4:3 are rounded to cells."""


def bundled_words() -> frozenset[str]:
    """The words with which a prompt asks for something that the bundled model can draw."""
    return frozenset(parse_json(read_text(_WORDS, LARGEST_LIST)))


def remark(target: Target, prompts: Sequence[str]) -> str:
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
    """Return a sentence that names the prompts that ask for nothing that the model knows, or ""."""
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
