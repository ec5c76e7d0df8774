"""ADT-Tree (arXiv 2512.21857): adapt the shape of each tree to the acceptance in its neighbourhood.

The paper specifies that depth and width are adapted at every step from adjacent states and the acceptance rate,
starting from the state on the left; alpha >= beta makes the next tree deeper and narrower, alpha < beta shallower and
wider. The rest is reconstructed, and the constants were tuned on the bundled model (`benchmarks/sweep.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ..errors import AdtError
from ..rules.settings import choice, fraction, integer
from ..rules.trace import Round
from .base import Context, Policy, Shape, Slot
from .fixed import FixedSettings

HORIZONTAL = "horizontal"
VERTICAL = "vertical"
RANDOM = "random"
INITS = (HORIZONTAL, VERTICAL, RANDOM)
"""Values of the option `init`."""
CARRY = "carry"
RESET = "reset"
WRAPS = (CARRY, VERTICAL, RESET)
"""Values of the option `wrap`."""
_INIT_HELP = (
    "ADT-Tree: initial shape of a tree: copied from the token to the left (horizontal), from the token above "
    "(vertical), or random."
)
_WRAP_HELP = (
    "ADT-Tree with horizontal init: initial shape in a new row: copied from the end of the previous row (carry), from "
    "the token above (vertical), or the given depth and width (reset)."
)


@dataclass(frozen=True)
class AdtTreeSettings(FixedSettings):
    """Settings of :class:`AdtTree`."""

    init: str = choice(HORIZONTAL, _INIT_HELP, INITS)
    wrap: str = choice(CARRY, _WRAP_HELP, WRAPS)
    beta: float = fraction(
        0.6, "ADT-Tree: if at least this share of a tree's levels is accepted, the next tree is deeper and narrower."
    )
    depth_step: int = integer(1, "ADT-Tree: levels added or removed at a time.")
    width_step: int = integer(1, "ADT-Tree: branches added or removed at a time.")
    depth_min: int = integer(1, "ADT-Tree: minimum levels of a tree.")
    depth_max: int = integer(6, "ADT-Tree: maximum levels of a tree.")
    width_min: int = integer(1, "ADT-Tree: minimum branches per level.")
    width_max: int = integer(3, "ADT-Tree: maximum branches per level.")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("depth", "width"):
            low = getattr(self, f"{name}_min")
            high = getattr(self, f"{name}_max")
            if low > high:
                raise AdtError(f"`{name}_min` is {low}, above `{name}_max` {high}; make it at most {high}.")


class AdtTree(Policy):
    """Policy that adapts the shape of trees to each image.

    A round stores the shape for later rounds at all positions that it emitted. By the option `init`, a new tree starts
    from the shape stored at its root, the token on the left (horizontal), at the token above (vertical), or from a
    random shape.

    The token on the left of a row's first token is the last one of the row above. By the option `wrap`, the first round
    of a new row starts from it nevertheless (carry), from the token above (vertical), or from the given depth and width
    (reset).

    After a round, alpha = accepted drafts / depth of the verified tree. If alpha >= beta, the next tree is deeper by
    `depth_step` and narrower by `width_step`, otherwise the reverse, both within their bounds. The verified tree may be
    shallower than the chosen depth, because a wide tree uses up its nodes early.
    """

    settings_type = AdtTreeSettings
    help = (
        "the adaptive tree of the ADT-Tree paper, deeper where the image is easy to predict and wider where it is hard"
    )

    def __init__(self, context: Context):
        super().__init__(context)
        self._initial = self._bounded(self.settings.depth, self.settings.width)
        self._images: dict[int, _ImageShapes] = {}

    @classmethod
    def largest(cls, settings: AdtTreeSettings) -> Shape:
        return Shape(settings.depth_max, settings.width_max, settings.nodes)

    def _bounded(self, depth: int, width: int) -> Shape:
        s = self.settings
        return Shape(min(max(depth, s.depth_min), s.depth_max), min(max(width, s.width_min), s.width_max), s.nodes)

    def begin(self) -> bool:
        self._images = {}  # images that start again lose their stored shapes
        return True

    def choose(self, slots: Sequence[Slot]) -> list[Shape]:
        self._images = {slot.image: self._images.get(slot.image) or self._new_image(slot.image) for slot in slots}
        return [self._next_shape(self._images[slot.image], slot.position) for slot in slots]

    def _new_image(self, image: int) -> _ImageShapes:
        key = np.array(self.context.keys[image], dtype=np.uint64)
        return _ImageShapes(self._initial, np.random.Generator(np.random.Philox(key=key, counter=[0, 0, 1, 0])))

    def _next_shape(self, image: _ImageShapes, position: int) -> Shape:
        """Return the shape of the tree whose root is at `position`."""
        s = self.settings
        columns = self.context.columns
        left = image.shapes.get(position, self._initial)  # the root is the token on the left of the next one
        is_new_row = position // columns != image.row
        image.row = position // columns
        if s.init == RANDOM:
            bounds = (s.depth_min, s.depth_max), (s.width_min, s.width_max)
            depth, width = (int(image.random.integers(low, high + 1)) for low, high in bounds)
            image.chosen = Shape(depth, width, s.nodes)
        elif s.init == VERTICAL or (is_new_row and s.wrap == VERTICAL):
            image.chosen = image.shapes.get(position - columns, left)
        else:
            image.chosen = self._initial if is_new_row and s.wrap == RESET else left
        return image.chosen

    def on_verified(self, round: Round) -> None:
        """Store the next shape at the positions that the round emitted."""
        s = self.settings
        for share in round.images:
            image = self._images[share.image]
            first = share.position + 1
            shape = image.chosen
            sign = 1 if share.alpha >= s.beta else -1
            if share.depth:
                shape = self._bounded(shape.depth + sign * s.depth_step, shape.width - sign * s.width_step)
            image.shapes |= dict.fromkeys(range(first, first + share.accepted + 1), shape)


@dataclass
class _ImageShapes:
    """State of an image.

    Attributes:
        chosen: Shape of the current round.
        random: Generator of random shapes.
        shapes: Stored shapes by raster position.
        row: Row of the last root.
    """

    chosen: Shape
    random: np.random.Generator
    shapes: dict[int, Shape] = field(default_factory=dict)
    row: int = 0
