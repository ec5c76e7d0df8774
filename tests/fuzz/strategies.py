"""Hypothesis strategies for unexpected values, and for damaged JSON and bytes."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

NUMBERS = st.sampled_from([0, 1, -1, 0.5, 2**31, 2**63, 2**64, 10**9, 10**400, 1e308, float("nan"), float("inf")])
NASTY = st.sampled_from(
    [
        "", " ", "\0", "\n", "\ud800", "\udcff", "..", "../../outside.json", "/etc/passwd", "~/x",
        "file:///etc/passwd", "\\\\server\\share\\x.txt", "C:\\x.txt", "CON", "nul.png", "=1+1",
        "$(touch outside)", "`id`", "{x}", "%s%n", "../" * 40, "x" * 300, "é" * 5000, "<b>" * 5000, "🏳️‍🌈" * 9,
        "\u202egnp.x", "<|image|>", "<s></s>", "-1", "1e999", "nan", "0x10", "١٢٣", "null", "True",
    ]
)  # fmt: skip
TEXTS = NASTY | st.text(st.characters(), max_size=12)
ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=4,
)
"""Any JSON value, including numbers and strings that only Python accepts."""


def paths_in(value: object, path: tuple = ()) -> list[tuple]:
    """Return the paths of all parts of a JSON value. At most 40 entries of each object or list are included."""
    entries: list[tuple] = []
    if isinstance(value, dict):
        entries = list(value.items())
    elif isinstance(value, list):
        entries = list(enumerate(value))
    return [path, *(inner for key, entry in entries[:40] for inner in paths_in(entry, (*path, key)))]


def changed(draw: Any, value: Any) -> Any:
    """Return a copy of a JSON value in which a random part, or everything, is replaced."""
    value = json.loads(json.dumps(value))
    path = draw(st.sampled_from(paths_in(value)))
    replacement = draw(ODD)
    if not path:
        return replacement
    parent = value
    for key in path[:-1]:
        parent = parent[key]
    parent[path[-1]] = replacement
    return value


def as_json(value: Any) -> str:
    """Encode a value as JSON, with Python's extensions: NaN, lone surrogates, and numbers of any length."""
    return json.dumps(value)


def damaged(draw: Any, content: bytes) -> bytes:
    """Return a copy of `content` in which some bytes are changed, or which is truncated."""
    content = bytearray(content)
    for _ in range(draw(st.integers(0, 4))):
        if content:
            content[draw(st.integers(0, min(len(content), 4096) - 1))] = draw(st.integers(0, 255))
    return bytes(content[: draw(st.integers(0, len(content)))] if draw(st.booleans()) else content)
