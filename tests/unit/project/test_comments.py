"""Tests for rubble of edits and renames in comments and docstrings."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PYTHON = ("adt_core", "nodes", "benchmarks", "model_making")
STACKED = re.compile(r"(?<=\n)[ ]*/\*\*(?:(?!\*/|@typedef|@import).)*\*/\n(?=\s*/\*\*)", re.DOTALL)
"""A JSDoc comment that is followed by another one instead of by code. Type definitions need no code.

The first line of a file is not searched, because the first comment describes the file.
"""


def orphans(source: str) -> list[int]:
    """Return the lines of docstrings that follow neither a definition nor an assignment."""
    bodies = [node.body for node in ast.walk(ast.parse(source)) if isinstance(getattr(node, "body", None), list)]
    pairs = [pair for body in bodies for pair in zip(body, body[1:])]
    assigns = ast.Assign, ast.AnnAssign, ast.AugAssign
    return [after.lineno for before, after in pairs if _is_text(after) and not isinstance(before, assigns)]


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def test_each_docstring_belongs_to_a_definition():
    files = [path for folder in PYTHON for path in (ROOT / folder).rglob("*.py")]
    found = {path: orphans(path.read_text(encoding="utf-8")) for path in files}
    assert not {str(path.relative_to(ROOT)): lines for path, lines in found.items() if lines}


@pytest.mark.parametrize(
    "source, lines",
    [('import a\n"""Text."""', [2]), ('A = 1\n"""Text."""', []), ('def f():\n    a()\n    """Text."""', [3])],
)
def test_orphan_docstrings_are_detected(source, lines):
    assert orphans(source) == lines


def test_each_comment_of_javascript_belongs_to_code():
    found = {}
    for path in (ROOT / "js").rglob("*.js"):
        text = path.read_text(encoding="utf-8")
        found[path.name] = [text[: match.end()].count("\n") for match in STACKED.finditer(text)]
    assert not {name: lines for name, lines in found.items() if lines}


@pytest.mark.parametrize(
    "source, number", [("\n/** A. */\n/** B. */\nf()", 1), ("\n/** A. */\nf()\n/** B. */\ng()", 0)]
)
def test_stacked_comments_are_detected(source, number):
    assert len(STACKED.findall(source)) == number
