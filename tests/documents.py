"""Code blocks, command lines and quoted names of the Markdown pages."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PAGES = [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
_FENCED = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"(?<=\n\n)((?: {4,}.*\n|\n(?= {4}))+)")
_COMMAND = re.compile(r"((?:\.venv/bin/)?python3? [^|#']+|npm (?:--prefix \S+ )?run \w+|adt-tree [^|#']+)")


class Block(NamedTuple):
    """Code block of a page."""

    page: str  # name of the page
    line: int  # number of its first line
    language: str  # as the page states; "" for an indented block
    text: str  # without the indentation of the block


def blocks(path: Path) -> list[Block]:
    """Return the code blocks of a page, in order."""
    page = path.read_text(encoding="utf-8")
    found = [(match.start(3), match[2], match[3], len(match[1])) for match in _FENCED.finditer(page)]
    page = _FENCED.sub(lambda match: re.sub(r"\S", ".", match[0]).replace(" ", "."), page)  # same length
    found += [(match.start(), "", match[0], 4) for match in _INDENTED.finditer(page)]
    return [
        Block(path.name, page[:start].count("\n") + 1, language, re.sub(rf"^ {{{indent}}}", "", text, flags=re.M))
        for start, language, text, indent in sorted(found)
    ]


def commands(text: str) -> list[str]:
    """Return the command lines in a code block, without comments. Continued lines are joined."""
    joined = re.sub(r"\\\n\s*", " ", text)
    return [command.strip() for line in joined.splitlines() for command in _COMMAND.findall(line)]


def spans(path: Path) -> list[tuple[int, str]]:
    """Return the texts in backquotes outside of code blocks, with their line numbers."""
    page = path.read_text(encoding="utf-8")
    for pattern in (_FENCED, _INDENTED):
        page = pattern.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), page)
    return [(page[: match.start()].count("\n") + 1, match[1]) for match in re.finditer(r"(?<!`)`([^`]+)`(?!`)", page)]


def italics(path: Path) -> list[tuple[int, str]]:
    """Return the texts in italics outside of code, with their line numbers."""
    page = path.read_text(encoding="utf-8")
    for pattern in (_FENCED, _INDENTED, re.compile(r"`[^`]+`")):
        page = pattern.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), page)
    found = re.finditer(r"(?<![*\w\\])\*(?![*\s])([^*]+?)(?<!\s)\*(?![*\w])", page)
    return [(page[: match.start()].count("\n") + 1, re.sub(r"\s+", " ", match[1])) for match in found]
