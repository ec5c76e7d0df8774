"""ADT-Tree (arXiv 2512.21857): adapt the shape of each tree to the acceptance of the previous tree.

The shape of a tree is its maximum depth and width. The paper specifies that a tree starts from the shape at an adjacent
token, by default the token on the left, and that the shape then moves by the acceptance rate alpha: if alpha is at
least a threshold beta, the next tree is deeper and narrower, otherwise shallower and wider. The paper does not specify
the other details. They are our own choice, and their constants were tuned on the bundled model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ..errors import AdtError
from ..settings import choice, fraction, integer
from ..trace import Round
from .base import ActiveImage, Context, Policy, Shape
from .fixed import ShapeSettings

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
    "ADT-Tree: shape that a tree starts from, before it moves by the acceptance of the previous tree: that of the tree "
    "of the token to the left (horizontal) or above (vertical), or a random shape for the first tree (random)."
)
_WRAP_HELP = (
    "ADT-Tree with horizontal or random init: shape that the first tree of a row starts from: that of the previous "
    "tree (carry), that of the token above (vertical), or the shape of the first tree of an image (reset)."
)


@dataclass(frozen=True)
class BoundedSettings(ShapeSettings):
    """Settings of a policy that adapts the shape of trees within bounds."""

    beta: float = fraction(
        0.6, "Adaptive trees: share of a tree's levels that should be accepted; a larger share makes trees shallower."
    )
    depth_min: int = integer(1, "Adaptive trees: minimum levels of a tree.")
    depth_max: int = integer(6, "Adaptive trees: maximum levels of a tree.")
    width_min: int = integer(1, "Adaptive trees: minimum branches per level.")
    width_max: int = integer(3, "Adaptive trees: maximum branches per level.")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("depth", "width"):
            low = getattr(self, f"{name}_min")
            high = getattr(self, f"{name}_max")
            if low > high:
                raise AdtError("bounds.crossed", input=f"{name}_min", low=low, other=f"{name}_max", high=high)

    @property
    def largest(self) -> Shape:
        """Shape with the maximum depth and width."""
        return Shape(self.depth_max, self.width_max, self.drafts)

    def bounded(self, depth: int, width: int) -> Shape:
        """Return the shape within the bounds that is closest to this depth and width."""
        depth = min(max(depth, self.depth_min), self.depth_max)
        return Shape(depth, min(max(width, self.width_min), self.width_max), self.drafts)


@dataclass(frozen=True)
class AdtTreeSettings(BoundedSettings):
    """Settings of :class:`AdtTree`."""

    init: str = choice(HORIZONTAL, _INIT_HELP, INITS)
    wrap: str = choice(CARRY, _WRAP_HELP, WRAPS)
    depth_step: int = integer(1, "ADT-Tree: levels added or removed at a time.")
    width_step: int = integer(1, "ADT-Tree: branches added or removed at a time.")


class AdtTree(Policy):
    """Policy that makes trees deeper and narrower after a tree was mostly accepted, else shallower and wider.

    The option `init` selects the shape that a tree starts from:

    - `horizontal`: the shape of the previous tree, which emitted the token on the left of the next token. In the first
      round whose root is in a new row, that token is not adjacent. The option `wrap` selects the start in this case:
      the shape of the previous tree nevertheless (`carry`), the shape of the tree that emitted the token above the next
      token (`vertical`), or the given depth and width, unmoved (`reset`).
    - `vertical`: the shape of the tree that emitted the token above the next token. Without such a tree, in the first
      row, it is the shape of the previous tree.
    - `random`: as `horizontal`, but the first shape of an image, and after a `reset` that of a row, is random.

    The shape then moves by the acceptance of the previous tree, alpha = accepted drafts / depth of the verified tree.
    If alpha >= beta, it gets deeper by `depth_step` and narrower by `width_step`. Otherwise it gets shallower and wider
    by these steps. It stays within the minimum and maximum depth and width. The verified tree may have fewer levels
    than its chosen depth, because the first levels of a wide tree can use up all `drafts`.
    """

    settings_type = AdtTreeSettings
    help = (
        "the adaptive tree of the ADT-Tree paper, deeper where the image is easy to predict and wider where it is hard"
    )

    def __init__(self, context: Context):
        super().__init__(context)
        self._images: dict[int, _ImageState] = {}

    @classmethod
    def largest(cls, settings: AdtTreeSettings) -> Shape:
        return settings.largest

    def begin(self) -> bool:
        self._images = {}  # images that start again lose their shapes
        return True

    def choose(self, slots: Sequence[ActiveImage]) -> list[Shape]:
        self._images = {slot.image: self._images.get(slot.image) or self._new_image(slot.image) for slot in slots}
        return [self._next_shape(self._images[slot.image], slot.position) for slot in slots]

    def _new_image(self, image: int) -> _ImageState:
        key = np.array(self.context.keys[image], dtype=np.uint64)
        random = np.random.Generator(np.random.Philox(key=key, counter=[0, 0, 1, 0]))
        return _ImageState(self._first_shape(random), random)

    def _first_shape(self, random: np.random.Generator) -> Shape:
        s = self.settings
        if s.init != RANDOM:
            return s.bounded(s.depth, s.width)
        depth = int(random.integers(s.depth_min, s.depth_max + 1))
        width = int(random.integers(s.width_min, s.width_max + 1))
        return Shape(depth, width, s.drafts)

    def _next_shape(self, image: _ImageState, position: int) -> Shape:
        """Choose and return the shape of the tree whose root is at `position`."""
        s = self.settings
        row = position // self.context.columns
        is_new_row = row != image.row
        image.row = row
        start = image.chosen
        if s.init == VERTICAL or (is_new_row and s.wrap == VERTICAL):
            # The next token is at `position` + 1. Example: in rows of 8, it is at 10, and the token above it at 2.
            start = image.shapes.get(position + 1 - self.context.columns, start)
        if is_new_row and s.init != VERTICAL and s.wrap == RESET:
            image.chosen = self._first_shape(image.random)
        else:
            image.chosen = s.bounded(start.depth + image.move * s.depth_step, start.width - image.move * s.width_step)
        return image.chosen

    def on_verified(self, round: Round) -> None:
        for record in round.images:
            image = self._images[record.image]
            cells = range(record.first, record.first + record.accepted + 1)
            image.shapes |= dict.fromkeys(cells, image.chosen)
            if record.depth:
                image.move = 1 if record.alpha >= self.settings.beta else -1
            else:  # a round without drafts says nothing about acceptance
                image.move = 0


@dataclass
class _ImageState:
    """State of an image.

    Attributes:
        chosen: Shape of the last round; before the first round, the first shape.
        random: Generator of random shapes.
        move: 1 if the next shape is deeper and narrower than the shape it starts from, -1 if it is shallower and wider,
            0 if it is the same.
        shapes: For the raster position of each token, the shape of the tree that emitted it.
        row: Row of the root of the last round.
    """

    chosen: Shape
    random: np.random.Generator
    move: int = 0
    shapes: dict[int, Shape] = field(default_factory=dict)
    row: int = 0
