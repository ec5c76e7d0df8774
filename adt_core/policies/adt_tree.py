"""ADT-Tree (arXiv 2512.21857): the shape of a tree follows what was accepted in the neighbourhood.

The paper says this much: depth and width are adapted at every step from adjacent states and from the acceptance rate,
starting from horizontal adjacency; alpha >= beta makes the next tree deeper and narrower, alpha < beta shallower and
wider. The rest is reconstructed, and the constants were swept on the bundled model (``benchmarks/sweep.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ..errors import AdtError
from ..rules.settings import choice, share, whole
from ..rules.trace import Round
from .base import Context, Policy, Shape, Slot
from .fixed import FixedSettings

HORIZONTAL, VERTICAL, RANDOM = INITS = ("horizontal", "vertical", "random")
CARRY, _, RESET = WRAPS = ("carry", VERTICAL, "reset")
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
    beta: float = share(
        0.6, "ADT-Tree: if at least this share of a tree's levels is accepted, the next tree is deeper and narrower."
    )
    depth_step: int = whole(1, "ADT-Tree: levels added or removed at a time.")
    width_step: int = whole(1, "ADT-Tree: branches added or removed at a time.")
    depth_min: int = whole(1, "ADT-Tree: minimum levels of a tree.")
    depth_max: int = whole(6, "ADT-Tree: maximum levels of a tree.")
    width_min: int = whole(1, "ADT-Tree: minimum branches per level.")
    width_max: int = whole(3, "ADT-Tree: maximum branches per level.")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("depth", "width"):
            low, high = getattr(self, f"{name}_min"), getattr(self, f"{name}_max")
            if low > high:
                raise AdtError(f"`{name}_min` is {low}, above `{name}_max` {high}; make it at most {high}.")


class AdtTree(Policy):
    """Shapes that follow each image.

    A round leaves the shape for the next one behind at every position that it emitted, and it starts from that of a
    neighbour (``init``): of its root, which is the token on the left (horizontal), or of the token above (vertical), or
    from a shape drawn at random. Left of a row's first token is the far end of the row above. ``wrap`` says what the
    first round in a new row starts from under horizontal init: from that token all the same (carry), from the token
    above (vertical), or from the initial shape (reset).

    After a round, alpha = accepted drafts / realised depth. Where alpha >= beta the next tree is deeper by
    ``depth_step`` and narrower by ``width_step``; else the reverse; both within their bounds. Depth is the realised
    one, because a wide tree of flat drafts runs out of nodes long before the depth that was asked for.
    """

    settings_type = AdtTreeSettings
    help = (
        "the adaptive tree of the ADT-Tree paper, deeper where the image is easy to predict and wider where it is hard"
    )

    def __init__(self, context: Context):
        super().__init__(context)
        self._first = self._bounded(self.settings.depth, self.settings.width)
        self._images: dict[int, _Image] = {}

    @classmethod
    def largest(cls, settings: AdtTreeSettings) -> Shape:
        return Shape(settings.depth_max, settings.width_max, settings.nodes)

    def _bounded(self, depth: int, width: int) -> Shape:
        s = self.settings
        return Shape(min(max(depth, s.depth_min), s.depth_max), min(max(width, s.width_min), s.width_max), s.nodes)

    def begin(self) -> bool:
        self._images = {}  # images that are begun anew have forgotten what they had
        return True

    def choose(self, slots: Sequence[Slot]) -> list[Shape]:
        self._images = {slot.image: self._images.get(slot.image) or self._new(slot.image) for slot in slots}
        return [self._next(self._images[slot.image], slot.position) for slot in slots]

    def _new(self, image: int) -> _Image:
        key = np.array(self.context.keys[image], dtype=np.uint64)
        return _Image(self._first, np.random.Generator(np.random.Philox(key=key, counter=[0, 0, 1, 0])))

    def _next(self, image: _Image, position: int) -> Shape:
        """The shape of the tree whose root is at ``position``."""
        s, columns = self.settings, self.context.columns
        left = image.shapes.get(position, self._first)  # the root is the token on the left of the first one to come
        wrapped, image.row = position // columns != image.row, position // columns
        if s.init == RANDOM:
            bounds = (s.depth_min, s.depth_max), (s.width_min, s.width_max)
            depth, width = (int(image.random.integers(low, high + 1)) for low, high in bounds)
            image.chosen = Shape(depth, width, s.nodes)
        elif s.init == VERTICAL or (wrapped and s.wrap == VERTICAL):
            image.chosen = image.shapes.get(position - columns, left)
        else:
            image.chosen = self._first if wrapped and s.wrap == RESET else left
        return image.chosen

    def on_verified(self, round: Round) -> None:
        """Write the next shape to the positions that the round emitted."""
        s = self.settings
        for seen in round.images:
            image, first = self._images[seen.image], seen.position + 1
            shape, sign = image.chosen, 1 if seen.alpha >= s.beta else -1
            if seen.depth:
                shape = self._bounded(shape.depth + sign * s.depth_step, shape.width - sign * s.width_step)
            image.shapes |= dict.fromkeys(range(first, first + seen.accepted + 1), shape)


@dataclass
class _Image:
    """What is remembered of an image. shapes: by raster position. row: that of the last root."""

    chosen: Shape
    random: np.random.Generator
    shapes: dict[int, Shape] = field(default_factory=dict)
    row: int = 0
