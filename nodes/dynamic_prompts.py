"""Alternatives in prompts: texts in braces, separated by bars. Braces can be nested.

For example, `a {red|blue} house` expands to the prompts "a red house" and "a blue house". `{3::red|blue}` chooses red
three times as often as blue. Other marks of packs for dynamic prompts are refused, because they would become words.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from ..adt_core import AdtError
from ..adt_core.errors import Check, shown
from ..adt_core.messages import message
from ..adt_core.run import PromptEntry

RANDOM = "random"
ALL = "all combinations"
OFF = "off"
CHOICE_MODES = RANDOM, ALL, OFF
"""What to do with alternatives.

`RANDOM` replaces each group of alternatives by one of them, `ALL` expands the prompt to all combinations, and `OFF`
leaves the braces as they are."""
MAX_PROMPTS = 100_000  # maximum number of prompts after expansion
MAX_TOTAL = 50_000_000  # maximum number of characters of all expanded prompts together
MAX_CHARACTERS = 20_000
"""Maximum number of characters of a prompt to expand. No model can read longer prompts, so they stay unchanged."""
MAX_DEPTH = 50
"""Maximum depth of nested groups, if all combinations are expanded. Each level copies the texts of the levels in it."""
_TOKENS = re.compile(r"\\[{|}]|[{|}]")
_WEIGHT = re.compile(r"\s*(\d{1,9}(?:\.\d{0,9})?)::")  # weight at the beginning of an alternative
_UNSUPPORTED = re.compile(r"(?<!\\)\{\s*-?\d[\d\s-]{0,20}\$\$|\$\{\w+|(?<!\w)__[^\W_][\w*/.-]{0,100}?__(?!\w)")
"""Marks of other packs: `{2$$a|b}` chooses two alternatives, `${x}` is a variable, and `__x__` is a line of a file."""
_PER_CHECK = 1000  # texts between two calls of the cancellation callback
_Parts = list[Any]  # text as a list of parts that follow one another: texts, and results of `choose` (see `_parse`)


class _Size(NamedTuple):
    """Size of the expansion of a group of alternatives: texts, characters of all texts, and depth of nested groups."""

    texts: int
    characters: int
    depth: int


def expand_prompts(
    prompts: Sequence[PromptEntry], mode: str, seed: int = 0, check: Check = lambda: None
) -> list[PromptEntry]:
    """Expand the alternatives in prompts. A brace or bar after a backslash is ordinary text.

    Args:
        mode: One of `CHOICE_MODES`. With `RANDOM`, the choice depends only on the seed and on the position of the
            prompt in the list. With `ALL`, the combinations of the prompt with id 7 get the ids 7.1, 7.2 and so on.
        seed: Seed for `RANDOM`.

    Raises:
        AdtError: If the result has more than `MAX_PROMPTS` prompts or `MAX_TOTAL` characters, or a prompt has groups
            that are nested deeper than `MAX_DEPTH`. The sizes are computed before a prompt is expanded. Also if a
            prompt has a mark that is not supported.
    """
    expanded: list[PromptEntry] = []
    characters = 0
    for index, prompt in enumerate(prompts):
        if mode in (RANDOM, ALL) and (mark := _UNSUPPORTED.search(prompt.text[:MAX_CHARACTERS])):
            raise AdtError("choices.mark", id=prompt.id, text=shown(prompt.text), mark=mark[0])
        if mode not in (RANDOM, ALL) or len(prompt.text) > MAX_CHARACTERS or not _TOKENS.search(prompt.text):
            expanded.append(prompt)
            continue
        check()
        if mode == ALL:
            characters += _checked_size(prompt, MAX_PROMPTS - len(expanded), MAX_TOTAL - characters)
            texts = list(dict.fromkeys(_combinations(_parse(prompt.text, partial(_all_of, check)), check)))
        else:
            key = np.array([seed, index], dtype=np.uint64)
            texts = ["".join(_parse(prompt.text, partial(_one_of, np.random.Generator(np.random.Philox(key=key)))))]
        ids = [f"{prompt.id}.{number}" for number, _ in enumerate(texts, start=1)] if len(texts) > 1 else [prompt.id]
        expanded += [prompt._replace(text=text.strip(), id=id) for text, id in zip(texts, ids)]
    return expanded


def unbalanced(prompts: Sequence[PromptEntry]) -> str:
    """Return a remark on prompts in which a brace has no counterpart, so that it stays in the text; "" for none."""
    odd = [prompt for prompt in prompts if "{" in prompt.text or "}" in prompt.text if not _is_balanced(prompt.text)]
    return message("choices.unbalanced", id=shown(odd[0].id), text=shown(odd[0].text), count=len(odd)) if odd else ""


def _is_balanced(text: str) -> bool:
    depth = 0
    for token in _TOKENS.findall(text[:MAX_CHARACTERS]):
        depth += (token == "{") - (token == "}")
        if depth < 0:
            return False
    return depth == 0


def _checked_size(prompt: PromptEntry, most: int, most_characters: int) -> int:
    """Return how many characters all combinations of a prompt have. Raise AdtError if they exceed a limit."""
    name = f"choices: prompt '{prompt.id}', {shown(prompt.text)},"

    def sized(parts: _Parts) -> _Size:
        sizes = [_Size(1, len(part), 0) if isinstance(part, str) else part for part in parts]
        total = _Size(1, 0, 0)
        for one in sizes:
            characters = total.characters * one.texts + one.characters * total.texts
            total = _Size(total.texts * one.texts, characters, max(total.depth, one.depth))
            if total.texts > most:
                raise AdtError("choices.too_many", input=name, most=MAX_PROMPTS)
            if total.characters > most_characters:
                raise AdtError("choices.too_long", input=name, most=MAX_TOTAL)
        return total

    def choose(group: list[_Parts], _: list[float]) -> _Size:
        sizes = [sized(parts) for parts in group]
        depth = 1 + max(size.depth for size in sizes)
        if depth > MAX_DEPTH:
            raise AdtError("choices.too_deep", input=name, most=MAX_DEPTH)
        return _Size(sum(size.texts for size in sizes), sum(size.characters for size in sizes), depth)

    return sized(_parse(prompt.text, choose)).characters


def _all_of(check: Check, group: list[_Parts], _: list[float]) -> list[str]:
    """Return the texts of all alternatives of a group."""
    return [text for parts in group for text in _combinations(parts, check)]


def _one_of(generator: np.random.Generator, group: list[_Parts], weights: list[float]) -> str:
    """Return the text of one alternative of a group."""
    total = sum(weights)
    if total == 0 or len(set(weights)) == 1:
        return "".join(group[generator.integers(len(group))])
    return "".join(group[generator.choice(len(group), p=[weight / total for weight in weights])])


def _take_weight(parts: _Parts) -> float:
    """Remove the weight from the beginning of an alternative, and return it. The default is 1."""
    match = _WEIGHT.match(parts[0]) if parts and isinstance(parts[0], str) else None
    if match is None:
        return 1.0
    parts[0] = parts[0][match.end() :]
    return float(match[1])


def _combinations(parts: _Parts, check: Check) -> Iterator[str]:
    """Yield all texts that parts expand to. A part is a text, or the list of the texts that a group expands to."""
    for index, texts in enumerate(product(*([part] if isinstance(part, str) else part for part in parts))):
        if index % _PER_CHECK == 0:
            check()
        yield "".join(texts)


def _parse(text: str, choose: Callable[[list[_Parts], list[float]], Any]) -> _Parts:
    """Parse a prompt.

    Two things are ordinary text: a brace without a matching brace, and a pair of braces without a bar between them.

    Args:
        choose: Function from the alternatives of a group and their weights to the part that replaces the group.

    Returns:
        Parts of the text. Neighbouring texts are one part.
    """
    groups: list[list[_Parts]] = [[[]]]  # item 0: the text outside of braces; then one group per open brace
    start = 0
    for token in _TOKENS.finditer(text):
        _append(groups[-1][-1], text[start : token.start()])
        start = token.end()
        if token[0] == "{":
            groups.append([[]])
        elif token[0] == "|" and len(groups) > 1:
            groups[-1].append([])
        elif token[0] == "}" and len(groups) > 1:
            group = groups.pop()
            if len(group) > 1:
                _append(groups[-1][-1], choose(group, [_take_weight(parts) for parts in group]))
            else:
                _append(groups[-1][-1], "{", *group[0], "}")
        else:
            _append(groups[-1][-1], token[0][-1])
    _append(groups[-1][-1], text[start:])
    # The other groups have no closing brace, so their braces and bars are ordinary text.
    parts: _Parts = []
    for number, group in enumerate(groups):
        for place, alternative in enumerate(group):
            _append(parts, "|" if place else "{" if number else "", *alternative)
    return parts


def _append(parts: _Parts, *more: Any) -> None:
    """Append parts. Texts are joined to a text before them."""
    for part in more:
        if isinstance(part, str) and parts and isinstance(parts[-1], str):
            parts[-1] += part
        elif part != "":
            parts.append(part)
