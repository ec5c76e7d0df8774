"""Values that nobody expects, for hypothesis to draw from."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

NUMBERS = st.sampled_from([0, 1, -1, 0.5, 2**31, 2**63, 2**64, 10**9, 10**400, 1e308, float("nan"), float("inf")])
NASTY = st.sampled_from(
    [
        "",
        " ",
        "\0",
        "\n",
        "\ud800",
        "\udcff",
        "..",
        "../../outside.json",
        "/etc/passwd",
        "~/x",
        "file:///etc/passwd",
        "\\\\server\\share\\x.txt",
        "C:\\x.txt",
        "CON",
        "nul.png",
        "=1+1",
        "$(touch outside)",
        "`id`",
        "{x}",
        "%s%n",
        "../" * 40,
        "x" * 300,
        "é" * 5000,
        "<b>" * 5000,
        "🏳️‍🌈" * 9,
        "\u202egnp.x",
        "<|image|>",
        "<s></s>",
        "-1",
        "1e999",
        "nan",
        "0x10",
        "١٢٣",
        "null",
        "True",
    ]
)
TEXTS = NASTY | st.text(st.characters(), max_size=12)
ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=4,
)
"""What JSON, and Python, can say in the place of any value."""


def places(value: object, path: tuple = ()) -> list[tuple]:
    """Where everything in a JSON value stands; of a large object, some entries."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, one in [*inside][:40] for place in places(one, (*path, key)))]


def changed(draw: Any, value: Any) -> Any:
    """A JSON value with something odd in the place of a part of it, or of all."""
    value = json.loads(json.dumps(value))
    place, odd = draw(st.sampled_from(places(value))), draw(ODD)
    if not place:
        return odd
    inside = value
    for key in place[:-1]:
        inside = inside[key]
    inside[place[-1]] = odd
    return value


def as_json(value: Any) -> str:
    """With everything that Python's parser takes: NaN, halves of characters, numbers of any length."""
    return json.dumps(value)


def damaged(draw: Any, content: bytes) -> bytes:
    """Bytes of which some are others, or that end too early."""
    content = bytearray(content)
    for _ in range(draw(st.integers(0, 4))):
        if content:
            content[draw(st.integers(0, min(len(content), 4096) - 1))] = draw(st.integers(0, 255))
    return bytes(content[: draw(st.integers(0, len(content)))] if draw(st.booleans()) else content)
