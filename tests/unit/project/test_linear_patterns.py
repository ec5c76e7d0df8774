"""Tests that no regular expression of the pack takes quadratic time for a hostile text.

Patterns are found in the source: those that modules compile, those in tables of replacements, and those in functions.
"""

import ast
import re
import time
from itertools import product
from pathlib import Path

import pytest

from adt_core.models import unsupported

ROOT = Path(__file__).resolve().parents[3]
LENGTH = 4_000  # of a hostile text; a quadratic pattern needs about 10**7 steps for it, a linear one 10**4
LIMIT = 0.08  # seconds; a quadratic pattern takes at least 0.2 s, a linear one about 1 ms
UNITS = (
    *" \ta0'\"_-.,:;=|@?/\\{[(<$\n",
    *("a\t", "0.", "a-", ".a", "0,", "{0", "__a", "a ", " -", "http://a", '"\t', "[a]", "- cgroup ", "'a"),
)
"""Texts that are repeated, because the patterns of the pack contain them or classes of them."""
STARTS = ("", "{")
ENDS = ("", "!")
METHODS = ("search", "match", "fullmatch", "sub", "findall", "finditer", "split")


def uses(path: Path) -> set[tuple[str, str]]:
    """Return the patterns in a file, each with the method that is called with it."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]
    named: dict[str, list[str]] = {}
    for node in calls:
        if isinstance(node.func.value, ast.Name):
            named.setdefault(node.func.value.id, []).append(node.func.attr)
    found = set()
    for node in calls:
        if not (isinstance(node.func.value, ast.Name) and node.func.value.id == "re" and node.args):
            continue
        pattern = node.args[0].value if isinstance(node.args[0], ast.Constant) else None
        if isinstance(pattern, str) and node.func.attr in METHODS:
            found.add((pattern, node.func.attr))
    for node in ast.walk(tree):
        is_compiled = isinstance(node, ast.Assign) and ast.unparse(node.value).startswith("re.compile(")
        if is_compiled and isinstance(node.value.args[0], ast.Constant):
            methods = [m for m in named.get(ast.unparse(node.targets[0]), []) if m in METHODS] or ["search"]
            found |= {(node.value.args[0].value, method) for method in methods}
    return {(pattern, method) for pattern, method in found if isinstance(pattern, str)}


SOURCES = sorted(path for name in ("adt_core", "nodes") for path in (ROOT / name).rglob("*.py"))
PATTERNS = sorted(
    {use for path in SOURCES for use in uses(path)}
    | {(row[0], "search") for row in vars(unsupported)["_OTHER_CHECKPOINTS"]}
)


def seconds(pattern: str, method: str, text: str) -> float:
    run = getattr(re.compile(pattern), method)
    arguments = ("", text) if method == "sub" else (text,)
    began = time.perf_counter()
    result = run(*arguments)
    if method == "finditer":
        list(result)
    return time.perf_counter() - began


def test_the_patterns_of_the_pack_are_found():
    assert len(PATTERNS) > 25


@pytest.mark.parametrize(("pattern", "method"), PATTERNS)
def test_patterns_are_linear(pattern, method):
    for start, unit, end in product(STARTS, UNITS, ENDS):
        text = start + unit * (LENGTH // len(unit)) + end
        if seconds(pattern, method, text) > LIMIT:  # perhaps another process had the processor
            assert min(seconds(pattern, method, text) for _ in range(3)) < LIMIT, (start, unit, end)
