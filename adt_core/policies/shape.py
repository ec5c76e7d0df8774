"""Which tree to build next: the drafting settings and the policies that turn them into a shape per round.

ADT-Tree (arXiv 2512.21857) as reconstructed here. Attested by the paper: depth and width are adapted per
step from adjacent states and the acceptance rate, starting from horizontal adjacency; alpha >= beta makes the
next tree deeper and narrower, alpha < beta shallower and wider. The constants are ours (swept on
the bundled model with ``benchmarks/sweep.py``), because no source states them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..errors import AdtError
from ..rules.trace import ImageRound
from .static_trees import STATIC_TREES

METHODS = ("autoregressive", "eagle2", "adt-tree", "auto", *(f"static:{name}" for name in STATIC_TREES))
PROPOSALS = ("coupled", "top-k")
INITS = ("horizontal", "vertical", "random")
WRAPS = ("carry", "vertical", "reset")
SIZES = (4, 8, 12, 16, 24, 32, 48, 64)
"""Numbers of drafts that ``auto`` chooses from."""
AUTO_WIDTH = 4


@dataclass(frozen=True)
class Drafting:
    """How drafts are made.

    method: ``autoregressive`` (no drafts), ``eagle2`` (one fixed dynamic-tree shape), ``adt-tree``, ``auto`` (what pays on this
    device: see :class:`adt_core.policies.auto.CostAware`; it has no constants), or ``static:`` and the name of a published tree.
    proposal: ``coupled`` (children = top-k of drafter logits plus the target's own noise) or ``top-k``.
    depth, width: the fixed shape, or where ADT-Tree starts. nodes: drafts verified per round at most.
    init, wrap, beta, depth_step, width_step and the bounds belong to ADT-Tree: see :class:`AdtTree`.
    expand_above, keep_above: cumulative drafter probabilities below which a node is not expanded or
    not verified; 0 switches this confidence pruning off.
    """

    method: str = "adt-tree"
    proposal: str = "coupled"
    depth: int = 3
    width: int = 2
    nodes: int = 6
    init: str = "horizontal"
    wrap: str = "carry"
    beta: float = 0.6
    depth_step: int = 1
    width_step: int = 1
    depth_min: int = 1
    depth_max: int = 6
    width_min: int = 1
    width_max: int = 3
    expand_above: float = 0.0
    keep_above: float = 0.0

    def __post_init__(self) -> None:
        for name, choices in (("method", METHODS), ("proposal", PROPOSALS), ("init", INITS), ("wrap", WRAPS)):
            if getattr(self, name) not in choices:
                raise AdtError(f"{name} is {getattr(self, name)!r}; choose one of {', '.join(choices)}.")
        for name in (
            "depth",
            "width",
            "nodes",
            "depth_min",
            "depth_max",
            "width_min",
            "width_max",
            "depth_step",
            "width_step",
        ):
            if not 1 <= getattr(self, name) <= 256:
                raise AdtError(f"{name} is {getattr(self, name)}; it must be a whole number from 1 to 256.")
        for name in ("depth", "width"):
            low, high = getattr(self, f"{name}_min"), getattr(self, f"{name}_max")
            if low > high:
                raise AdtError(f"{name}_min is {low}, above {name}_max {high}; make it at most {high}.")
        for name in ("beta", "expand_above", "keep_above"):
            value = getattr(self, name)
            if not (math.isfinite(value) and 0 <= value <= 1):
                raise AdtError(f"{name} is {value}; it must be a number from 0 to 1.")

    @property
    def static(self) -> str:
        """Name of the static tree, or nothing."""
        return self.method.removeprefix("static:") if self.method.startswith("static:") else ""

    @property
    def largest(self) -> TreeShape:
        """The deepest and the widest that a tree may be."""
        if self.static:
            levels = STATIC_TREES[self.static]
            return TreeShape(len(levels) - 1, len(levels[1]))
        if self.method == "auto":
            return TreeShape(spine(SIZES[-1]), AUTO_WIDTH)
        return (
            TreeShape(self.depth_max, self.width_max)
            if self.method == "adt-tree"
            else TreeShape(self.depth, self.width)
        )

    @property
    def budget(self) -> int:
        """Drafts verified per round at most."""
        if self.static:
            return sum(map(len, STATIC_TREES[self.static])) - 1
        return {"autoregressive": 0, "auto": SIZES[-1]}.get(self.method, self.nodes)

    @property
    def most_drafts(self) -> int:
        """Uncommitted tokens that a round may need room for, in the target's cache or in the drafter's."""
        if self.method in ("eagle2", "adt-tree"):
            return max(self.nodes, self.largest.depth * self.largest.width)
        return self.budget + 1


class TreeShape(NamedTuple):
    """depth, width: the deepest and widest that a tree may be. menu: numbers of drafts to choose from, and how many tokens a round with that many
    has to bring to be worth its time; empty for the drafting's own ``nodes``."""

    depth: int
    width: int
    menu: tuple[tuple[int, float], ...] = ()


def spine(nodes: int) -> int:
    """Length of a window's spine when ``auto`` takes ``nodes`` drafts: two thirds, the rest is branches."""
    return nodes if nodes <= 4 else round(nodes * 2 / 3)


class FixedShape:
    """The same shape every round (EAGLE-2, static trees)."""

    def __init__(self, drafting: Drafting):
        self._shape = drafting.largest

    def choose(self, position: int) -> TreeShape:
        return self._shape

    def update(self, share: ImageRound) -> None:
        pass


class AdtTree:
    """Adjacency-adaptive shape of one image; made anew for every image.

    Each grid cell remembers the shape that the round which emitted it left behind. A round whose root is at
    raster position n starts from an adjacent cell's shape (``init``): the previous cell (horizontal), the cell
    above (vertical), or a draw of its own (random). ``wrap`` says what the first round rooted in a new
    row starts from under horizontal adjacency, because the previous cell is then the far end of the row
    above: ``carry`` takes it all the same, ``vertical`` the cell above, ``reset`` the initial shape.

    After a round, alpha = accepted / realised depth. alpha >= beta: deeper by ``depth_step``, narrower by
    ``width_step``; else the reverse; both within their bounds. Realised depth, because with flat drafts the
    budget makes a wide tree shallow whatever depth was asked for, and a / asked would read as failure.
    """

    def __init__(self, drafting: Drafting, columns: int, seed: int, image_index: int):
        self._drafting, self._columns = drafting, columns
        self._first = self._bounded(drafting.depth, drafting.width)
        self._cells: dict[int, TreeShape] = {}
        self._random = np.random.Generator(
            np.random.Philox(key=np.array([seed, image_index], dtype=np.uint64), counter=[0, 0, 1, 0])
        )
        self._previous_row = 0
        self._chosen = self._first

    def _bounded(self, depth: int, width: int) -> TreeShape:
        d = self._drafting
        return TreeShape(min(max(depth, d.depth_min), d.depth_max), min(max(width, d.width_min), d.width_max))

    def choose(self, position: int) -> TreeShape:
        """Shape of the tree whose root is the token at raster ``position``."""
        d, row = self._drafting, position // self._columns
        left = self._cells.get(position, self._first)  # the root itself is the last decided cell
        above = self._cells.get(position - self._columns, left)
        wrapped, self._previous_row = row != self._previous_row, row
        if d.init == "random":
            self._chosen = TreeShape(
                int(self._random.integers(d.depth_min, d.depth_max + 1)),
                int(self._random.integers(d.width_min, d.width_max + 1)),
            )
        elif d.init == "vertical" or (wrapped and d.wrap == "vertical"):
            self._chosen = above
        elif wrapped and d.wrap == "reset":
            self._chosen = self._first
        else:
            self._chosen = left
        return self._chosen

    def update(self, share: ImageRound) -> None:
        """Learn from a round: write the next shape into the cells it emitted."""
        d, shape = self._drafting, self._chosen
        if share.depth > 0:
            sign = 1 if share.alpha >= d.beta else -1
            shape = self._bounded(shape.depth + sign * d.depth_step, shape.width - sign * d.width_step)
        for cell in range(share.position + 1, share.position + share.accepted + 2):
            self._cells[cell] = shape


def make_policy(drafting: Drafting, columns: int, seed: int, image_index: int) -> FixedShape | AdtTree:
    """One policy object per image."""
    return AdtTree(drafting, columns, seed, image_index) if drafting.method == "adt-tree" else FixedShape(drafting)
