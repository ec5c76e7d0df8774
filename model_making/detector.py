"""Object detector for rendered scenes: template matching, without a network.

The renderer always paints an object at the same size and in flat colours. The foot of an object is the middle of its
lower edge; it lies on the codec's grid of 8-pixel cells. :func:`detect_objects` therefore reduces the image to half
size and compares it with each kind of object, in each colour, under each light, at each grid position. The function
accepts the best match, marks the pixels of this object as explained, and repeats the search on the remaining pixels. As
a result, a partly covered object is scored by its visible pixels, and two objects of one kind are detected separately.

``python -m model_making.scoring`` measures the accuracy.

Tensor dimensions: n pixels of an object, m pixels of the margin around it, V variants (each colour under each light),
P positions of the foot.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageDraw
from torch import Tensor

from .objects import HEIGHTS, paint
from .render import LIGHT, SIZE
from .scenes import AIR_OBJECTS, COLOURS, PLACES, PLANTS

# Edge length of the image at half size, and width of the padding around it. The padding allows objects that are partly
# outside of the image.
_HALF = SIZE // 2
_PAD = 40
# Candidate positions of the foot, in pixels of the full image. The key of _ROWS is whether the object is in the air.
_COLUMNS = range(16, SIZE - 15, 8)
_ROWS = {True: range(32, 65, 8), False: range(88, 121, 8)}
# The light of "cloudy" is too close to "clear" to need templates.
_LIGHTS = ("clear", "sunset", "rain", "night")
# Width of the compared margin around an object, in pixels of the half-size image.
_MARGIN = 2.6
# RGB distance at which the similarity of a pixel reaches 0.
_TOLERANCE = 50.0
# Minimum visible share of an object.
_MIN_VISIBLE = 0.3
# Maximum score penalties: for an object that is covered completely, and for a margin with the object's colours.
_COVERED_PENALTY = 0.25
_MARGIN_PENALTY = 0.65
# Measured on 150 rendered images, before and after the codec: all 233 objects have a score of at least 0.44, and all
# false matches have at most 0.40.
_MIN_SCORE = 0.43
_MAX_OBJECTS = 8


@dataclass(frozen=True)
class Detection:
    """Detected object.

    Attributes:
        kind: Kind of the object.
        colour: Colour, or None for plants.
        x: Column of the foot, in pixels.
        y: Row of the foot, in pixels.
        score: Similarity of the visible pixels, at most 1, minus two penalties: for the covered share, and for pixels
            of the margin with the object's colour. Without the second penalty, the detector would find blue balls
            everywhere in blue water.
    """

    kind: str
    colour: str | None
    x: int
    y: int
    score: float

    @property
    def place(self) -> str:
        """The place (left, middle or right) whose centre is nearest to the foot."""
        return min(PLACES, key=lambda place: abs(PLACES[place] * SIZE - self.x))


@dataclass(frozen=True)
class _Template:
    """Expected pixels of one kind of object, in V variants (each colour under each light) and at P positions.

    Attributes:
        kind: Kind of the object.
        colours: [V] colour name of each variant.
        feet: [P, 2] positions (x, y) of the foot, in pixels of the full image.
        pixels: [n + m, P] flat indices into the padded half-size image, for each position. The first n are pixels of
            the object, the last m are pixels of its margin.
        shades: [n + m, V, 3] expected RGB. Each pixel of the margin has the RGB of the nearest pixel of the object.
        weights: [n] weights of the object's pixels. Their sum is 1.
    """

    kind: str
    colours: list[str | None]
    feet: np.ndarray
    pixels: Tensor
    shades: Tensor
    weights: Tensor


def _paint_centred(kind: str, colour: tuple[int, ...] | None) -> tuple[np.ndarray, np.ndarray]:
    """Paint an object with its foot at the centre and return its RGB and coverage.

    To measure coverage, the object is painted on black and on white. A pixel that the object covers completely has the
    same value in both images; a pixel that it doesn't cover differs by 255.

    Returns:
        RGB on black [SIZE, SIZE, 3], and coverage [SIZE, SIZE] from 0 to 1. One of their pixels is as large as a pixel
        of the half-size image.
    """
    size = 4 * SIZE
    images = []
    for ground in (0, 255):
        image = Image.new("RGB", (size, size), (ground,) * 3)
        paint(ImageDraw.Draw(image), kind, size // 2, size // 2, colour)
        images.append(np.asarray(image.resize((SIZE, SIZE), Image.Resampling.BOX), np.float32))
    on_black, on_white = images
    return on_black, 1 - (on_white - on_black).max(-1) / 255


def _split_pixels(coverage: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Split the pixels of a painted object into pixels of the object and pixels of the margin around it.

    Args:
        coverage: [SIZE, SIZE] from :func:`_paint_centred`.

    Returns:
        (row, column) of the object's pixels [n, 2], (row, column) of the margin's pixels [m, 2], and for each pixel of
        the margin the index of the nearest object pixel [m].
    """
    inside = np.argwhere(coverage > 0.99)
    outside = np.argwhere(coverage < 0.01)
    distances = np.linalg.norm(outside[:, None] - inside[None], axis=-1)
    close = distances.min(1) < _MARGIN
    return inside, outside[close], distances[close].argmin(1)


