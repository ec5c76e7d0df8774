"""ADT-Tree (arXiv 2512.21857): adapt the shape of each tree to the acceptance in its neighbourhood.

The shape of a tree is its maximum depth and width. The paper specifies that a tree starts from the shape at an adjacent
token, by default the token on the left, and that the shape is then adapted to the acceptance rate alpha. If alpha is at
least a threshold beta, the next tree is deeper and narrower, otherwise shallower and wider. The paper does not specify
the other details. They are our own choice, and their constants were tuned on the bundled model.
The rule `predicted` and the value `both` of the option `init` are not in the paper.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ..errors import AdtError
from ..settings import choice, fraction, integer
from ..trace import Round
from .base import ActiveImage, Context, Policy, Shape
from .fixed import FixedSettings

HORIZONTAL = "horizontal"
VERTICAL = "vertical"
RANDOM = "random"
BOTH = "both"
INITS = (HORIZONTAL, VERTICAL, RANDOM, BOTH)
"""Values of the option `init`."""
CARRY = "carry"
RESET = "reset"
WRAPS = (CARRY, VERTICAL, RESET)
"""Values of the option `wrap`."""
PAPER = "paper"
PREDICTED = "predicted"
RULES = (PAPER, PREDICTED)
"""Values of the option `rule`."""
CELLS_ABOVE = 4
"""Number of cells in the row above that the rule `predicted` uses, from the column of the next token to the right."""
_INIT_HELP = (
    "ADT-Tree: neighbours that a tree's shape follows: the token to the left (horizontal), the token above (vertical), "
    "both, or none (random)."
)
_WRAP_HELP = (
    "ADT-Tree with horizontal init: initial shape in a new row: copied from the end of the previous row (carry), from "
    "the token above (vertical), or the given depth and width (reset)."
)
_RULE_HELP = (
    "ADT-Tree: how a tree's shape follows from earlier rounds. paper: one step deeper and narrower, or shallower and "
    "wider. predicted: as deep as the expected number of accepted drafts, divided by beta."
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
    rule: str = choice(PAPER, _RULE_HELP, RULES)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("depth", "width"):
            low = getattr(self, f"{name}_min")
            high = getattr(self, f"{name}_max")
            if low > high:
                raise AdtError(f"`{name}_min` is {low}, above `{name}_max` {high}; make it at most {high}.")


class AdtTree(Policy):
    """Policy that adapts the shape of trees to each image.

    After a round, the policy stores two values for each token that the round emitted: the number of accepted drafts of
    the round, and a shape for later rounds. The root is the last token before a new tree, on the left of the next
    token.

    With the rule `paper`, the option `init` selects the shape of a new tree: the shape stored at the root
    (`horizontal`), the shape stored at the token above the root (`vertical`), or the mean of these two (`both`). In the
    first round whose root is in a new row, the shape at the root comes from a round that began in the row above. The
    option `wrap` selects the shape in this case: the shape at the root nevertheless (`carry`), the shape at the token
    above the root (`vertical`), or the given depth and width (`reset`).

    After a round, alpha = accepted drafts / depth of the verified tree. If alpha >= beta, the policy stores a shape
    that is deeper by `depth_step` and narrower by `width_step` than the shape of the round. Otherwise it stores a
    shape that is shallower and wider by these steps. The minimum and maximum depth and width always hold. The verified
    tree may have fewer levels than its chosen depth, because the first levels of a wide tree can use up all `drafts`.

    With the rule `predicted`, the depth of a new tree is (predicted number of accepted drafts) / beta. The prediction
    is the mean of up to three numbers:

    - accepted drafts of the last round; left out if `init` is `vertical`.
    - average accepted drafts of the rounds that emitted the tokens in the row above, from the column of the next token
      on (`CELLS_ABOVE` tokens); left out if `init` is `horizontal`.
    - average accepted drafts of all rounds of the image so far.

    A tree of the depth `depth_min` has the width `width_max`, and a tree of the depth `depth_max` has the width
    `width_min`. Between these depths, the width falls linearly.

    If `init` is `random`, every tree has a random shape within the bounds, whatever the rule.
    """

    settings_type = AdtTreeSettings
    help = (
        "the adaptive tree of the ADT-Tree paper, deeper where the image is easy to predict and wider where it is hard"
    )

    def __init__(self, context: Context):
        super().__init__(context)
        self._initial = self._bounded(self.settings.depth, self.settings.width)
        self._images: dict[int, _ImageState] = {}

    @classmethod
    def largest(cls, settings: AdtTreeSettings) -> Shape:
        return Shape(settings.depth_max, settings.width_max, settings.drafts)

    def _bounded(self, depth: int, width: int) -> Shape:
        s = self.settings
        return Shape(min(max(depth, s.depth_min), s.depth_max), min(max(width, s.width_min), s.width_max), s.drafts)

    def begin(self) -> bool:
        self._images = {}  # images that start again lose their stored shapes
        return True

    def choose(self, slots: Sequence[ActiveImage]) -> list[Shape]:
        self._images = {slot.image: self._images.get(slot.image) or self._new_image(slot.image) for slot in slots}
        return [self._next_shape(self._images[slot.image], slot.position) for slot in slots]

    def _new_image(self, image: int) -> _ImageState:
        key = np.array(self.context.keys[image], dtype=np.uint64)
        random = np.random.Generator(np.random.Philox(key=key, counter=[0, 0, 1, 0]))
        return _ImageState(self._initial, random, total=self.settings.beta * self._initial.depth)

    def _next_shape(self, image: _ImageState, position: int) -> Shape:
        """Choose and return the shape of the tree whose root is at `position`."""
        is_new_row = position // self.context.columns != image.row
        image.row = position // self.context.columns
        if self.settings.init == RANDOM:
            image.chosen = self._random_shape(image)
        elif self.settings.rule == PREDICTED:
            image.chosen = self._shape_for(self._predicted(image, position))
        else:
            image.chosen = self._adjacent_shape(image, position, is_new_row)
        return image.chosen

    def _random_shape(self, image: _ImageState) -> Shape:
        s = self.settings
        bounds = (s.depth_min, s.depth_max), (s.width_min, s.width_max)
        depth, width = (int(image.random.integers(low, high + 1)) for low, high in bounds)
        return Shape(depth, width, s.drafts)

    def _adjacent_shape(self, image: _ImageState, position: int, is_new_row: bool) -> Shape:
        """Return the shape of the next tree under the rule `paper`, from the shapes stored at adjacent tokens."""
        s = self.settings
        left = image.shapes.get(position, self._initial)  # the root is on the left of the next token
        above = image.shapes.get(position - self.context.columns, left)
        if s.init == VERTICAL or (is_new_row and s.wrap == VERTICAL):
            return above
        if is_new_row and s.wrap == RESET:
            left = self._initial
        if s.init == BOTH:
            return Shape((left.depth + above.depth + 1) // 2, (left.width + above.width + 1) // 2, s.drafts)
        return left

    def _predicted(self, image: _ImageState, position: int) -> float:
        """Return the expected number of accepted drafts of the tree whose root is at `position`."""
        mean = image.total / image.count
        first = position + 1 - self.context.columns
        above = [image.accepted[cell] for cell in range(first, first + CELLS_ABOVE) if cell in image.accepted]
        parts = [mean]
        if self.settings.init != VERTICAL:
            parts.append(image.accepted.get(position, mean))
        if self.settings.init != HORIZONTAL:
            parts.append(sum(above) / len(above) if above else mean)
        return sum(parts) / len(parts)

    def _shape_for(self, accepted: float) -> Shape:
        """Return the shape of a tree with the rule `predicted`, if `accepted` drafts are expected to be accepted."""
        s = self.settings
        depth = round(min(accepted / max(s.beta, 0.01), s.depth_max))
        share = (depth - s.depth_min) / max(s.depth_max - s.depth_min, 1)
        return self._bounded(depth, round(s.width_max - share * (s.width_max - s.width_min)))

    def on_verified(self, round: Round) -> None:
        """Store the number of accepted drafts and the next shape at the positions that the round emitted."""
        s = self.settings
        for record in round.images:
            image = self._images[record.image]
            cells = range(record.position + 1, record.position + record.accepted + 2)
            shape = image.chosen
            if record.depth:
                sign = 1 if record.alpha >= s.beta else -1
                shape = self._bounded(shape.depth + sign * s.depth_step, shape.width - sign * s.width_step)
                image.accepted |= dict.fromkeys(cells, record.accepted)
                image.total += record.accepted
                image.count += 1
            image.shapes |= dict.fromkeys(cells, shape)


@dataclass
class _ImageState:
    """State of an image.

    Attributes:
        chosen: Shape of the current round.
        random: Generator of random shapes.
        total: Number of accepted drafts in all rounds so far, plus beta * initial depth for an imaginary first round.
        count: Number of these rounds, including the imaginary one.
        accepted: For the raster position of each token, the number of accepted drafts of the round that emitted it.
        shapes: For the raster position of each token, the stored shape.
        row: Row of the root of the last round.
    """

    chosen: Shape
    random: np.random.Generator
    total: float
    count: int = 1
    accepted: dict[int, int] = field(default_factory=dict)
    shapes: dict[int, Shape] = field(default_factory=dict)
    row: int = 0
