"""Choices of drafting: a method, with or without LANTERN, under one name.

The nodes show the names in `CHOICES`. On the command line, a choice is the name of a method, with the suffix `RELAXED`
for LANTERN, such as "adt-tree+lantern".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..messages import TEMPLATES, Message, join, message
from ..settings import Lantern, flat_lantern
from .methods import ADT_TREE, DEFAULT, EAGLE2, PLAIN

RELAXED = "+lantern"
"""Suffix of the name of a method with relaxed acceptance, which changes images."""


CHOICES = {
    "Auto": DEFAULT,
    "ADT-Tree": ADT_TREE,
    "ADT-Tree + LANTERN": ADT_TREE + RELAXED,
    "Auto + LANTERN": DEFAULT + RELAXED,
    "EAGLE-2": EAGLE2,
    "No drafting": PLAIN,
}
"""Choices that the nodes offer: name in the nodes -> name on the command line. The first one is the default."""
RELAXABLE = (DEFAULT, ADT_TREE, EAGLE2)
"""Methods that the command line offers with the suffix `RELAXED`."""
_LIMITS = "lantern_delta", "lantern_factor"
"""Options that limit what LANTERN accepts, of which only one can be given."""


def method_title(name: str) -> Message:
    """Return the title of a method for users: "ADT-Tree + LANTERN (beta=0.5)" for "adt-tree+lantern:beta=0.5"."""
    head, _, settings = name.rpartition(":")
    method = head if "=" in settings else name
    base = method.removesuffix(RELAXED)
    kind, _, tree = base.partition(":")
    title = message(f"method.{kind}", **({"name": tree} if tree else {})) if f"method.{kind}" in TEMPLATES else base
    relaxed = message("method.relaxed") if base != method else ""
    return join((title, relaxed, f" ({settings.replace(',', ', ')})" if "=" in settings else ""), "")


def expanded(given: Mapping[str, Any], lantern: Lantern) -> dict[str, Any]:
    """Return values in which complete settings of LANTERN replace the method's suffix `RELAXED`.

    Args:
        given: Values of a recipe's options, by option name.
        lantern: Settings of LANTERN that suit the model, for values that are not given.
    """
    method = given.get("method")
    if not isinstance(method, str) or not method.endswith(RELAXED):
        return dict(given)
    values = {name: value for name, value in given.items() if value is not None}
    usual = flat_lantern(lantern)
    if any(limit in values for limit in _LIMITS):
        usual = {name: value for name, value in usual.items() if name not in _LIMITS}
    return {**usual, **values, "method": method.removesuffix(RELAXED)}
