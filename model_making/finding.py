"""Which things stand in a picture, in which colour and where? Told by their shapes, without a network.

A thing is always painted at the same size, in flat colours, with its foot on the codec's lattice of 8-pixel cells. So
:func:`find` compares the picture, at half its size, with every kind in every colour under every light at every place
of the lattice. The best match is taken, its pixels count as explained, and what is left is searched again: a thing
that another one partly covers is judged by what shows of it, and two of a kind are found twice.

``python -m model_making.judging`` measures how often it is right.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageDraw
from torch import Tensor

from .render import LIGHT, SIZE
from .scenes import AIR_OBJECTS, COLOURS, PLACES, PLANTS
from .things import HEIGHTS, paint

_HALF = SIZE // 2  # edge of the halved picture
_PAD = 40  # of the halved picture, so that a thing may stand partly outside it
_COLUMNS = range(16, SIZE - 15, 8)  # where a foot may stand, in pixels of the picture
_FEET = {True: range(32, 65, 8), False: range(88, 121, 8)}  # in the air, on the ground
_LIGHTS = ("clear", "sunset", "rain", "night")  # cloudy is as good as clear
_CLOSE = 2.6  # of the halved picture's pixels: how far around a thing one looks
_TOLERANCE = 50.0  # a pixel this far from the wanted colour, as a distance in RGB, is not like it at all
_LEAST_SEEN = 0.3  # the share of a thing that must show
_COVERED, _MELTS = 0.25, 0.65  # what is taken off the score for all of a thing, for all pixels around it
# In 150 pictures of the generator, plain and coded, all 233 things scored 0.44 at least, and what is none 0.40 at most.
_LEAST_SCORE = 0.43
_MOST = 8  # things in a picture


@dataclass(frozen=True)
class Found:
    """A thing that was found, with its foot at pixel (x, y).

    score: how alike the pixels are that show of it, at most 1. Something is taken off for the share that is covered,
    and for pixels around it that are like it, too: else blue balls would be seen all over blue water.
    """

    kind: str
    colour: str | None
    x: int
    y: int
    score: float

    @property
    def place(self) -> str:
        return min(PLACES, key=lambda place: abs(PLACES[place] * SIZE - self.x))


@dataclass(frozen=True)
class _Template:
    """A kind in all its looks. n pixels, P feet, V looks."""

    kind: str
    looks: list[str | None]  # [V] colours, each several times
    feet: np.ndarray  # [P, 2] x and y in pixels of the picture
    pixels: Tensor  # [n + m, P] indices into the padded half picture, flat: n pixels of the thing, m around it
    shades: Tensor  # [n + m, V, 3], of those around it the shade of its nearest pixel
    weights: Tensor  # [n], sum 1


def _painted(kind: str, colour: tuple[int, ...] | None) -> tuple[np.ndarray, np.ndarray]:
    """A thing with its foot in the middle, at half size [SIZE, SIZE, 3], and its share of every pixel [SIZE, SIZE]."""
    size, both = 4 * SIZE, []
    for ground in (0, 255):
        image = Image.new("RGB", (size, size), (ground,) * 3)
        paint(ImageDraw.Draw(image), kind, size // 2, size // 2, colour)
        both.append(np.asarray(image.resize((SIZE, SIZE), Image.Resampling.BOX), np.float32))
    return both[0], 1 - (both[1] - both[0]).max(-1) / 255


def _inside_and_around(share: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Pixels [n, 2] that a thing covers, pixels [m, 2] close by that it doesn't touch, and the nearest of n to each."""
    inside, outside = np.argwhere(share > 0.99), np.argwhere(share < 0.01)
    distances = np.linalg.norm(outside[:, None] - inside[None], axis=-1)
    close = distances.min(1) < _CLOSE
    return inside, outside[close], distances[close].argmin(1)


def _looks(kind: str) -> list[tuple[str | None, tuple[int, ...] | None]]:
    """The colours that a kind comes in, each by its name and as a tone under every light."""
    if kind in PLANTS:
        return [(None, None)]
    halves = [[0.5 + 0.5 * part for part in LIGHT[light]] for light in _LIGHTS]
    return [(name, tuple(int(c * f) for c, f in zip(rgb, half))) for name, rgb in COLOURS.items() for half in halves]


