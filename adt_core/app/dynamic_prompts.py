"""Alternatives in prompts: texts in braces, separated by bars. Braces can be nested.

For example, `a {red|blue} house` expands to the prompts "a red house" and "a blue house".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np

from ..errors import AdtError, shown
from .prompts import PromptEntry

RANDOM = "random"
ALL = "all combinations"
OFF = "off"
CHOICE_MODES = RANDOM, ALL, OFF
"""What to do with alternatives.

`RANDOM` replaces each group of alternatives by one of them, `ALL` expands the prompt to all combinations, and `OFF`
leaves the braces as they are."""
MAX_PROMPTS = 100_000
"""Maximum number of prompts after expansion."""
MAX_CHARACTERS = 20_000
"""Maximum number of characters of a prompt to expand. No model can read longer prompts, so they stay unchanged."""
_TOKENS = re.compile(r"\\[{|}]|[{|}]")
_Group = list[list[str]]
"""Alternatives between two braces. Each alternative is the list of texts that it expands to.

For example, `{red|{dark|light} blue}` is `[["red"], ["dark blue", "light blue"]]` if all combinations are expanded."""


def expand_prompts(prompts: Sequence[PromptEntry], mode: str, seed: int = 0) -> list[PromptEntry]:
    """Expand the alternatives in prompts. A brace or bar after a backslash is ordinary text.

    Args:
        prompts: Prompts of a list.
        mode: One of `CHOICE_MODES`. With `RANDOM`, the choice depends only on the seed and on the position of the
            prompt in the list. With `ALL`, the combinations of the prompt with id 7 get the ids 7.1, 7.2 and so on.
        seed: Seed for `RANDOM`.

    Raises:
        AdtError: If the result has more than `MAX_PROMPTS` prompts.
    """
    expanded: list[PromptEntry] = []
    for index, prompt in enumerate(prompts):
        if mode not in (RANDOM, ALL) or len(prompt.text) > MAX_CHARACTERS or not _TOKENS.search(prompt.text):
            expanded.append(prompt)
            continue
        texts = _expand(prompt, mode, seed, index, MAX_PROMPTS - len(expanded))
        ids = [f"{prompt.id}.{number}" for number, _ in enumerate(texts, start=1)] if len(texts) > 1 else [prompt.id]
        expanded += [prompt._replace(text=text.strip(), id=id) for text, id in zip(texts, ids)]
    return expanded


def _expand(prompt: PromptEntry, mode: str, seed: int, index: int, limit: int) -> list[str]:
    if mode == ALL:
        return list(dict.fromkeys(_Expander(lambda group: sum(group, []), prompt, limit).run()))
    generator = np.random.Generator(np.random.Philox(key=np.array([seed, index], dtype=np.uint64)))
    return _Expander(lambda group: group[generator.integers(len(group))], prompt, limit).run()


class _Expander:
    """Parser that expands a prompt to at most `limit` texts.

    Two things are ordinary text: a brace without a matching brace, and a pair of braces without a bar between them.

    Args:
        choose: Function that gets a group of alternatives and returns the texts to replace the group with.
        prompt: Prompt to expand.
        limit: Maximum number of texts.
    """

    def __init__(self, choose: Callable[[_Group], list[str]], prompt: PromptEntry, limit: int):
        self._choose = choose
        self._prompt = prompt
        self._limit = limit
        self._groups: list[_Group] = [[[""]]]  # item 0: the text outside of braces; then one group per open brace

    def run(self) -> list[str]:
        text = self._prompt.text
        start = 0
        for token in _TOKENS.finditer(text):
            self._append([text[start : token.start()]])
            self._handle(token[0])
            start = token.end()
        self._append([text[start:]])
        while len(self._groups) > 1:
            self._close_as_literal("")
        return self._groups[0][0]

    def _handle(self, token: str) -> None:
        in_braces = len(self._groups) > 1
        if token == "{":
            self._groups.append([[""]])
        elif token == "|" and in_braces:
            self._groups[-1].append([""])
        elif token == "}" and in_braces:
            if len(self._groups[-1]) > 1:
                self._append(self._choose(self._groups.pop()))
            else:
                self._close_as_literal("}")
        else:
            self._append([token[-1]])

    def _append(self, texts: list[str]) -> None:
        before = self._groups[-1][-1]
        if len(before) * len(texts) > self._limit:
            raise AdtError(
                f"choices: prompt '{self._prompt.id}', {shown(self._prompt.text)}, brings the list to more than "
                f"{MAX_PROMPTS} prompts; choose '{RANDOM}'."
            )
        self._groups[-1][-1] = [prefix + text for prefix in before for text in texts]

    def _close_as_literal(self, ending: str) -> None:
        """Append the last open group to the surrounding text. Its braces and bars become ordinary text."""
        group = self._groups.pop()
        self._append(["{"])
        for number, texts in enumerate(group):
            self._append([("|" if number else "") + text for text in texts])
        self._append([ending])