def _variants(kind: str) -> list[tuple[str | None, tuple[int, ...] | None]]:
    """Return (colour name, RGB under a light) for each colour and each light. For plants, return one (None, None)."""
    if kind in PLANTS:
        return [(None, None)]
    # The renderer applies half of the light to objects.
    lights = [[0.5 + 0.5 * factor for factor in LIGHT[light]] for light in _LIGHTS]
    return [(name, tuple(int(c * f) for c, f in zip(rgb, light))) for name, rgb in COLOURS.items() for light in lights]


def _pixel_weights(shades: np.ndarray) -> np.ndarray:
    """Return the weight of each pixel of an object; the sum is 1.

    Pixels that differ from the object's mean colour are details such as windows. They distinguish kinds of objects best
    and therefore get a higher weight.

    Args:
        shades: [n, V, 3] RGB of the object's pixels.
    """
    weights = 1 + np.linalg.norm(shades - shades.mean(0), axis=-1).mean(1) / 40
    return weights / weights.sum()


def _make_template(kind: str) -> _Template:
    variants = _variants(kind)
    paintings = [_paint_centred(kind, rgb) for _, rgb in variants]
    inside, margin, nearest = _split_pixels(paintings[0][1])
    rows, columns = np.concatenate([inside, inside[nearest]]).T
    shades = np.stack([rgb[rows, columns] for rgb, _ in paintings], 1)
    feet = np.array([(x, y) for y in _ROWS[kind in AIR_OBJECTS] for x in _COLUMNS])
    # In the painting, the foot is at (_HALF, _HALF). The pixels are shifted so that the painted foot is at each of the
    # P positions: feet [2, 1, P] + pixels [2, n + m, 1] gives [2, n + m, P]. Feet are (x, y), but pixels are
    # (row, column), so row and column of each pixel are swapped.
    columns, rows = feet.T[:, None] // 2 + np.concatenate([inside, margin]).T[::-1, :, None]
    edge = _HALF + 2 * _PAD
    pixels = (rows - _HALF + _PAD) * edge + columns - _HALF + _PAD
    return _Template(
        kind,
        [name for name, _ in variants],
        feet,
        torch.from_numpy(pixels),
        torch.from_numpy(shades),
        torch.from_numpy(_pixel_weights(shades[: len(inside)])),
    )


@lru_cache(maxsize=1)
def _templates() -> list[_Template]:
    return [_make_template(kind) for kind in HEIGHTS]


def _similarity(template: _Template, padded: Tensor) -> Tensor:
    """Return the similarity of each image pixel to the template: 1 for equal colours, 0 beyond the tolerance.

    The squared distance (a - b)^2 is computed as a^2 + b^2 - 2ab, so that one batched matrix product covers all
    variants.

    Args:
        template: Template with n + m pixels, V variants and P positions.
        padded: [pixels, 3] RGB of the padded half-size image.

    Returns:
        [n + m, V, P].
    """
    actual = padded[template.pixels]
    expected = template.shades
    squares = actual.square().sum(-1)[:, None] + expected.square().sum(-1)[:, :, None]
    squares = torch.baddbmm(squares, expected, actual.transpose(1, 2), alpha=-2)
    return squares.mul_(-1 / _TOLERANCE**2).add_(1).clamp_(min=0)


@dataclass(frozen=True)
class _Match:
    template: _Template
    variant: int
    position: int
    score: float


def _best_match(template: _Template, similarity: Tensor, free: Tensor) -> _Match:
    """Return a template's best match.

    Args:
        template: Template with n + m pixels, V variants and P positions.
        similarity: [n + m, V, P] from :func:`_similarity`.
        free: [pixels] 1 for pixels of the image that don't belong to a detected object, else 0.
    """
    n = len(template.weights)
    inside = free[template.pixels[:n]] * template.weights[:, None]
    margin = free[template.pixels[n:]]
    visible = inside.sum(0)  # [P]
    scores = torch.einsum("nvp,np->vp", similarity[:n], inside) / visible.clamp(min=1e-6)
    margin_scores = torch.einsum("nvp,np->vp", similarity[n:], margin) / margin.sum(0).clamp(min=1)
    scores = scores - _MARGIN_PENALTY * margin_scores - _COVERED_PENALTY * (1 - visible)
    scores[:, visible < _MIN_VISIBLE] = -1
    variant, position = divmod(int(scores.argmax()), scores.shape[1])
    return _Match(template, variant, position, float(scores[variant, position]))


@torch.inference_mode()
def detect_objects(image: np.ndarray) -> list[Detection]:
    """Return the objects in an image, best match first.

    Args:
        image: [SIZE, SIZE, 3] uint8.
    """
    half = torch.from_numpy(image.astype(np.float32).reshape(_HALF, 2, _HALF, 2, 3).mean((1, 3)))
    padded = F.pad(half, (0, 0, *(_PAD,) * 4)).flatten(0, 1)
    free = F.pad(torch.ones(_HALF, _HALF), (_PAD,) * 4).flatten()
    templates = _templates()
    similarities = [_similarity(template, padded) for template in templates]
    detections: list[Detection] = []
    while len(detections) < _MAX_OBJECTS:
        matches = [_best_match(template, similar, free) for template, similar in zip(templates, similarities)]
        best = max(matches, key=lambda match: match.score)
        if best.score < _MIN_SCORE:
            break
        template = best.template
        x, y = template.feet[best.position]
        detections.append(Detection(template.kind, template.colours[best.variant], int(x), int(y), best.score))
        free[template.pixels[: len(template.weights), best.position]] = 0
    return detections
