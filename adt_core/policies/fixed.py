"""Policies that choose the same tree shape in every round: plain decoding, EAGLE-2, and static trees from papers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..settings import integer
from .base import PLAIN_SHAPE, DraftSettings, Policy, Shape

STATIC_TREES: dict[str, dict[str, int]] = {
    "mc_sim_7b_63": {"": 4, "0": 3, "1": 2, "2": 2, "3": 1, "00": 3, "01": 2, "02": 2, "10": 1, "000": 3, "0000": 2},
    "naive_extend_57": {"": 5, "0": 4, "1": 3, "2": 3, "3": 2, "4": 1, "00": 4, "01": 3, "02": 3, "03": 2, "10": 2}
    | {"11": 1, "20": 1, "000": 4, "001": 3, "002": 2, "003": 1, "010": 2, "011": 1, "020": 1}
    | {"0000": 3, "0001": 2, "0010": 2, "0011": 1, "0020": 1},
}
"""Static trees from papers (EAGLE, arXiv 2401.15077; LANTERN++, arXiv 2502.06352), by name. A tree has one entry for
each node with children: its number of children. The key is the path from the root to the node, with one digit per
level: the rank among siblings. Example: {"": 2, "0": 1} is a tree in which the root has the children "0" and "1", and
"0" has the child "00". No node has more children than the root."""


class Plain(Policy):
    """Plain decoding, without drafts."""

    help = "no drafting, one token per pass of the model, as a baseline"
    needs_drafter = False

    @classmethod
    def largest(cls, settings: DraftSettings) -> Shape:
        return PLAIN_SHAPE


@dataclass(frozen=True)
class ShapeSettings(DraftSettings):
    """Settings of :class:`Eagle2`."""

    depth: int = integer(3, "Levels of the tree (ADT-Tree: at the start); with jacobi, the length of its window.")
    width: int = integer(2, "Branches per level of the tree (ADT-Tree: at the start); with jacobi, drafts per token.")
    drafts: int = integer(6, "Maximum number of drafts that one pass of the model verifies.")


class Eagle2(Policy):
    """Policy with the same shape in every round. With a drafter network, this is EAGLE-2 (arXiv 2406.16858)."""

    settings_type = ShapeSettings
    help = "the tree of the EAGLE-2 paper, with the same shape everywhere"


class Static(Policy):
    """Policy that uses a static tree from a paper in every round. A subclass sets `tree` to a key of `STATIC_TREES`."""

    tree: ClassVar[str]
    help = "a published tree with the same nodes everywhere"
    needs_network = True

    @classmethod
    def largest(cls, settings: DraftSettings) -> Shape:
        children = STATIC_TREES[cls.tree]
        return Shape(max(map(len, children)) + 1, children[""], sum(children.values()), cls.tree)


def static(name: str) -> type[Static]:
    """Return the policy for a static tree from a paper, a key of `STATIC_TREES`."""
    return type("Static", (Static,), {"tree": name})
