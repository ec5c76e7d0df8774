"""Object detector for rendered scenes: template matching, without a network.

The renderer always paints an object at the same size and in flat colours, with its foot on the codec's grid of 8-pixel
cells. :func:`detect_objects` therefore compares the image at half size with each kind of object, in each colour, under
each light, at each grid position. It accepts the best match, marks its pixels as explained and repeats the search on
the remaining pixels. A partly covered object is scored by its visible pixels, and two objects of one kind are detected
separately.

``python -m model_making.scoring`` measures the accuracy.
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

# Edge of the image at half size, and padding around it, so that an object may extend over the edge.
_HALF = SIZE // 2
_PAD = 40
# Candidate positions of the foot, in pixels of the full image. Rows by whether the object flies.
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
# Score penalties: for a completely covered object, and for a margin that looks like the object.
_COVERED_PENALTY = 0.25
_MARGIN_PENALTY = 0.65
# In 150 rendered images, plain and after the codec, all 233 objects scored at least 0.44, false matches at most 0.40.
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
        score: Similarity of the visible pixels, at most 1, minus penalties for the covered share and for similar pixels
            in the margin. Without the latter, blue balls would be detected all over blue water.
    """

    kind: str
    colour: str | None
    x: int
    y: int
    score: float

    @property
    def place(self) -> str:
        """Place whose centre is nearest to the foot."""
        return min(PLACES, key=lambda place: abs(PLACES[place] * SIZE - self.x))


@dataclass(frozen=True)
class _Template:
    """One kind of object in all its V variants (colour and light), at all its P positions.

    Attributes:
        kind: Kind of the object.
        colours: [V] colour names; each occurs once per light.
        feet: [P, 2] positions (x, y) of the foot, in pixels of the full image.
        pixels: [n + m, P] flat indices into the padded half-size image: n pixels of the object, m of its margin.
        shades: [n + m, V, 3] expected RGB; a pixel of the margin has the shade of the nearest pixel of the object.
        weights: [n] weights of the object's pixels; they sum to 1.
    """

    kind: str
    colours: list[str | None]
    feet: np.ndarray
    pixels: Tensor
    shades: Tensor
    weights: Tensor


def _paint_centred(kind: str, colour: tuple[int, ...] | None) -> tuple[np.ndarray, np.ndarray]:
    """Paint an object with its foot at the centre and return its RGB and coverage.

    Coverage is the difference between the object on black and on white: an opaque pixel is the same on both.

    Returns:
        RGB on black [SIZE, SIZE, 3], at the scale of the half-size image, and coverage [SIZE, SIZE] from 0 to 1.
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
    """Return the object's pixels [n, 2], its margin [m, 2], and for each margin pixel the nearest object pixel [m]."""
    inside = np.argwhere(coverage > 0.99)
    outside = np.argwhere(coverage < 0.01)
    distances = np.linalg.norm(outside[:, None] - inside[None], axis=-1)
    close = distances.min(1) < _MARGIN
    return inside, outside[close], distances[close].argmin(1)


def _variants(kind: str) -> list[tuple[str | None, tuple[int, ...] | None]]:
    """Return the colours of a kind, each as its name and its RGB under each light."""
    if kind in PLANTS:
        return [(None, None)]
    # The renderer applies half of the light to objects.
    lights = [[0.5 + 0.5 * factor for factor in LIGHT[light]] for light in _LIGHTS]
    return [(name, tuple(int(c * f) for c, f in zip(rgb, light))) for name, rgb in COLOURS.items() for light in lights]


def _pixel_weights(shades: np.ndarray) -> np.ndarray:
    """Weight pixels [n, V, 3] by their distance from the object's mean colour: details distinguish kinds best."""
    weights = 1 + np.linalg.norm(shades - shades.mean(0), axis=-1).mean(1) / 40
    return weights / weights.sum()


def _make_template(kind: str) -> _Template:
    variants = _variants(kind)
    paintings = [_paint_centred(kind, rgb) for _, rgb in variants]
    inside, margin, nearest = _split_pixels(paintings[0][1])
    rows, columns = np.concatenate([inside, inside[nearest]]).T
    shades = np.stack([rgb[rows, columns] for rgb, _ in paintings], 1)
    feet = np.array([(x, y) for y in _ROWS[kind in AIR_OBJECTS] for x in _COLUMNS])
    # Template pixels are relative to the centre (_HALF, _HALF). Moving the centre to each foot broadcasts
    # [2, 1, P] + [2, n + m, 1]; argwhere gives (row, column), so it is reversed to (x, y).
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
    """Return the similarity of image pixels and template pixels, 1 for equal colours and 0 beyond the tolerance.

    The squared distance is expanded to a^2 + b^2 - 2ab, so that one batched product computes all variants.

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
        free: [pixels] 1 for pixels that no detection has explained yet, else 0.
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
