"""The things of a scene: ``things.txt`` says of which shapes each is painted."""

from __future__ import annotations

import colorsys
from pathlib import Path
from typing import Any

from PIL import ImageDraw

Colour = tuple[int, int, int]


def shade(colour: Colour, factor: float) -> Colour:
    """Lighter (factor above 1) or darker, keeping the hue."""
    h, light, s = colorsys.rgb_to_hls(*(c / 255 for c in colour))
    return tuple(int(255 * c) for c in colorsys.hls_to_rgb(h, min(0.95, light * factor), s))


def _shape(line: str) -> tuple[str, list[float], dict[str, str]]:
    """Read ``ellipse -4 -4 4 0 fill=c*1.2``: the name of Pillow's method, coordinates and options."""
    name, *rest = line.split()
    options = dict(part.split("=") for part in rest if "=" in part)
    return name, [float(part) for part in rest if "=" not in part], options


def _read() -> tuple[dict[str, int], dict[str, list]]:
    """Heights of all kinds, and their shapes."""
    heights, shapes = {}, {}
    text = (Path(__file__).parent / "things.txt").read_text(encoding="utf-8")
    for part in text.split("\n\n")[1:]:
        first, *lines = part.strip().splitlines()
        kind, height = first.split()
        heights[kind], shapes[kind] = int(height), [_shape(line) for line in lines]
    return heights, shapes


HEIGHTS, _SHAPES = _read()
"""Pixels, by the name of a kind."""


def _value(text: str, colour: Colour | None) -> Any:
    if text.startswith("c"):
        factor = text.partition("*")[2]
        return shade(colour, float(factor)) if factor else colour
    return tuple(map(int, text.split(","))) if "," in text else float(text)


def paint(draw: ImageDraw.ImageDraw, kind: str, x: float, y: float, colour: Colour | None) -> None:
    """Paint a thing with its foot at (x, y). colour: None for plants, which have their own."""
    for name, places, options in _SHAPES[kind]:
        points = [(x + across, y + down) for across, down in zip(places[::2], places[1::2])]
        known = {option: _value(text, colour) for option, text in options.items()}
        if "width" in known:
            known["width"] = int(known["width"])
        getattr(draw, name)(points, **known)
