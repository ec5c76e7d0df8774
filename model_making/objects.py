"""Painter for the objects of a scene. The file ``objects.txt`` defines the shapes of each kind of object.

Coordinates are in supersampled pixels: two of them make one pixel of the final image. They are relative to the object's
foot, the middle of its lower edge.
"""

from __future__ import annotations

import colorsys
from pathlib import Path
from typing import Any

from PIL import ImageDraw

Colour = tuple[int, int, int]


def shade(colour: Colour, factor: float) -> Colour:
    """Return a lighter (factor above 1) or darker colour of the same hue."""
    h, light, s = colorsys.rgb_to_hls(*(c / 255 for c in colour))
    return tuple(int(255 * c) for c in colorsys.hls_to_rgb(h, min(0.95, light * factor), s))


def _parse_shape(line: str) -> tuple[str, list[float], dict[str, str]]:
    """Parse ``ellipse -4 -4 4 0 fill=c*1.2`` into the name of a Pillow method, coordinates and options."""
    name, *rest = line.split()
    options = dict(part.split("=") for part in rest if "=" in part)
    return name, [float(part) for part in rest if "=" not in part], options


def _read_objects() -> tuple[dict[str, int], dict[str, list]]:
    """Read ``objects.txt``. Return the height of each kind, and the shapes of each kind."""
    heights = {}
    shapes = {}
    text = (Path(__file__).parent / "objects.txt").read_text(encoding="utf-8")
    for part in text.split("\n\n")[1:]:
        first, *lines = part.strip().splitlines()
        kind, height = first.split()
        heights[kind] = int(height)
        shapes[kind] = [_parse_shape(line) for line in lines]
    return heights, shapes


HEIGHTS, _SHAPES = _read_objects()
"""Height of each kind, in supersampled pixels."""


def _parse_value(text: str, colour: Colour | None) -> Any:
    """Parse the value of an option.

    ``c`` is the object's colour and ``c*1.2`` is a lighter shade. Values with commas are RGB; others are numbers.
    """
    if text.startswith("c"):
        factor = text.partition("*")[2]
        return shade(colour, float(factor)) if factor else colour
    return tuple(map(int, text.split(","))) if "," in text else float(text)


def paint(draw: ImageDraw.ImageDraw, kind: str, x: float, y: float, colour: Colour | None) -> None:
    """Paint an object.

    Args:
        kind: Kind of the object, a key of ``HEIGHTS``.
        x: Column of the foot, in supersampled pixels.
        y: Row of the foot, in supersampled pixels.
        colour: RGB of the object. None for plants, because ``objects.txt`` defines their colours.
    """
    for name, coordinates, options in _SHAPES[kind]:
        points = [(x + dx, y + dy) for dx, dy in zip(coordinates[::2], coordinates[1::2])]
        values = {option: _parse_value(text, colour) for option, text in options.items()}
        if "width" in values:
            values["width"] = int(values["width"])
        getattr(draw, name)(points, **values)