def _template(kind: str) -> _Template:
    looks = _looks(kind)
    paintings = [_painted(kind, tone) for _, tone in looks]
    inside, around, nearest = _inside_and_around(paintings[0][1])
    rows, columns = np.concatenate([inside, inside[nearest]]).T
    shades = np.stack([colours[rows, columns] for colours, _ in paintings], 1)
    own = shades[: len(inside)]
    weights = 1 + np.linalg.norm(own - own.mean(0), axis=-1).mean(1) / 40  # what is not in its main colour tells most
    feet = np.array([(x, y) for y in _FEET[kind in AIR_OBJECTS] for x in _COLUMNS])
    (columns, rows), edge = feet.T[:, None] // 2 + np.concatenate([inside, around]).T[::-1, :, None], _HALF + 2 * _PAD
    pixels = (rows - _HALF + _PAD) * edge + columns - _HALF + _PAD
    return _Template(
        kind,
        [name for name, _ in looks],
        feet,
        torch.from_numpy(pixels),
        torch.from_numpy(shades),
        torch.from_numpy(weights / weights.sum()),
    )


@lru_cache(maxsize=1)
def _templates() -> list[_Template]:
    return [_template(kind) for kind in HEIGHTS]


def _likeness(template: _Template, padded: Tensor) -> Tensor:
    """[n, V, P]: how alike a picture's pixels (flat, [pixels, 3]) are to the template's; 1 is the same, 0 another."""
    there, wanted = padded[template.pixels], template.shades
    squares = there.square().sum(-1)[:, None] + wanted.square().sum(-1)[:, :, None]
    squares = torch.baddbmm(squares, wanted, there.transpose(1, 2), alpha=-2)
    return squares.mul_(-1 / _TOLERANCE**2).add_(1).clamp_(min=0)


@dataclass(frozen=True)
class _Match:
    template: _Template
    look: int
    foot: int
    score: float


def _best(template: _Template, alike: Tensor, free: Tensor) -> _Match:
    """A template's best match with the pixels that nothing has explained yet (free: 1, else 0; flat)."""
    n = len(template.weights)
    inside, around = free[template.pixels[:n]] * template.weights[:, None], free[template.pixels[n:]]
    seen = inside.sum(0)  # [P]
    scores = torch.einsum("nvp,np->vp", alike[:n], inside) / seen.clamp(min=1e-6)
    melts = torch.einsum("nvp,np->vp", alike[n:], around) / around.sum(0).clamp(min=1)
    scores = scores - _MELTS * melts - _COVERED * (1 - seen)
    scores[:, seen < _LEAST_SEEN] = -1
    look, foot = divmod(int(scores.argmax()), scores.shape[1])
    return _Match(template, look, foot, float(scores[look, foot]))


@torch.inference_mode()
def find(image: np.ndarray) -> list[Found]:
    """The things in a picture (uint8 [SIZE, SIZE, 3]), the surest first."""
    half = torch.from_numpy(image.astype(np.float32).reshape(_HALF, 2, _HALF, 2, 3).mean((1, 3)))
    padded = F.pad(half, (0, 0, *(_PAD,) * 4)).flatten(0, 1)
    free = F.pad(torch.ones(_HALF, _HALF), (_PAD,) * 4).flatten()
    templates = _templates()
    likenesses = [_likeness(template, padded) for template in templates]
    found: list[Found] = []
    while len(found) < _MOST:
        matches = [_best(template, alike, free) for template, alike in zip(templates, likenesses)]
        best = max(matches, key=lambda match: match.score)
        if best.score < _LEAST_SCORE:
            break
        template, (x, y) = best.template, best.template.feet[best.foot]
        found.append(Found(template.kind, template.looks[best.look], int(x), int(y), best.score))
        free[template.pixels[: len(template.weights), best.foot]] = 0
    return found
