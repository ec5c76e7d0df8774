"""Choices in a prompt: ``a {red|blue} house`` stands for two prompts. Braces may lie in braces."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np

from ..errors import AdtError, shown
from .prompts import PromptEntry

RANDOM, ALL, OFF = "random", "all combinations", "off"
"""What becomes of choices: a draw by seed, a prompt for each combination, or nothing."""
CHOICE_MODES = RANDOM, ALL, OFF
MAX_PROMPTS = 100_000
"""Prompts that choices may make of a list."""
MAX_CHARACTERS = 20_000
"""Characters of a prompt in which choices are looked for: no model reads as many."""
_PARTS = re.compile(r"\\[{|}]|[{|}]")
_Options = list[list[str]]
"""Of the alternatives between two braces, the texts that each can become."""


def expand_prompts(prompts: Sequence[PromptEntry], way: str, seed: int = 0) -> list[PromptEntry]:
    """The prompts with their choices made; a backslash before ``{``, ``|`` and ``}`` is then gone.

    CHANCE draws by the seed and the prompt's place, so it repeats, whatever else is in the list. ALL makes a prompt of
    each combination; where there are several their ids are numbered, such as 7.1, 7.2. Raises AdtError if they are more
    than MOST.
    """
    made: list[PromptEntry] = []
    for place, prompt in enumerate(prompts):
        if way not in (RANDOM, ALL) or len(prompt.text) > MAX_CHARACTERS or not _PARTS.search(prompt.text):
            made.append(prompt)
            continue
        texts = _texts(prompt, way, seed, place, MAX_PROMPTS - len(made))
        ids = [f"{prompt.id}.{number}" for number, _ in enumerate(texts, start=1)] if len(texts) > 1 else [prompt.id]
        made += [prompt._replace(text=text.strip(), id=id) for text, id in zip(texts, ids)]
    return made


def _texts(prompt: PromptEntry, way: str, seed: int, place: int, most: int) -> list[str]:
    if way == ALL:
        return list(dict.fromkeys(_Expander(lambda options: sum(options, []), prompt, most).read()))
    generator = np.random.Generator(np.random.Philox(key=np.array([seed, place], dtype=np.uint64)))
    return _Expander(lambda options: options[generator.integers(len(options))], prompt, most).read()


class _Expander:
    """Finds the texts that a prompt can become, ``most`` at most. choose: what may stand in the place of alternatives.

    A brace without its other one is a letter, and so are two without a bar between them.
    """

    def __init__(self, choose: Callable[[_Options], list[str]], prompt: PromptEntry, most: int):
        self._choose, self._prompt, self._most = choose, prompt, most
        self._open: list[_Options] = [[[""]]]  # of each brace that is open, and before them of the text itself

    def read(self) -> list[str]:
        text, at = self._prompt.text, 0
        for part in _PARTS.finditer(text):
            self._append([text[at : part.start()]])
            self._take(part[0])
            at = part.end()
        self._append([text[at:]])
        while len(self._open) > 1:
            self._spell("")
        return self._open[0][0]

    def _take(self, mark: str) -> None:
        inside = len(self._open) > 1
        if mark == "{":
            self._open.append([[""]])
        elif mark == "|" and inside:
            self._open[-1].append([""])
        elif mark == "}" and inside:
            if len(self._open[-1]) > 1:
                self._append(self._choose(self._open.pop()))
            else:
                self._spell("}")
        else:
            self._append([mark[-1]])

    def _append(self, texts: list[str]) -> None:
        before = self._open[-1][-1]
        if len(before) * len(texts) > self._most:
            raise AdtError(
                f"choices: prompt '{self._prompt.id}', {shown(self._prompt.text)}, makes more than {MAX_PROMPTS} "
                f"prompts; choose '{RANDOM}'."
            )
        self._open[-1][-1] = [beginning + text for beginning in before for text in texts]

    def _spell(self, ending: str) -> None:
        """Put what the last open brace has into what is around it, as letters."""
        options = self._open.pop()
        self._append(["{"])
        for number, texts in enumerate(options):
            self._append([("|" if number else "") + text for text in texts])
        self._append([ending])
